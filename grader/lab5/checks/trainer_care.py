"""Judges of Lab 5's trainer: targets that do not count, generators, entries of the log. `pipeline.py` asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradebox.assertions import (
    Cause,
    number,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.truth import tokens
from grader.lab5.truth import validations as validation_cases
from grader.lab5.truth.epochs import Epochs
from grader.lab5.truth.training import Case, rate, windows
from grader.lab5.truth.validations import Validation

RTOL = 1e-9
SINGLE = 1e-5
"""TensorBoard keeps float32."""
ROUNDING = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1e-5}
"""By dtype: of weights and of losses. Right ones differ by 1e-14 and 3e-6 of the largest; outputs of a validation in
bfloat16 are exact, and its loss is computed in float32."""
TAGS = ("train/loss", "train/learning_rate", "train/grad_norm", "train/samples_per_second")
COARSER = Cause(
    "float64_made_coarser",
    "float16 and bfloat16 become float32; what is finer stays as it is",
    "lab5.pipeline.steps_follow_the_mean_gradient",
)
_FLOAT32 = 1e-6
"""Relative: so far a number may be off that was float32 on the way."""
_GENERATORS = {"torch": "PyTorch's", "numpy": "NumPy's", "python": "Python's", "cuda": "the GPU's"}
_SETTERS = {
    "torch": "torch.set_rng_state",
    "numpy": "numpy.random.set_state",
    "python": "random.setstate",
    "cuda": "torch.cuda.set_rng_state",
}


def is_rounded(told: Any, exact: float) -> bool:
    """Whether a number is as near to another as float32 comes, and no nearer than that needs."""
    return isinstance(told, float) and abs(told - exact) <= _FLOAT32 * abs(exact)


def _restoring(name: str) -> str:
    return f"{_SETTERS[name]} puts back what the checkpoint holds of it: all of its state, after everything else"


def tagged(submission: Submission, fresh: Fresh) -> tuple[tokens.Tokens, list[Seen]]:
    """An epoch over sequences, and a validation; the same for all checks of a grading."""
    given = tokens.draw(fresh.shared("lab5.tokens"))
    return given, submission.rank_probe("lab5.counting.tokens", 2, device="cpu", **given.given())


def require_counted_targets(submission: Submission, fresh: Fresh) -> None:
    """Fail unless targets of -100 count nowhere, and a window without any other is left out."""
    given, seen = tagged(submission, fresh)
    wanted = tokens.follow(given)
    what = "train_epoch() on 2 ranks over sequences, windows of 2 batches; in the first window no target of rank 0's "
    what += "first batch counts, in the second none at all"
    for rank, each in enumerate(seen):
        require_equal(
            [each.result[name] for name in ("samples", "optimizer_steps", "skipped_steps")],
            [wanted.counted, 2, 1],
            what=f"{what}: samples, optimizer_steps and skipped_steps on rank {rank}",
            hint="targets of -100 do not count; a window without any other moves nothing, and counts as skipped",
        )
        require_equal(each.steps, 2, what=f"{what}: ProductionTrainer.steps")
        moved = rate(given.config, 2, tokens.WINDOWS)
        require_close(each.next_rate, moved, relative=1e-6, what=f"{what}: learning rate of the next step")
        require_arrays_close(
            each.weight,
            wanted.weight,
            rtol=RTOL,
            atol=RTOL,
            what=f"{what}: weights of rank {rank}",
            hint="weigh each batch by the targets that count, and divide by those of the window on all ranks",
        )
        require_close(each.result["loss"], wanted.loss, relative=1e-6, what=f"{what}: EpochResult.loss")


def require_epochs(run: Epochs, seen: Sequence[Seen], place: int) -> None:
    """Fail unless all ranks made what follows from their batches, in the run at this `place` of their request."""
    told = [each.runs[place] for each in seen]
    wanted, exactly = run.follow(), run.follow(beyond=0.0).weight
    slack = ROUNDING[run.dtype]
    # Clipped exactly, or as PyTorch does it: both are right.
    either = 2 * float(np.abs(exactly - wanted.weight).max()) + slack * float(np.abs(wanted.weight).max())
    for rank, each in enumerate(told):
        what = f"{run.told()}; rank {rank}"
        require_equal(each["steps"], len(wanted.steps), what=f"{what}: ProductionTrainer.steps")
        require_equal(len(each["results"]), len(wanted.epochs), what=f"{what}: epochs that went through batches")
        for epoch, (result, sums) in enumerate(zip(each["results"], wanted.epochs, strict=True)):
            require_equal(
                [result[name] for name in ("samples", "optimizer_steps", "skipped_steps")],
                [sums.samples, sums.taken, sums.skipped],
                what=f"{what}: samples, optimizer_steps and skipped_steps of epoch {epoch}",
                hint="targets of -100 do not count; a window without any other moves nothing, and counts as skipped",
            )
            if sums.samples:
                loss = number(result["loss"], f"{what}: loss of epoch {epoch}")
                require_close(
                    loss, sums.loss / sums.samples, relative=slack + 1e-6, what=f"{what}: loss of epoch {epoch}"
                )
            else:
                require_equal(result["loss"], None, what=f"{what}: loss of epoch {epoch}, in which nothing counts")
        require_arrays_close(
            seen[rank][f"runs/{place}/weight"],
            wanted.weight,
            rtol=0,
            atol=either,
            what=f"{what}: weights",
            hint="the mean over all that counts in the window on all ranks, clipped once as a whole, then one step at "
            "the scheduled rate",
        )
    every = run.config["log_every_steps"]
    require_told(told[0]["told"], wanted.steps, every, slack + SINGLE, f"{run.told()}; rank 0")
    for each in told[1:]:
        require_equal(each["told"], [], what=f"{run.told()}: metrics that the `monitor` of rank 1 was told")


def require_told(
    told: Sequence[Any], steps: Sequence[tuple[float, float, float]], every: int, slack: float, what: str
) -> None:
    """Fail unless a `monitor` was told loss, rate and norm of every so many `steps` that were taken."""
    wanted = list(range(every, len(steps) + 1, every))
    require_equal(
        sorted({int(step) for step, _ in told}),
        wanted,
        what=f"{what}: steps that `monitor` was told of",
        hint="after every log_every_steps steps that the optimizer took; a window that was left out is none",
    )
    names = ("train/loss", "train/learning_rate", "train/grad_norm")
    hints = (
        "of that window: the mean over what counts in it, on all ranks",
        "of the step that was made, not of the next one",
        "of the gradient itself, unscaled, before clipping, and where nothing is clipped, too",
    )
    largest = [max(column, default=0.0) for column in zip(*steps, strict=True)]
    for step in wanted:
        found = [float(value) for at, values in told if int(at) == step for value in values]
        require_equal(len(found), 4, what=f"{what}: metrics of step {step} that `monitor` was told")
        for name, value, most, hint in zip(names, steps[step - 1], largest, hints, strict=True):
            nearest = min(found, key=lambda each: abs(each - value))
            require_between(
                nearest,
                value - slack * most,
                value + slack * most,
                what=f"{what}: {name} of step {step} (of the metrics that `monitor` was told, the nearest to it)",
                expected=f"{value:.4g}",
                hint=hint,
            )


def validations(fresh: Fresh) -> list[Validation]:
    """The same for all checks of a grading."""
    return validation_cases.draw(fresh.shared("lab5.validations"))


def require_validation(given: Validation, told: dict[str, Any], rank: int) -> None:
    """Fail unless `validate` counts what counts, weighs it equally, and knows what an accuracy is of."""
    what = f"{given.told()}, rank {rank}"
    samples, loss, accuracy = given.truth()
    require_equal(told["samples"], samples, what=f"{what}: samples", hint="what counts: see count_targets")
    require_close(
        number(told["loss"], f"{what}: loss"),
        loss,
        relative=ROUNDING[given.dtype],
        what=f"{what}: loss",
        hint=COARSER
        if given.dtype == "float64" and is_rounded(told["loss"], loss)
        else "sum up mean loss times what counts over all batches and ranks, then divide once; buffers of rank 0",
    )
    if accuracy is None:
        require_equal(
            told["accuracy"], None, what=f"{what}: accuracy", hint="only of outputs [N, classes], and of classes"
        )
    else:
        found = number(told["accuracy"], f"{what}: accuracy")
        require_close(found, accuracy, relative=1e-6, what=f"{what}: accuracy", hint="of the targets that count")


def require_kinds(submission: Submission, fresh: Fresh) -> None:
    """Fail unless an accuracy is of classes only, on the GPU too; and an epoch in which nothing counts has no loss."""
    samples = 4 * fresh.integer(2, 4) + 1
    classes, logits = fresh.integer(3, 6), fresh.normal(samples, 6) * 2
    logits = logits[:, :classes]
    targets = np.array([fresh.integer(0, classes - 1) for _ in range(samples)])
    seen = submission.numeric_probe("lab5.counting.kinds", logits=logits, targets=targets)
    right = float(np.mean(logits.argmax(1) == targets))
    require_close(seen.classes["accuracy"], right, relative=1e-6, what="accuracy of validate() on a GPU, of classes")
    require_equal(
        seen.numbers["accuracy"], None,
        what="accuracy of validate(), where the targets are numbers (float64)", hint="only classes are right or wrong",
    )  # fmt: skip
    require_equal(
        [seen.nothing[name] for name in ("loss", "samples", "complete", "optimizer_steps", "skipped_steps")],
        [None, 0, True, 0, -(-samples // 4)],
        what="loss, samples, complete, optimizer_steps and skipped_steps of train_epoch(), where no target counts in "
        f"any of its {-(-samples // 4)} batches, each of them a window",
    )  # fmt: skip


def require_counted_validation(told: dict[str, Any], given: tokens.Tokens, ranks: int) -> None:
    """Fail unless a validation of sequences weighs the targets that count, and has no accuracy."""
    wanted = tokens.follow(given)
    what = f"validate() over sequences, most of whose targets do not count, on {ranks} ranks"
    require_equal(told["samples"], wanted.counted, what=f"{what}: samples")
    require_close(told["loss"], wanted.validation, relative=1e-6, what=f"{what}: loss")
    require_equal(told["accuracy"], None, what=f"{what}: accuracy", hint="outputs are no [N, classes]")


def require_generators(seen: Seen, what: str) -> None:
    """Fail unless saving draws nothing, and loading puts every generator back."""
    before, saved, loaded = seen.drawn
    for name, found in saved.items():
        whose = f"{what}: {_GENERATORS[name]} random numbers (a hash of their state)"
        require_equal(
            found, before[name], what=f"{whose} after save_checkpoint()", hint="saving draws no random number"
        )
    for name, found in loaded.items():
        require_equal(
            found,
            before[name],
            what=f"{what}: {_GENERATORS[name]} random numbers (a hash of their state) after load_checkpoint()",
            hint=_restoring(name),
        )


def require_same_generators(seen: Seen, what: str) -> None:
    """Fail unless the next random numbers after a run in two parts are those after a run in one."""
    for name, wanted in seen.expected["random"].items():
        found = seen.seen["random"][name]
        require_equal(
            found,
            wanted,
            what=f"{what}: {_GENERATORS[name]} random numbers in the end (a hash of their state)",
            hint=_restoring(name),
        )


def require_refusals(refused: dict[str, str]) -> None:
    """Fail unless a checkpoint that does not fit is refused, each with its own error."""
    for name, wanted in (
        ("no such file", "OSError"),
        ("a model of another shape", "RuntimeError"),
        ("a loader with other batches", "ValueError"),
    ):
        require_equal(refused.get(name), wanted, what=f"kind of load_checkpoint()'s error: {name}")


def require_entries(given: Case, seen: Sequence[Seen], every: int) -> None:
    """Fail unless rank 0's entries are of the right steps, and say what the steps were."""
    first = seen[0]
    numbers, per_epoch = [each.seen for each in seen], given.batches(len(seen))
    size, total = given.config["accumulation_steps"], given.total_steps(len(seen))
    steps = windows(numbers, per_epoch, size)
    truth = given.follow(steps, total)
    logged = list(range(every, total + 1, every))
    for tag in TAGS:
        found = [int(row[0]) for row in first.entries.get(tag, [])]
        require_equal(found, logged, what=f"steps of TensorBoard's {tag}, one entry after every {every} steps")
    wanted = {
        "train/loss": [truth.losses[step - 1] / len(steps[step - 1]) for step in logged],
        "train/learning_rate": [rate(given.config, step - 1, total) for step in logged],
        "train/grad_norm": [truth.norms[step - 1] for step in logged],
    }
    hints = {
        "train/loss": "of that window, over the samples of all ranks",
        "train/learning_rate": "of the step that was made, not of the next one",
        "train/grad_norm": "before clipping, of all parameters together",
    }
    for tag, values in wanted.items():
        for step, row, value in zip(logged, first.entries[tag], values, strict=True):
            require_close(row[1], value, relative=SINGLE, what=f"{tag} of step {step}", hint=hints[tag])
    rates = first.entries["train/samples_per_second"]
    _require_rates(rates, steps, per_epoch, size, every)
    _require_rates_begin_anew(rates, steps, -(-per_epoch // size), first.moments)
    told = {step: sorted(values) for step, *values in _by_step(first.entries)}
    require_equal(sorted({int(step) for step, _ in first.told}), sorted(told), what="steps that `monitor` was told of")
    for step in logged:
        values = [value for at, each in first.told if at == step for value in each]
        for one, other in zip(sorted(values), told[step], strict=False):
            require_close(one, other, relative=SINGLE, what=f"metrics of step {step} that `monitor` was told")
        require_equal(len(values), len(told[step]), what=f"metrics of step {step} that `monitor` was told")
    for each in seen[1:]:
        require_equal(each.told, [], what="metrics that the `monitor` of rank 1 was told")


def _require_rates(
    rows: Sequence[Sequence[float]], steps: Sequence[Sequence[int]], per_epoch: int, size: int, every: int
) -> None:
    """Most rates between two entries of an epoch are samples of all ranks by the time between the two."""
    windows_per_epoch = -(-per_epoch // size)
    ratios = []
    for (before, _, begin), (step, told, end) in pairwise(rows):
        if (int(before) - 1) // windows_per_epoch == (int(step) - 1) // windows_per_epoch:
            samples = sum(len(numbers) for numbers in steps[int(step) - every : int(step)])
            ratios.append(told * (end - begin) / samples)
    ratios.sort()
    # Each step sleeps, so moments hardly matter; the first entry waits for TensorBoard, and machines are busy.
    require_between(
        ratios[len(ratios) // 2],
        0.6,
        1.7,
        what="train/samples_per_second, by the samples of all ranks between two entries and their times (median)",
        hint="all samples since the entry before, on all ranks",
    )


def _require_rates_begin_anew(
    rows: Sequence[Sequence[float]],
    steps: Sequence[Sequence[int]],
    windows_per_epoch: int,
    moments: Sequence[tuple[str, float]],
) -> None:
    """Fail unless the first rate of each later epoch is of this epoch: its samples, and its time.

    The epoch began between the end of the last validation or saving and its first batch; the entry was made between its
    optimizer step and the moment that TensorBoard has of it. That gives limits which hold on every machine.
    """
    for (before, _, _), (step, told, written) in pairwise(rows):
        first = (int(step) - 1) // windows_per_epoch * windows_per_epoch
        past = [(what, at) for what, at in moments if at <= written]
        outside = max((index for index, (what, _) in enumerate(past) if what == "outside"), default=None)
        if before > first or outside is None:
            continue
        own = {what: [at for each, at in past[outside + 1 :] if each == what] for what in ("batch", "step")}
        if not own["batch"] or not own["step"]:
            continue  # it was validated or saved elsewhere than between the epochs: others ask for that
        samples = sum(len(numbers) for numbers in steps[first : int(step)])
        require_between(
            told,
            0.98 * samples / (written - past[outside][1]),
            1.02 * samples / (own["step"][-1] - own["batch"][0]),
            what=f"train/samples_per_second of step {int(step)}, the first entry of its epoch, by the samples of all "
            f"ranks since the epoch began ({samples}) and the time since then",
            hint="samples and clock begin anew with the epoch: validation and saving are before it",
        )


def _by_step(entries: dict[str, list[list[float]]]) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}
    for rows in entries.values():
        for step, value, _ in rows:
            found.setdefault(int(step), []).append(value)
    return [[step, *values] for step, values in found.items()]


def require_one_log(seen: Seen, every: int, total: int) -> None:
    """Fail unless a run that went back to an older checkpoint shows every step once."""
    for tag in TAGS[:3]:
        found = [int(row[0]) for row in seen.again.get(tag, [])]
        require_equal(
            found,
            list(range(every, total + 1, every)),
            what=f"steps of TensorBoard's {tag} after a run went back to an older checkpoint and on to the end",
            hint="load_checkpoint tells the log (resume_at): entries of later steps no longer count",
        )


def require_run(run: dict[str, Any], elapsed: float, given: Case, ranks: int) -> None:
    """Fail unless a `TrainerRun` says where and how it ran."""
    total = given.total_steps(ranks)
    require_equal(
        [run[name] for name in ("device", "dtype", "world_size", "ended", "optimizer_steps", "final_scale")],
        ["cpu", "float32", ranks, "finished", total, None],
        what="TrainerRun: device, dtype, world_size, ended, optimizer_steps and final_scale",
    )
    next_rate = rate(given.config, total, total)
    require_close(run["learning_rate"], next_rate, relative=1e-6, what="TrainerRun.learning_rate, of the next step")
    require_between(
        number(run["seconds"], "TrainerRun.seconds"), 0.7 * elapsed, 1.01 * elapsed, what="TrainerRun.seconds"
    )
    losses = [number(test["loss"], "loss in TrainerRun.validations") for test in run["validations"]]
    require_equal(run["best_epoch"], losses.index(min(losses)), what=f"TrainerRun.best_epoch of losses {losses}")
    require(len(losses) == given.config["epochs"], f"{len(losses)} validations of {given.config['epochs']} epochs")


def require_scaled_run(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a `TrainerRun` in float16 on the GPU says so, and tells the loss scale."""
    samples, classes = fresh.integer(9, 14), 5
    logits = fresh.normal(samples, classes) * np.float32(2)
    targets = np.array([fresh.integer(0, classes - 1) for _ in range(samples)])
    seen = submission.numeric_probe(
        "lab5.counting.scaled", logits=logits, targets=targets, halvings=fresh.integer(2, 5)
    )
    require_equal(
        [seen.run[name] for name in ("device", "dtype", "final_scale")],
        ["cuda", "float16", seen.scale],
        what="TrainerRun of a run in float16 on a GPU: device, dtype and final_scale",
        hint="trainer.scaler.get_scale() at the end",
    )
