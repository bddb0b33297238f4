"""Judges Lab 5's trainer: its steps, its validation, what it writes, and that a run in two parts has the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradebox.assertions import (
    number,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.criterion import builds_on, criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.checks import report as lab5_report
from grader.lab5.checks import trainer_care as care
from grader.lab5.checks import trainer_files as files
from grader.lab5.checks import trainer_runs as runs
from grader.lab5.truth import epochs, tokens
from grader.lab5.truth.training import Case, case, rate, scale_after, windows
from grader.shared.cases import full_rows

GROWTH = 3
"""Good steps in a row after which the loss scale grows."""
RTOL = 1e-9
"""Of weights in float64: right ones agree to 1e-14, the smallest mistake of the planted ones is 1e-3."""
LOW_RTOL = 0.05
"""Of the way the weights move in float16 and bfloat16: right ones are off by 0.0002 to 0.002, those of a gradient that
was clipped before it was unscaled by 1."""


def stepped(submission: Submission, fresh: Fresh, ranks: int) -> tuple[Case, list[epochs.Epochs], list[Seen]]:
    """Two epochs of `train_epoch` on so many ranks, and other epochs."""
    given = case(fresh.shared(f"lab5.steps{ranks}"), ranks=ranks)
    runs = [each for each in epochs.draw(fresh.shared("lab5.runs")) if each.ranks == ranks]
    options: dict[str, Any] = {**given.given(), "runs": [each.given() for each in runs]}
    return given, runs, submission.rank_probe("lab5.pipeline.steps", ranks, device="cpu", **options)


@criterion("lab5.pipeline", early=True)
class TestPipeline:
    def test_configuration_kept(self, submission: Submission, fresh: Fresh) -> None:
        """Keeps its configuration, and refuses a bad one."""
        files.judge_configuration(submission, fresh)

    def test_steps_follow_the_mean_gradient(self, submission: Submission, fresh: Fresh) -> None:
        """Follows the mean gradient of each window."""
        for ranks in (1, 2):
            given, others, seen = stepped(submission, fresh, ranks)
            numbers = [each.seen for each in seen]
            what = f"train_epoch() twice on {ranks} rank{'s' if ranks > 1 else ''}, windows of 3 batches, the last of 2"
            for rank, each in enumerate(numbers):
                require_equal(
                    [seen[rank].validated, seen[rank].training],
                    [0, True],
                    what=f"{what}: samples that passed the model in evaluation mode, and whether it ends in training "
                    "mode; the model was in evaluation mode before the second epoch",
                    hint="train_epoch() trains in training mode, whatever the mode was",
                )
                require_equal(
                    len(each), 2 * given.batches(ranks), what=f"{what}: batches that rank {rank} went through"
                )
                whole = given.batches(ranks)
                zeroth, first = each[:whole], each[whole:]
                orders = {
                    "epoch 1, and again": first + first,
                    "the rest of epoch 0": zeroth[1:],
                    "epoch 1 in the middle of epoch 0": first,
                }
                for name, order in orders.items():
                    require_equal(
                        seen[rank].elsewhere[name],
                        order,
                        what=f"samples of each batch, train_epoch() asked for {name}, on rank {rank} of {ranks}",
                        hint="the epoch that was asked for, from its beginning, or from where the loader is in it",
                    )
            steps = windows(numbers, given.batches(ranks), 3)
            expected = given.follow(steps, given.total_steps(ranks))
            # Clipped exactly, or as PyTorch does it: both are right.
            exactly = given.follow(steps, given.total_steps(ranks), beyond=0.0).weight
            either = 2 * float(np.abs(exactly - expected.weight).max())
            require(max(expected.norms) > 1.5 * given.config["max_grad_norm"], "the case itself clips nothing")
            for rank, each in enumerate(seen):
                require_equal(each.steps, len(steps), what=f"{what}: ProductionTrainer.steps of rank {rank}")
                require_arrays_close(
                    each.weight,
                    expected.weight,
                    rtol=RTOL,
                    atol=RTOL + either,
                    what=f"{what}: weights of rank {rank}",
                    hint="the mean over all samples of the window on all ranks (the last window is shorter, and so is "
                    "its last batch), clipped once as a whole, then one step at the scheduled rate",
                )
                require(bool((each.gain == 1).all()), f"{what}: a parameter that needs no gradient was moved")
                require_equal(
                    each.losses_of, ["float64"], what=f"{what}: dtype of what the loss is computed from",
                    hint=care.COARSER,
                )  # fmt: skip
                for epoch, result in enumerate(each.results):
                    require_equal(
                        [result[name] for name in ("epoch", "complete", "samples", "optimizer_steps", "skipped_steps")],
                        [epoch, True, len(given.inputs), len(steps) // 2, 0],
                        what=f"{what}: epoch, complete, samples, optimizer_steps and skipped_steps on rank {rank}",
                    )
                    half = len(steps) // 2
                    require_close(
                        result["loss"],
                        sum(expected.losses[epoch * half : (epoch + 1) * half]) / len(given.inputs),
                        relative=1e-6,
                        what=f"{what}: loss of epoch {epoch} on rank {rank}",
                        hint="the mean over all samples of all ranks, each as it was before its window's step",
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
            for place, run in enumerate(others):
                care.require_epochs(run, seen, place)
        care.require_counted_targets(submission, fresh)

    @builds_on("steps_follow_the_mean_gradient")
    def test_learning_rate_per_optimizer_step(self, submission: Submission, fresh: Fresh) -> None:
        """Schedules the rate by optimizer steps."""
        given, _, (seen,) = stepped(submission, fresh, 1)
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
        runs.judge_schedule(submission, fresh)

    @builds_on("steps_follow_the_mean_gradient")
    def test_overflow_leaves_everything_alone(self, submission: Submission, fresh: Fresh) -> None:
        """Changes nothing in an overflowing step."""
        drawn = case(fresh.shared("lab5.mixed"), epochs=3)
        scale = 2.0**18
        values = {
            "dtype": ("float16", "bfloat16"), "accumulation_steps": (1, 2),
            "max_grad_norm": (None, drawn.config["max_grad_norm"]), "log_every_steps": (1, 2),
        }  # fmt: skip
        settings = {row.pop("dtype"): row for row in full_rows(fresh.shared("lab5.mixed"), values, 2)}
        options: dict[str, Any] = {**drawn.given(initial_scale=scale), "growth": GROWTH, "settings": settings}
        seen = submission.numeric_probe("lab5.pipeline.mixed", **options)
        for dtype in ("float16", "bfloat16"):
            run, given = seen[dtype], replace(drawn, config={**drawn.config, **settings[dtype]})
            total, size = given.total_steps(1), given.config["accumulation_steps"]
            steps, each_epoch = windows([run["seen"]], given.batches(1), size), -(-given.batches(1) // size)
            taken = [
                batch // given.batches(1) * each_epoch + batch % given.batches(1) // size for batch in run["taken"]
            ]
            made, left_out = (
                sum(number(each[name], name) for each in run["results"])
                for name in ("optimizer_steps", "skipped_steps")
            )
            what = f"train_epoch() in {dtype}" + (", whose first steps overflow" if dtype == "float16" else "")
            what += ", " + ", ".join(f"{name}={value}" for name, value in settings[dtype].items())
            require_equal(sorted(set(run["products"])), [dtype], what=f"{what}: dtype of the products")
            require_equal(run["parameter_dtype"], "float32", what=f"{what}: dtype of the parameters")
            require_equal(
                run["losses_of"], ["float32"], what=f"{what}: dtype of what the loss is computed from",
                hint="outputs of autocast become float32 first, and the loss is computed outside of it",
            )  # fmt: skip
            require_equal(
                run["validated_products"], [dtype], what=f"dtype of the products in validate() in {dtype}",
                hint="validation runs in autocast, as training does",
            )  # fmt: skip
            require_equal(
                [made, run["steps"], made + left_out],
                [len(run["rates"]), len(run["rates"]), total],
                what=f"{what}: optimizer_steps, ProductionTrainer.steps, and optimizer_steps + skipped_steps",
                hint="a step that the scaler left out is not an optimizer step",
            )
            if dtype == "float16":
                require(left_out >= 1, f"{what}: no step was left out, at a loss scale of 2^18")
                require(made >= 1, f"{what}: every step was left out")
                after = (
                    f"{what}: loss scale after {left_out} overflows, where it grows after {GROWTH} good steps in a row"
                )
                require_equal(run["scale"], scale_after(scale, taken, total, GROWTH), what=after)
            else:
                require(run["scale"] in (None, 1.0), f"{what}: the loss is scaled by {run['scale']}", "it need not be")
            truth = given.follow(steps, total, taken)
            expected_weight = truth.weight
            moved = expected_weight - np.asarray(given.weight, np.float64)
            apart = float(np.linalg.norm(seen[f"{dtype}/weight"] - expected_weight) / np.linalg.norm(moved))
            require(
                apart < LOW_RTOL,
                f"{what}: the weights end {apart:.3g} times the way that they should have moved away from where they "
                f"should be, expected less than {LOW_RTOL} (rounding)",
                "unscale the gradients before they are clipped: max_grad_norm is meant for the gradient itself",
            )
            logged = [
                (truth.losses[window] / len(steps[window]), rate(given.config, made, total), norm)
                for made, (window, norm) in enumerate(zip(taken, truth.norms, strict=False))
            ]
            care.require_told(run["told"], logged, given.config["log_every_steps"], LOW_RTOL, what)
            for epoch, result in enumerate(run["results"]):
                require_equal(
                    result["samples"],
                    len(given.inputs),
                    what=f"{what}: samples of epoch {epoch}",
                    hint="samples of windows that were left out have been gone through, too",
                )
                require_close(
                    result["loss"],
                    sum(truth.losses[epoch * each_epoch : (epoch + 1) * each_epoch]) / len(given.inputs),
                    relative=LOW_RTOL,
                    what=f"{what}: loss of epoch {epoch}",
                )
            require_close(
                run["validation"]["loss"],
                given.loss(seen[f"{dtype}/weight"]),
                relative=LOW_RTOL,
                what=f"loss of validate() in {dtype}",
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
        sequences = tokens.draw(fresh.shared("lab5.sequences"))
        given = {name: getattr(sequences, name) for name in ("weight", "inputs", "batch_size")}
        given |= {"words": sequences.targets, "config": {"epochs": 1}}
        for sizes in ([[large, 2, large, 1]], [[], [large, 2, 3]]):
            samples, ranks = sum(map(sum, sizes)), len(sizes)
            name = fresh.shared(f"lab5.validate{ranks}")
            logits = name.normal(samples, classes) * 2
            targets = np.array([name.integer(0, classes - 1) for _ in range(samples)])
            logits[-1, targets[-1]] -= 9.0  # the last, smallest batch is the worst
            targets[large : large + 2] = tokens.IGNORED  # a whole batch
            targets[:large:3] = tokens.IGNORED
            counts = targets != tokens.IGNORED
            samples = int(counts.sum())
            validations = [each for each in care.validations(fresh) if each.ranks == ranks]
            seen = submission.rank_probe(
                "lab5.counting.validate", ranks, device="cpu", logits=logits, targets=targets, sizes=sizes,
                cases=[each.given() for each in validations], **given,
            )  # fmt: skip
            shifted, classes_of = logits.astype(np.float64)[counts], targets[counts]
            loss = float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(samples), classes_of]))
            right = float(np.mean(shifted.argmax(1) == classes_of))
            for rank, each in enumerate(seen):
                for validation, told in zip(validations, each.cases, strict=True):
                    care.require_validation(validation, told, rank)
                for mode in ("training", "evaluation"):
                    run = each[mode]
                    what = f"validate() on batches of {sizes} samples by rank, some with no target that counts, "
                    what += f"rank {rank}"
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
                        run["modes"],
                        run["before"],
                        what=f"{what}: modes of the model and its modules, as they were before",
                        hint="after eval(), each module's mode as it was: some may be frozen while others train",
                    )
                require_equal(each.graphs, 0, what="outputs of validate() that hold a graph", hint="torch.no_grad()")
                care.require_counted_validation(each.sequences, sequences, ranks)
                require(bool(each.refused), "validate() without any sample raised no ValueError")
        care.require_kinds(submission, fresh)

    def test_resumed_run_has_the_same_bits(self, submission: Submission, fresh: Fresh) -> None:
        """Resumes with the same bits."""
        for dtype in ("float32", "float16"):
            shared = fresh.shared(f"lab5.resume.{dtype}")
            given = case(shared, epochs=shared.integer(4, 6), accumulation=2)
            optimizer, middle = _parts_of_a_run(fresh, dtype, 1)
            total, stop = given.config["epochs"], shared.integer(1 + middle, 3)
            # The larger scale overflows in the first steps. Of an epoch that is left in its middle there have to be
            # several: the checkpoint at the end of one with a single step would take the place of what is loaded.
            arguments = given.given(initial_scale=2.0 ** (8 if middle else 18), optimizer=optimizer)
            options: dict[str, Any] = {**_on(dtype), **arguments, "stop": stop, "dtype": dtype, "middle": middle}
            seen = submission.numeric_probe("lab5.resume.resume", **options)
            what = f"{stop} epochs{_A_STEP * middle} + save, load + the rest of {total} epochs in {dtype} with dropout "
            what += f"and {optimizer}"
            require_equal(seen.begin, stop, what=f"{what}: epoch that load_checkpoint() said comes next")
            care.require_generators(seen, what)
            runs.require_same(seen, what)
            care.require_same_generators(seen, what)
            require_equal(seen.resumed, seen.results[stop:], what=f"{what}: what train_epoch() returned afterwards")
            care.require_refusals(seen.refused)
        seen = submission.probe("lab5.resume.moved", device="cpu")
        require_equal(
            [seen.refused, seen.kept],
            [["", ""], True],
            what="errors of restore_random_state() without a GPU of what was captured with one, and the other way "
            "round; and whether the other generators are where they were",
            hint="a GPU's generator is left alone where none was captured, or where there is no GPU now",
        )

    @builds_on("resumed_run_has_the_same_bits", "validation_weighs_samples")
    def test_goes_on_after_sigterm(self, submission: Submission, fresh: Fresh) -> None:
        """Stops on SIGTERM, and goes on from there."""
        runs.judge_signals(submission, fresh)

    @requires("resumed_run_has_the_same_bits")
    def test_resumed_on_every_rank(self, submission: Submission, fresh: Fresh) -> None:
        """Resumes with the same bits on every rank."""
        given = case(fresh.shared("lab5.ranks"), ranks=2, epochs=4, accumulation=2)
        optimizer, middle = _parts_of_a_run(fresh, "float32", 2)
        options: dict[str, Any] = {**given.given(optimizer=optimizer), "stop": 2, "middle": middle}
        for rank, each in enumerate(submission.rank_probe("lab5.resume.resume", 2, device="cpu", **options)):
            what = f"2 epochs{_A_STEP * middle} + save, load + the rest of 4 epochs on 2 ranks with dropout and "
            what += f"{optimizer}: rank {rank}"
            require_equal(
                each.complete, True, what=f"{what}: whether the file is there once save_checkpoint() returns",
                hint="all ranks wait until rank 0 has written it",
            )  # fmt: skip
            care.require_generators(each, what)
            runs.require_same(each, what)
            care.require_same_generators(each, what)
            require_equal(
                each.refused.get("a run on more ranks"),
                "ValueError",
                what="kind of load_checkpoint()'s error: a run on 2 ranks, loaded by one without a process group",
                hint="each rank has its share of the checkpoint; who was not there has none",
            )

    @builds_on("goes_on_after_sigterm")
    def test_stops_early(self, submission: Submission, fresh: Fresh) -> None:
        """Stops early when the loss no longer falls."""
        runs.judge_early(submission, fresh)

    def test_killed_while_saving_loses_nothing(self, submission: Submission, fresh: Fresh) -> None:
        """Loses nothing when killed while saving."""
        files.judge_saving(submission, fresh)

    @builds_on(
        "steps_follow_the_mean_gradient",
        "validation_weighs_samples",
        "resumed_run_has_the_same_bits",
        "goes_on_after_sigterm",
    )
    def test_rank_zero_logs(self, submission: Submission, fresh: Fresh) -> None:
        """Logs from rank 0 alone."""
        kept = 2
        # Windows of several batches, entries of several steps.
        values = {"ranks": (1, 2), "accumulation": (1, 2), "every": (1, 2), "clipped": (False, True)}
        for row in full_rows(fresh.shared("lab5.logged"), values, 2):
            ranks, every = row["ranks"], row["every"]
            given = case(fresh.shared(f"lab5.logs{ranks}"), ranks=ranks, epochs=3, accumulation=row["accumulation"])
            if not row["clipped"]:
                given = replace(given, config={**given.config, "max_grad_norm": None})
            total = given.total_steps(ranks)
            settings = {"log_every_steps": every, "keep_checkpoints": kept}
            seen = submission.rank_probe(
                "lab5.counting.logged", ranks, device="cpu", **given.given(**settings), step_seconds=0.03,
                back_to=total * 2 // 3,
            )  # fmt: skip
            if ranks == 2:
                require_equal(
                    seen[1].files,
                    [],
                    what="files that rank 1 made in fit() (here each rank has a working folder of its own)",
                )
            first = seen[0]
            found = [name for name in first.files if name.startswith("run/checkpoints/")]
            wanted = [f"run/checkpoints/step-{total * epoch // 3:08d}.pt" for epoch in (2, 3)]
            require_equal(found, wanted, what=f"checkpoints after fit() with 3 epochs and keep_checkpoints={kept}")
            care.require_entries(given, seen, every)
            care.require_run(first.run, first.elapsed, given, ranks)
            if ranks == 1:
                care.require_one_log(first, every, total)
            _judge_validations(first, total)
        care.require_scaled_run(submission, fresh)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Writes a report that agrees with the results."""
        lab5_report.judge(submission)


def _judge_validations(first: Seen, total: int) -> None:
    """The entries of three validations."""
    losses = [number(test["loss"], "loss in TrainerRun.validations") for test in first.run["validations"]]
    found = first.entries.get("validation/loss", [])
    steps = [int(row[0]) for row in found]
    require_equal(steps, [total // 3, total * 2 // 3, total], what="steps of TensorBoard's validation/loss")
    for row, loss in zip(found, losses, strict=True):
        require_close(row[1], loss, relative=1e-5, what="validation/loss in TensorBoard")
    require("validation/accuracy" not in first.entries, "validation/accuracy is in TensorBoard, where there is none")


_A_STEP = " and a step"
"""Of the next epoch."""


def _parts_of_a_run(fresh: Fresh, dtype: str, ranks: int) -> tuple[str, bool]:
    """With which optimizer a run is made, and whether it is continued in the middle of an epoch."""
    runs_of = (("float32", 1), ("float16", 1), ("float32", 2))
    values = {"run": runs_of, "optimizer": ("sgd", "adamw"), "middle": (False, True)}
    (row,) = [row for row in full_rows(fresh.shared("lab5.resumes"), values, 3) if row["run"] == (dtype, ranks)]
    return row["optimizer"], row["middle"]


def _on(dtype: str) -> dict[str, Any]:
    """float64 needs no GPU; FP16 is graded on the grading device."""
    return {"device": "cpu"} if dtype == "float32" else {}
