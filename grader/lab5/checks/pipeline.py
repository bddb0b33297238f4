"""Judges Lab 5's trainer: its steps, its validation, what it writes, and that a run in two parts has the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.assertions import (
    CheckFailed,
    number,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.checks import report as lab5_report
from grader.lab5.truth.training import Case, case, rate, windows

RTOL = 1e-9
"""Of weights in float64: right ones agree to 1e-14, the smallest mistake of the planted ones is 1e-3."""
LOW_RTOL = 0.05
"""Of the way the weights move in float16 and bfloat16: right ones are off by 0.0002 to 0.002, those of a gradient that
was clipped before it was unscaled by 1."""
_STATES = "model, optimizer, scheduler, scaler, steps, random numbers of each rank, the loader's position"


def stepped(submission: Submission, fresh: Fresh, ranks: int) -> tuple[Case, list[Seen]]:
    """Two epochs of `train_epoch` on so many ranks."""
    given = case(fresh.shared(f"lab5.steps{ranks}"), ranks=ranks)
    return given, submission.rank_probe("lab5.pipeline.steps", ranks, device="cpu", **given.given())


def require_same(seen: Seen, what: str) -> None:
    """Fail unless the resumed run ended as the uninterrupted one did, bit for bit; says what differs first."""
    expected, found = seen.expected, seen.seen
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
        seen["seen/weight"],
        seen["expected/weight"],
        rtol=0,
        what=f"{what}: weights against those of an uninterrupted run",
        hint=f"they must be the same bits. A checkpoint holds {_STATES}; dropout draws from the random numbers",
    )
    for name, means in (("model", "model's"), ("optimizer", "optimizer's")):
        require_equal(found[name], expected[name], what=f"{what}: hash of the {means} state")
    require_equal(
        found["random"], expected["random"], what=f"{what}: the next random numbers of PyTorch and Python",
        hint="capture_random_state last before writing, restore_random_state last when loading",
    )  # fmt: skip


@criterion("lab5.pipeline")
class TestPipeline:
    def test_configuration_kept(self, submission: Submission, fresh: Fresh) -> None:
        """Keeps its configuration, and refuses a bad one."""
        values = {
            "output_dir": f'a "quoted" \\ folder {fresh.integer(1, 99)}',
            "learning_rate": fresh.log_uniform(1e-7, 1e-1),
            "epochs": fresh.integer(2, 90),
            "max_grad_norm": fresh.uniform(0.1, 2.0),
            "deterministic": True,
            "dtype": "bfloat16",
        }
        unknown = [f"{name}_{fresh.integer(100, 999)}" for name in ("lerning_rate", "warm_up")]
        given = fresh.shuffled(
            [
                (f"epochs = 4\n{unknown[0]} = 0.1\n{unknown[1]} = 3\n", "two unknown keys"),
                ('epochs = "four"\n', "a string for epochs"),
                ("epochs = \n", "text that is no TOML"),
                ("epochs = 0\n", "epochs = 0"),
                (f"epochs = {-fresh.integer(1, 9)}\n", "epochs below 0"),
                *((f"learning_rate = {fresh.integer(1, 9)}\n", "") for _ in range(3)),
            ]
        )
        texts = [text for text, _ in given]
        seen = submission.probe("lab5.pipeline.configuration", device="cpu", texts=texts, settings=values)
        for name, value in values.items():
            require_equal(seen.loaded[name], value, what=f"TrainerConfig.{name} after save() and load()")
        for name in ("patience", "save_every_steps"):
            require_equal(seen.loaded[name], None, what=f"TrainerConfig.{name}, None when saved, after load()")
        for (text, why), outcome in zip(given, seen.outcomes, strict=True):
            about = f" with {why}" if why else ""
            wanted = "ConfigError" if why else ""
            require_equal(outcome["error"], wanted, what=f"TrainerConfig.load() of a file{about} ({text!r}) raised")
            if why == "two unknown keys":
                message = outcome["message"]
                require(
                    all(name in message for name in unknown),
                    f"the error of a file with the unknown keys {' and '.join(unknown)} says: {message[:200]!r}",
                    "name every unknown key in one message: who misspelled two wants to correct both",
                )

    def test_steps_follow_the_mean_gradient(self, submission: Submission, fresh: Fresh) -> None:
        """Follows the mean gradient of each window."""
        for ranks in (1, 2):
            given, seen = stepped(submission, fresh, ranks)
            numbers = [each.seen for each in seen]
            what = f"train_epoch() twice on {ranks} rank{'s' if ranks > 1 else ''}, windows of 3 batches, the last of 2"
            for rank, each in enumerate(numbers):
                require_equal(
                    len(each), 2 * given.batches(ranks), what=f"{what}: batches that rank {rank} went through"
                )
            steps = windows(numbers, given.batches(ranks), 3)
            expected = given.follow(steps, given.total_steps(ranks))
            require(max(expected.norms) > 1.5 * given.config["max_grad_norm"], "the case itself clips nothing")
            for rank, each in enumerate(seen):
                require_equal(each.steps, len(steps), what=f"{what}: ProductionTrainer.steps of rank {rank}")
                require_arrays_close(
                    each.weight,
                    expected.weight,
                    rtol=RTOL,
                    atol=RTOL,
                    what=f"{what}: weights of rank {rank}",
                    hint="the mean over all samples of the window on all ranks (the last window is shorter, and so is "
                    "its last batch), clipped once as a whole, then one step at the scheduled rate",
                )
                for epoch, result in enumerate(each.results):
                    require_equal(
                        [result[name] for name in ("epoch", "complete", "samples", "optimizer_steps", "skipped_steps")],
                        [epoch, True, len(given.inputs), len(steps) // 2, 0],
                        what=f"{what}: epoch, complete, samples, optimizer_steps and skipped_steps on rank {rank}",
                    )
                if ranks > 1:
                    require_between(
                        each.reduced_bytes / (each.gradient_bytes * len(steps)),
                        1.0,
                        1.99,
                        what=f"{what}: bytes reduced, in gradients per optimizer step",
                        expected="1, and a little for counts",
                        hint="no_sync() around forward and backward of all batches of a window but the last",
                    )

    def test_learning_rate_per_optimizer_step(self, submission: Submission, fresh: Fresh) -> None:
        """Schedules the rate by optimizer steps."""
        given, (seen,) = stepped(submission, fresh, 1)
        total = given.total_steps(1)
        require_equal(
            len(seen.rates), total, what="optimizer steps in 2 epochs of 5 batches, 3 to a step (2 at the end)"
        )
        for index, observed in enumerate(seen.rates):
            require_close(
                observed,
                rate(given.config, index, total),
                relative=1e-6,
                what=f"learning rate of optimizer step {index} of {total} (warm-up of 2 steps, then half a cosine)",
                hint="the schedule counts optimizer steps, not batches; the first step already has a rate above 0",
            )

    def test_overflow_leaves_everything_alone(self, submission: Submission, fresh: Fresh) -> None:
        """Changes nothing in an overflowing step."""
        given = case(fresh.shared("lab5.mixed"), epochs=3, accumulation=1)
        total = given.total_steps(1)
        scale = 2.0**18
        seen = submission.numeric_probe("lab5.pipeline.mixed", **given.given(initial_scale=scale))
        for dtype in ("float16", "bfloat16"):
            run = seen[dtype]
            made, left_out = (
                sum(number(each[name], name) for each in run["results"])
                for name in ("optimizer_steps", "skipped_steps")
            )
            what = f"train_epoch() in {dtype}" + (", whose first steps overflow" if dtype == "float16" else "")
            require_equal(sorted(set(run["products"])), [dtype], what=f"{what}: dtype of the products")
            require_equal(run["parameter_dtype"], "float32", what=f"{what}: dtype of the parameters")
            require_equal(
                [made, run["steps"], made + left_out],
                [len(run["rates"]), len(run["rates"]), total],
                what=f"{what}: optimizer_steps, ProductionTrainer.steps, and optimizer_steps + skipped_steps",
                hint="a step that the scaler left out is not an optimizer step",
            )
            if dtype == "float16":
                require(left_out >= 1, f"{what}: no step was left out, at a loss scale of 2^18")
                require(made >= 1, f"{what}: every step was left out")
                after = f"{what}: loss scale after {left_out} overflows"
                require_equal(run["scale"], scale * 0.5**left_out, what=after)
            else:
                require(run["scale"] in (None, 1.0), f"{what}: the loss is scaled by {run['scale']}", "it need not be")
            expected_weight = given.follow([run["seen"][index] for index in run["taken"]], total).weight
            moved = expected_weight - np.asarray(given.weight, np.float64)
            apart = float(np.linalg.norm(seen[f"{dtype}/weight"] - expected_weight) / np.linalg.norm(moved))
            require(
                apart < LOW_RTOL,
                f"{what}: the weights end {apart:.3g} times the way that they should have moved away from where they "
                f"should be, expected less than {LOW_RTOL} (rounding)",
                "unscale the gradients before they are clipped: max_grad_norm is meant for the gradient itself",
            )
            for index, observed in enumerate([*run["rates"], run["next_rate"]]):
                require_close(
                    observed,
                    rate(given.config, index, total),
                    relative=1e-6,
                    what=f"{what}: learning rate of the step that was taken as number {index}",
                    hint="a skipped step does not move the schedule",
                )

    def test_validation_weighs_samples(self, submission: Submission, fresh: Fresh) -> None:
        """Weighs all samples alike in validation."""
        classes, large = fresh.integer(3, 5), fresh.odd(9, 15)
        for sizes in ([[large, large, 1]], [[large, 2], [3]]):
            samples, ranks = sum(map(sum, sizes)), len(sizes)
            name = fresh.shared(f"lab5.validate{ranks}")
            logits = name.normal(samples, classes) * 2
            targets = np.array([name.integer(0, classes - 1) for _ in range(samples)])
            logits[-1, targets[-1]] -= 9.0  # the last, smallest batch is the worst
            seen = submission.rank_probe(
                "lab5.pipeline.validate", ranks, device="cpu", logits=logits, targets=targets, sizes=sizes,
                config={"epochs": 1},
            )  # fmt: skip
            shifted = logits.astype(np.float64)
            loss = float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(samples), targets]))
            right = float(np.mean(shifted.argmax(1) == targets))
            for rank, each in enumerate(seen):
                for mode in ("training", "evaluation"):
                    run = each[mode]
                    what = f"validate() on batches of {sizes} samples by rank, rank {rank}"
                    require_equal(run["result"]["samples"], samples, what=f"{what}: samples")
                    require_close(
                        run["result"]["loss"],
                        loss,
                        relative=1e-6,
                        what=f"{what}: loss",
                        hint="sum up mean loss times samples over all batches and ranks, then divide once; no dropout; "
                        "buffers of rank 0",
                    )
                    require_close(run["result"]["accuracy"], right, relative=1e-6, what=f"{what}: accuracy")
                    require_equal(
                        set(run["modes"]) == {mode == "training"},
                        True,
                        what=f"{what}: model in {mode} mode before and after",
                        hint="after eval(), train() again if it was training",
                    )
                require_equal(each.graphs, 0, what="outputs of validate() that hold a graph", hint="torch.no_grad()")

    def test_resumed_run_has_the_same_bits(self, submission: Submission, fresh: Fresh) -> None:
        """Resumes with the same bits."""
        for dtype in ("float32", "float16"):
            shared = fresh.shared(f"lab5.resume.{dtype}")
            given = case(shared, epochs=shared.integer(4, 6), accumulation=2)
            epochs, stop = given.config["epochs"], shared.integer(1, 3)
            arguments = given.given(initial_scale=2.0**18)
            seen = submission.numeric_probe("lab5.resume.resume", **_on(dtype), **arguments, stop=stop, dtype=dtype)
            what = f"{stop} epochs + save, load + {epochs - stop} epochs in {dtype} with dropout"
            require_equal(seen.begin, stop, what=f"{what}: epoch that load_checkpoint() said comes next")
            require_same(seen, what)
            require_equal(seen.resumed, seen.results[stop:], what=f"{what}: what train_epoch() returned afterwards")

    def test_goes_on_after_sigterm(self, submission: Submission, fresh: Fresh) -> None:
        """Stops on SIGTERM, and goes on from there."""
        for ranks in (1, 2):
            shared = fresh.shared(f"lab5.sigterm{ranks}")
            given = case(shared, ranks=ranks, epochs=3, accumulation=2)
            arguments = given.given(save_every_steps=2)
            # In the first epoch of the last rank, but not in its last window: there the epoch would be complete.
            at = shared.integer(2, 3 * given.batch_size)
            seen = submission.rank_probe(
                "lab5.resume.terminated", ranks, device="cpu", **arguments, at=at, signalled=ranks - 1
            )
            for rank, each in enumerate(seen):
                what = f"fit() on {ranks} rank{'s' if ranks > 1 else ''}, SIGTERM to rank {ranks - 1}: rank {rank}"
                require_equal(each.received, 0, what=f"{what}: times that SIGTERM went past fit()")
                require_equal(each.stopped["ended"], "signal", what=f"{what}: TrainerRun.ended")
                batches = given.batches(ranks)
                require(
                    each.before < batches,
                    f"{what}: {each.before} batches before it stopped, though the signal came in the first {batches}",
                    "look after each window whether any rank was told to stop; every rank must come to the same answer",
                )
                require_same(each, f"{what}, then fit() by a new trainer")
                for name in ("epochs", "validations", "ended", "optimizer_steps", "best_epoch"):
                    require_equal(
                        each.again[name],
                        each.uninterrupted[name],
                        what=f"{what}, then fit() by a new trainer: TrainerRun.{name} against an uninterrupted run",
                        hint="what an epoch had summed up belongs to the checkpoint, and what fit() has made, too",
                    )

    @requires("resumed_run_has_the_same_bits")
    def test_resumed_on_every_rank(self, submission: Submission, fresh: Fresh) -> None:
        """Resumes with the same bits on every rank."""
        given = case(fresh.shared("lab5.ranks"), ranks=2, epochs=4, accumulation=2)
        for rank, each in enumerate(
            submission.rank_probe("lab5.resume.resume", 2, device="cpu", **given.given(), stop=2)
        ):
            require_same(each, f"2 epochs + save, load + 2 epochs on 2 ranks with dropout: rank {rank}")

    def test_stops_early(self, submission: Submission, fresh: Fresh) -> None:
        """Stops early when the loss no longer falls."""
        arguments = case(fresh.shared("lab5.early")).given()
        del arguments["batch_size"]
        cases = [_until_it_stops(fresh) for _ in range(3)]
        asked = [{name: each[name] for name in ("losses", "patience")} for each in cases]
        runs = submission.probe("lab5.resume.early", device="cpu", **arguments, cases=asked).runs
        for each, (first, second) in zip(cases, runs, strict=True):
            best, patience = each["best"], each["patience"]
            epochs = best + 1 + patience
            shown = [round(loss, 2) for loss in each["losses"][:epochs]]
            what = f"fit() with patience {patience} and validation losses {shown}, then lower"
            for run, name in ((first["run"], what), (second["run"], f"{what}; started again")):
                require_equal(
                    [run["ended"], len(run["epochs"]), run["best_epoch"]],
                    ["early", epochs, best],
                    what=f"{name}: TrainerRun.ended, epochs, best_epoch",
                    hint="an equal loss is not lower; the count begins anew with each lower one, and survives a resume",
                )
            require_equal(second["batches"], 0, what="batches trained by a run that had stopped early before")

    def test_killed_while_saving_loses_nothing(self, submission: Submission, fresh: Fresh) -> None:
        """Loses nothing when killed while saving."""
        steps = [fresh.integer(1, 9), fresh.integer(10, 99), fresh.integer(100, 900)]
        killed = steps[-1] + fresh.integer(1, 9)
        later = killed + fresh.integer(1, 9)
        seen = submission.probe("lab5.resume.saving", device="cpu", steps=steps, killed=killed, later=later)
        name = "step-{:08d}.pt".format
        _, second, third = steps
        require_equal(seen.none, None, what="latest_checkpoint() of a folder that is not there")
        require_equal(
            seen.kept, [name(second), name(third)], what=f"files after checkpoints of steps {steps} with keep=2"
        )
        require(
            bool(seen.killed),
            "write_checkpoint() neither forced anything to the disk nor gave a file its name with os.replace",
            "write beside it, os.fsync, then os.replace",
        )
        require_equal(
            seen.after_kill,
            name(third),
            what=f"latest_checkpoint() after a process was killed writing step {killed}",
            hint="write under another name beside it: a file gets its own name when its content is complete",
        )
        require_equal(
            seen.cleaned,
            [name(third), name(later)],
            what=f"files after checkpoint {later}, written after that",
            hint="what a killed process left behind goes with the next write",
        )
        order = [event for event in seen.synced if event in ("file", "name")]
        require(
            "file" in order and order.index("file") < (order.index("name") if "name" in order else len(order)),
            f"write_checkpoint() forced to the disk or renamed, in this order: {seen.synced}",
            "os.fsync the temporary file first, then os.replace it, then os.fsync the folder: a rename may otherwise "
            "reach the disk before the content does",
        )
        require(bool(seen.failed), "write_checkpoint() said nothing although the disk was full in the middle")
        require_equal(
            seen.after_failure, [name(third), name(later)], what="files after a write that failed half-way",
            hint="remove the temporary file, and old checkpoints only after the new one is complete",
        )  # fmt: skip
        require_equal(
            [seen.newest, seen.steps], [name(later), later],
            what="latest_checkpoint(), and the steps in it, after a write over it that failed",
            hint="write beside it, then os.replace",
        )  # fmt: skip
        require_equal(
            seen.older,
            name(later),
            what="latest_checkpoint() where the newest file is cut in two, and an old one touched",
        )

    def test_rank_zero_logs(self, submission: Submission, fresh: Fresh) -> None:
        """Logs from rank 0 alone."""
        given = case(fresh.shared("lab5.logs"), ranks=2, epochs=2)
        seen = submission.rank_probe("lab5.pipeline.logged", 2, device="cpu", **given.given(log_every_steps=1))
        first, second = seen
        require_equal(
            second.files, [], what="files that rank 1 made in fit() (here each rank has a working folder of its own)"
        )
        total = given.total_steps(2)
        steps = list(range(1, total + 1))
        for tag in ("train/loss", "train/learning_rate", "train/grad_norm", "train/samples_per_second"):
            found = [int(step) for step, _ in first.entries.get(tag, [])]
            require_equal(found, steps, what=f"steps of TensorBoard's {tag}, one entry per step")
        for index, (_, value) in enumerate(first.entries.get("train/learning_rate", [])):
            require_close(
                value, rate(given.config, index, total), relative=1e-5, what=f"train/learning_rate of step {index + 1}"
            )
        validations = first.run["validations"]
        require_equal(len(validations), 2, what="length of TrainerRun.validations of 2 epochs")
        losses = [number(test["loss"], "loss in TrainerRun.validations") for test in validations]
        found = first.entries.get("validation/loss", [])
        steps = [int(step) for step, _ in found]
        require_equal(steps, [total // 2, total], what="steps of TensorBoard's validation/loss")
        for (_, value), loss in zip(found, losses, strict=True):
            require_close(value, loss, relative=1e-5, what="validation/loss in TensorBoard")

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Writes a report that agrees with the results."""
        lab5_report.judge(submission)


def _until_it_stops(fresh: Fresh) -> dict[str, Any]:
    """Validation losses: up and down to the `best`, then `patience` that are not lower, one of them equal; then lower.

    Before the best, fewer than `patience` in a row are not lower.
    """
    patience, best = fresh.integer(2, 3), fresh.integer(1, 6)
    lowest = fresh.uniform(0.5, 0.6)
    losses, missed = [lowest + 0.5], 0
    for _ in range(best - 1):
        missed = missed + 1 if missed < patience - 1 and fresh.integer(0, 1) else 0
        losses.append(min(losses) + fresh.uniform(0.01, 0.05) * (1 if missed else -1))
    after = fresh.shuffled([lowest, *[lowest + 0.1] * (patience - 1)])
    return {"losses": [*losses, lowest, *after, 0.1, 0.1, 0.1], "patience": patience, "best": best}


def _on(dtype: str) -> dict[str, Any]:
    """float64 needs no GPU; FP16 is graded on the grading device."""
    return {"device": "cpu"} if dtype == "float32" else {}
