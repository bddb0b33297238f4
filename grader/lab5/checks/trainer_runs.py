"""Judges whole runs of Lab 5's trainer: one that is told to stop, one that stops early, and the bits of two parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.assertions import (
    CheckFailed,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.truth import tokens
from grader.lab5.truth.training import case, rate
from grader.shared.cases import full_rows

_STATES = "model, optimizer, scheduler, scaler, steps, random numbers of each rank, the loader's position"


def require_same(seen: Seen, what: str, name_of_found: str = "seen") -> None:
    """Fail unless the resumed run ended as the uninterrupted one did, bit for bit; says what differs first."""
    expected, found = seen.expected, seen[name_of_found]
    tail = expected["seen"][len(expected["seen"]) - len(found["seen"]) :]
    if found["seen"] != tail or not found["seen"]:
        where = next((i for i, (a, b) in enumerate(zip(found["seen"], tail, strict=False)) if a != b), 0)
        raise CheckFailed(
            f"{what}: it went through {len(found['seen'])} batches, and batch {where} of them has samples "
            f"{found['seen'][where] if found['seen'] else 'none'}, expected {tail[where] if tail else 'none'}",
            "the loader's state_dict says where it is; load it back, and do not send it to the epoch's beginning",
        )
    for name, means in (
        ("steps", "optimizer steps in all"),
        ("scheduler", "learning rate of the next step (hexadecimal)"),
        ("scale", "loss scale"),
    ):
        require_equal(found[name], expected[name], what=f"{what}: {means}", hint=f"a checkpoint holds {_STATES}")
    require_arrays_close(
        seen[f"{name_of_found}/weight"],
        seen["expected/weight"],
        rtol=0,
        what=f"{what}: weights against those of an uninterrupted run",
        hint=f"they must be the same bits. A checkpoint holds {_STATES}; dropout draws from the random numbers",
    )
    for name, means in (("model", "model's"), ("optimizer", "optimizer's")):
        require_equal(found[name], expected[name], what=f"{what}: hash of the {means} state")


def judge_signals(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a run that SIGTERM stopped, wherever it came, goes on where it was."""
    for ranks in (1, 2):
        shared = fresh.shared(f"lab5.sigterm{ranks}")
        given = case(shared, ranks=ranks, epochs=3, accumulation=2)
        arguments = given.given(save_every_steps=2, keep_checkpoints=99)
        own, size = len(given.inputs) // ranks, given.batch_size

        # Of five batches; the last of them, a smaller one, is a window of its own.
        def in_last_window(epoch: int, shared: Fresh = shared, own: int = own, size: int = size) -> int:
            return epoch * own + shared.integer(4 * size + 1, own)

        middle = shared.integer(2, 3 * size)
        places = {
            "window": {"at": [middle]},
            "last": {"at": [in_last_window(0)]},
            "validation": {"validating": [shared.integer(1, own)]},
        }
        sequences = tokens.draw(shared)
        counts = tokens.counting_windows(sequences, ranks)
        before = counts.index(False)
        window = tokens.ACCUMULATION * sequences.batch_size
        seen = submission.rank_probe(
            "lab5.stopping.terminated", ranks, device="cpu", **arguments, places=places, signalled=ranks - 1,
            again=[shared.integer(2, 3 * size), in_last_window(1), in_last_window(2)],
            sequences=sequences.given(), between=before * window + shared.integer(1, window),
        )  # fmt: skip
        total, last = given.total_steps(ranks), -(-given.batches(ranks) // 2)
        saved = [step for step in range(1, total + 1) if step % last == 0 or step % 2 == 0]
        require_equal(
            seen[0].files,
            [f"step-{step:08d}.pt" for step in saved],
            what=f"checkpoints of fit() on {ranks} ranks with save_every_steps=2, {last} steps to an epoch",
            hint="after every save_every_steps steps of the run, and after each epoch's validation",
        )
        require_equal(
            seen[0].saved_before,
            [False] * given.config["epochs"],
            what=f"whether fit() on {ranks} ranks with save_every_steps=2 has saved a checkpoint of the last "
            "step before it validates, by epoch",
            hint="not at the end of the epoch: validation comes first there",
        )
        batches = given.batches(ranks)
        stops = {
            "window": (2 * ((middle - 1) // size // 2 + 1),) * 2,
            "last": (batches, batches),
            "validation": (batches, batches + given.config["accumulation_steps"]),
        }
        on = f"fit() on {ranks} rank{'s' if ranks > 1 else ''}"
        for rank, each in enumerate(seen):
            told = f"{on}, SIGTERM to rank {ranks - 1}"
            for place, between in stops.items():
                what = f"{told} {_PLACES[place]}: rank {rank}"
                _judge_stop(each, place, between, batches * given.config["epochs"], what)
            _judge_later_fits(each, f"{on}, time after time by the same trainer: rank {rank}")
            what = f"{told} in a window in which no target counts: rank {rank}"
            _judge_stop_between(each, sum(counts[:before]), what)


_PLACES = {
    "window": "in the middle of the first epoch",
    "last": "in the last window of the first epoch",
    "validation": "during the first validation",
}
_RUN = ("epochs", "validations", "ended", "optimizer_steps", "best_epoch")


def _require_run(told: Any, uninterrupted: Any, what: str) -> None:
    for name in _RUN:
        require_equal(
            told[name],
            uninterrupted[name],
            what=f"{what}: TrainerRun.{name} against an uninterrupted run",
            hint="what an epoch had summed up belongs to the checkpoint, and what fit() has made, too",
        )


def _judge_stop(seen: Seen, place: str, between: tuple[int, int], batches: int, what: str) -> None:
    """SIGTERM came in the first epoch; the run should stop `between` so many batches; a new trainer went on."""
    found = seen[place]
    stopped = found["stopped"]
    require_equal(found["received"], 0, what=f"{what}: times that SIGTERM went past fit()")
    require_equal(stopped["ended"], "signal", what=f"{what}: TrainerRun.ended")
    least, most = between
    require_between(
        found["before"],
        least,
        most,
        what=f"{what}: batches before it stopped",
        expected=str(most) if least == most else f"{least} to {most}",
        hint="at most one window follows: look after each window whether any rank was told to stop; every rank must "
        "come to the same answer",
    )
    complete = int(place != "window")
    require_equal(
        [len(stopped["epochs"]), len(stopped["validations"])],
        [complete, complete],
        what=f"{what}: complete epochs, and validations, in the TrainerRun of the run that stopped",
        hint="an epoch whose last window is finished is complete, and is validated, be somebody told to stop or not",
    )
    require_equal(
        len(seen[f"{place}_seen"]["seen"]),
        batches - found["before"],
        what=f"{what}, then fit() by a new trainer: batches that were left for it",
        hint="a checkpoint is saved before the run ends",
    )
    require_same(seen, f"{what}, then fit() by a new trainer", f"{place}_seen")
    _require_run(found["again"], seen.uninterrupted, f"{what}, then fit() by a new trainer")


def _judge_later_fits(seen: Seen, what: str) -> None:
    """SIGTERM came twice to every rank: in the first epoch, in the last window of the second, and in the very last."""
    runs = seen.again["runs"]
    require_equal(seen.again["received"], 0, what=f"{what}: times that SIGTERM went past fit()")
    wanted = (
        ("SIGTERM (twice, to every rank) in the middle of the first epoch", 0, "signal"),
        ("SIGTERM (twice, to every rank) in the last window of the second epoch", 2, "signal"),
        ("SIGTERM (twice, to every rank) in the very last window", 3, "finished"),
        ("nobody told to stop, and nothing left to train", 3, "finished"),
    )
    for number, (run, (when, complete, ended)) in enumerate(zip(runs, wanted, strict=True), 1):
        require_equal(
            [run["ended"], len(run["epochs"]), len(run["validations"])],
            [ended, complete, complete],
            what=f"{what}; call number {number}, {when}: TrainerRun.ended, complete epochs, validations",
            hint="a stop ends the fit() that it came to, and not the next one, which goes on from there",
        )
    require_same(seen, what, "again_seen")
    _require_run(runs[-1], seen.uninterrupted, what)


def _judge_stop_between(seen: Seen, steps: int, what: str) -> None:
    """SIGTERM came in a window that moves nothing, after so many `steps`."""
    found = seen.between
    stopped = found["stopped"]
    require_equal(found["received"], 0, what=f"{what}: times that SIGTERM went past fit()")
    require_equal(
        [stopped["ended"], stopped["optimizer_steps"], len(stopped["epochs"])],
        ["signal", steps, 0],
        what=f"{what}: TrainerRun.ended, optimizer_steps, complete epochs",
        hint="a window that is left out is a window, too: the run ends after it",
    )
    require_equal(found["files"], [f"step-{steps:08d}.pt"], what=f"{what}: checkpoints when it has stopped")
    _require_run(found["again"], found["uninterrupted"], f"{what}, then fit() by a new trainer")
    require_arrays_close(
        seen["between/weights/1"],
        seen["between/weights/0"],
        rtol=0,
        what=f"{what}, then fit() by a new trainer: weights against those of an uninterrupted run",
    )


def judge_schedule(submission: Submission, fresh: Fresh) -> None:
    """Fail unless warm-up, cosine and end meet where they should, whatever their lengths."""
    total, lowest = fresh.integer(5, 40), fresh.uniform(0.05, 0.6)
    cases: list[dict[str, Any]] = [
        {"step": step, "warmup_steps": warmup, "total_steps": total, "minimum_ratio": lowest}
        for warmup in (0, 1, fresh.integer(2, total - 2), total - 1, total)
        for step in sorted(
            {0, warmup - 1, warmup, (warmup + total) // 2, total - 1, total, total + 1, 3 * total} - {-1}
        )
    ]
    cases += [_moment(fresh, row) for row in full_rows(fresh.shared("lab5.schedules"), _SCHEDULES, 5, _is_one)]
    seen = submission.probe("lab5.pipeline.schedule", device="cpu", cases=cases)
    for each, factor in zip(cases, seen.factors, strict=True):
        given = ", ".join(f"{name}={value:.4g}" for name, value in each.items())
        config = {"learning_rate": 1.0, "minimum_ratio": 0.0, **each}
        require_close(
            factor, rate(config, each["step"], each["total_steps"]), relative=1e-9,
            what=f"warmup_cosine({given})",
            hint="warm-up, then the cosine, then the minimum; any of them may take no step",
        )  # fmt: skip


_SCHEDULES = {
    "warmup": ("none", "one", "some", "all"),
    "total": ("one", "several"),
    "minimum": ("not given", 0.0, "some", 1.0),
    "step": ("first", "in the middle", "last", "after the end", "long after"),
}


def _is_one(row: Mapping[str, Any]) -> bool:
    """In a schedule of a single step, warm-up takes it or not, and it is the first."""
    inside = row["warmup"] in ("none", "all") and row["step"] not in ("in the middle", "last")
    return inside or row["total"] == "several"


def _moment(fresh: Fresh, row: dict[str, Any]) -> dict[str, Any]:
    """A step of a schedule."""
    total = 1 if row["total"] == "one" else fresh.integer(4, 40)
    warmup = {"none": 0, "one": 1, "some": fresh.integer(2, 3), "all": total}[row["warmup"]]
    places = {"first": 0, "in the middle": total // 2, "last": total - 1, "after the end": total}
    given: dict[str, Any] = {"step": places.get(row["step"], 3 * total), "warmup_steps": warmup, "total_steps": total}
    if row["minimum"] != "not given":
        given["minimum_ratio"] = fresh.uniform(0.05, 0.6) if row["minimum"] == "some" else row["minimum"]
    return given


def judge_early(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a run stops when patience ends, and best.pt is that of its best epoch."""
    arguments = case(fresh.shared("lab5.early")).given()
    del arguments["batch_size"]
    rows = full_rows(fresh.shared("lab5.patience"), _PATIENCE, 5, _goes_on)
    # A patience of 1 does not tell a count that starts in the first epoch from one that starts anew in each.
    rows.append({"patience": fresh.integer(2, 3), "best": "none", "then": "no number", "left": True})
    cases = [_until_it_stops(fresh, row) for row in rows]
    asked = [{name: each[name] for name in ("losses", "patience")} for each in cases]
    runs = submission.probe("lab5.resume.early", device="cpu", **arguments, cases=asked).runs
    for each, (first, second) in zip(cases, runs, strict=True):
        best, patience = each["best"], each["patience"]
        epochs = (0 if best is None else best + 1) + patience
        shown = ["NaN" if loss is None else round(loss, 2) for loss in each["losses"][:epochs]]
        last = len(each["losses"]) == epochs
        what = f"fit() with patience {patience} and validation losses {shown}, then "
        what += "no epoch is left" if last else "lower"
        for run, name in ((first, what), (second, f"{what}; started again")):
            require_equal(
                [run["ended"], run["epochs"], run["best_epoch"]],
                ["finished" if last else "early", epochs, best],
                what=f"{name}: TrainerRun.ended, epochs, best_epoch",
                hint="an equal loss is not lower; the count begins anew with each lower one, and survives a "
                "resume; a loss that is not a number is never the lowest",
            )
            require_equal(
                run["best"],
                None if best is None else [best, 0.0],
                what=f"{name}: epoch in best.pt, and how far its parameters are from those validated in it",
                hint="the parameters of the best epoch so far, written when it was the best",
            )
        require_equal(second["batches"], 0, what="batches trained by a run that had stopped early before")


_PATIENCE = {
    "patience": (1, 2, 3),
    "best": ("first", "later", "none"),
    "then": ("equal", "no number", "higher"),
    "left": (True, False),
}


def _goes_on(row: Mapping[str, Any]) -> bool:
    """Where none is a number, the next is none either."""
    return bool(row["best"] != "none" or row["then"] == "no number")


def _until_it_stops(fresh: Fresh, row: dict[str, Any]) -> dict[str, Any]:
    """Validation losses: up and down to the `best`, then `patience` that are not lower, one no number.

    Then lower, where epochs are `left`; else both end at once. Before the best, fewer than `patience` in a row are not
    lower. Where none is a number, there is no best.
    """
    patience = row["patience"]
    left = [0.1, 0.1, 0.1] if row["left"] else []
    if row["best"] == "none":
        return {"losses": [None] * patience + left, "patience": patience, "best": None}
    best = 0 if row["best"] == "first" else fresh.integer(1, 6)
    lowest = fresh.uniform(0.5, 0.6)
    losses, missed = [lowest + 0.5] * min(best, 1), 0
    for _ in range(best - 1):
        missed = missed + 1 if missed < patience - 1 and fresh.integer(0, 1) else 0
        losses.append(min(losses) + fresh.uniform(0.01, 0.05) * (1 if missed else -1))
    kinds = {"equal": lowest, "no number": None, "higher": lowest + 0.1}
    then = [kinds.pop(row["then"]), *fresh.shuffled(list(kinds.values()))]
    return {"losses": [*losses, lowest, *then[:patience], *left], "patience": patience, "best": best}
