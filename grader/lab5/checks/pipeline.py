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
from grader.lab5.checks import trainer_care as care
from grader.lab5.truth import tokens
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
    require_equal(
        found["random"], expected["random"], what=f"{what}: hashes of the generators' states in the end",
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
            "optimizer": "sgd",
            "momentum": fresh.uniform(0.1, 0.9),
            "weight_decay": fresh.log_uniform(1e-9, 1e-3),
            "warmup_steps": fresh.integer(1, 9),
            "minimum_ratio": fresh.uniform(0.1, 0.9),
            "accumulation_steps": fresh.integer(2, 9),
            "keep_checkpoints": fresh.integer(4, 9),
            "log_every_steps": fresh.integer(11, 19),
            "seed": fresh.integer(1, 99),
            "initial_scale": 2.0 ** fresh.integer(1, 12),
        }
        highest = fresh.integer(1, 9)
        unknown = [f"{name}_{fresh.integer(100, 999)}" for name in ("lerning_rate", "warm_up")]
        given = fresh.shuffled(
            [
                (f"epochs = 4\n{unknown[0]} = 0.1\n{unknown[1]} = 3\n", "two unknown keys"),
                ('epochs = "four"\n', "a string for epochs"),
                ("epochs = \n", "text that is no TOML"),
                ("epochs = 0\n", "epochs = 0"),
                (f"epochs = {-fresh.integer(1, 9)}\n", "epochs below 0"),
                ("epochs = 2.5\n", "epochs = 2.5"),
                ("deterministic = 1\n", "a number for deterministic"),
                (f"learning_rate = {highest}\n", ""),
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
            if why:
                require(
                    bool(outcome["named"]), f"the error of a file{about} does not name the file: {outcome['message']!r}"
                )
            else:
                found = [outcome["given"][name] for name in ("learning_rate", "epochs", "momentum", "patience")]
                wanted_values = [float(highest), 5, 0.9, None]
                about = f"learning_rate, epochs, momentum and patience of a file with {text!r}"
                require_equal(found, wanted_values, what=about, hint="a key that is not there has its default")
            if why == "two unknown keys":
                message = outcome["message"]
                require(
                    all(name in message for name in unknown),
                    f"the error of a file with the unknown keys {' and '.join(unknown)} says: {message[:200]!r}",
                    "name every unknown key in one message: who misspelled two wants to correct both",
                )
        require_equal(seen.missing, "OSError", what="kind of TrainerConfig.load()'s error where there is no file")
        require_equal(
            seen.full,
            [True, True],
            what="save() on a disk that is full: whether it raised an OSError, and left the old file as it was",
            hint="labkit.files.atomic_write: the file is replaced as a whole, or left alone",
        )

    def test_steps_follow_the_mean_gradient(self, submission: Submission, fresh: Fresh) -> None:
        """Follows the mean gradient of each window."""
        for ranks in (1, 2):
            given, seen = stepped(submission, fresh, ranks)
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
                require(bool((each.gain == 1).all()), f"{what}: a parameter that needs no gradient was moved")
                require_equal(
                    each.losses_of, ["float64"], what=f"{what}: dtype of what the loss is computed from",
                    hint="float16 and bfloat16 become float32; what is finer stays as it is",
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
        care.require_counted_targets(submission, fresh)

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
                after = f"{what}: loss scale after {left_out} overflows"
                require_equal(run["scale"], scale * 0.5**left_out, what=after)
            else:
                require(run["scale"] in (None, 1.0), f"{what}: the loss is scaled by {run['scale']}", "it need not be")
            truth = given.follow(run["seen"], total, run["taken"])
            expected_weight = truth.weight
            moved = expected_weight - np.asarray(given.weight, np.float64)
            apart = float(np.linalg.norm(seen[f"{dtype}/weight"] - expected_weight) / np.linalg.norm(moved))
            require(
                apart < LOW_RTOL,
                f"{what}: the weights end {apart:.3g} times the way that they should have moved away from where they "
                f"should be, expected less than {LOW_RTOL} (rounding)",
                "unscale the gradients before they are clipped: max_grad_norm is meant for the gradient itself",
            )
            each_epoch = given.batches(1)
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
            seen = submission.rank_probe(
                "lab5.counting.validate", ranks, device="cpu", logits=logits, targets=targets, sizes=sizes,
                config={"epochs": 1},
            )  # fmt: skip
            shifted, classes_of = logits.astype(np.float64)[counts], targets[counts]
            loss = float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(samples), classes_of]))
            right = float(np.mean(shifted.argmax(1) == classes_of))
            for rank, each in enumerate(seen):
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
                require(bool(each.refused), "validate() without any sample raised no ValueError")
        care.require_counted_validation(submission, fresh)

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
            care.require_generators(seen, what)
            require_same(seen, what)
            require_equal(seen.resumed, seen.results[stop:], what=f"{what}: what train_epoch() returned afterwards")
            care.require_refusals(seen.refused)

    def test_goes_on_after_sigterm(self, submission: Submission, fresh: Fresh) -> None:
        """Stops on SIGTERM, and goes on from there."""
        for ranks in (1, 2):
            shared = fresh.shared(f"lab5.sigterm{ranks}")
            given = case(shared, ranks=ranks, epochs=3, accumulation=2)
            arguments = given.given(save_every_steps=2, keep_checkpoints=99)
            validating = shared.integer(1, len(given.inputs)) if ranks == 1 else None
            # In the first epoch of the last rank, but not in its last window: there the epoch would be complete.
            at = shared.integer(2, 3 * given.batch_size)
            seen = submission.rank_probe(
                "lab5.resume.terminated", ranks, device="cpu", **arguments, at=at, signalled=ranks - 1,
                validating=validating,
            )  # fmt: skip
            total, last = given.total_steps(ranks), -(-given.batches(ranks) // 2)
            saved = [step for step in range(1, total + 1) if step % last == 0 or step % 2 == 0]
            require_equal(
                seen[0].files,
                [f"step-{step:08d}.pt" for step in saved],
                what=f"checkpoints of fit() on {ranks} ranks with save_every_steps=2, {last} steps to an epoch",
                hint="after every save_every_steps steps of the run, and after each epoch's validation",
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
                if validating is not None:
                    self._judge_signal_in_validation(each, given)

    def _judge_signal_in_validation(self, seen: Seen, given: Case) -> None:
        """SIGTERM came while the first epoch was validated."""
        what = "fit() where SIGTERM comes during the first validation"
        require_equal(seen.validation_received, 0, what=f"{what}: times that SIGTERM went past fit()")
        require_equal(seen.validation_stopped["ended"], "signal", what=f"{what}: TrainerRun.ended")
        require_between(
            seen.validation_before - given.batches(1),
            0,
            given.config["accumulation_steps"],
            what=f"{what}: batches of the second epoch before it stopped",
            hint="at most one window follows",
        )
        require_same(seen, f"{what}, then fit() by a new trainer", "validation_seen")
        for name in ("epochs", "validations", "ended", "optimizer_steps"):
            told, wanted = seen.validation_again[name], seen.uninterrupted[name]
            require_equal(told, wanted, what=f"{what}, then fit() by a new trainer: TrainerRun.{name}")

    @requires("resumed_run_has_the_same_bits")
    def test_resumed_on_every_rank(self, submission: Submission, fresh: Fresh) -> None:
        """Resumes with the same bits on every rank."""
        given = case(fresh.shared("lab5.ranks"), ranks=2, epochs=4, accumulation=2)
        for rank, each in enumerate(
            submission.rank_probe("lab5.resume.resume", 2, device="cpu", **given.given(), stop=2)
        ):
            what = f"2 epochs + save, load + 2 epochs on 2 ranks with dropout: rank {rank}"
            care.require_generators(each, what)
            require_same(each, what)

    def test_stops_early(self, submission: Submission, fresh: Fresh) -> None:
        """Stops early when the loss no longer falls."""
        arguments = case(fresh.shared("lab5.early")).given()
        del arguments["batch_size"]
        cases = [*(_until_it_stops(fresh) for _ in range(3)), _without_a_number(fresh)]
        cases[0]["losses"] = cases[0]["losses"][: cases[0]["best"] + 1 + cases[0]["patience"]]  # both end at once
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

    def test_killed_while_saving_loses_nothing(self, submission: Submission, fresh: Fresh) -> None:
        """Loses nothing when killed while saving."""
        steps = [fresh.integer(1, 9), fresh.integer(10, 99), fresh.integer(100, 900)]
        killed = steps[-1] + fresh.integer(1, 9)
        later = killed + fresh.integer(1, 9)
        seen = submission.probe("lab5.saving.saving", device="cpu", steps=steps, killed=killed, later=later)
        name = "step-{:08d}.pt".format
        _, second, third = steps
        others = ["step-notes.pt"]
        require_equal(seen.everything, [name(step) for step in steps], what=f"files after checkpoints of steps {steps}")
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
            [name(third), name(later), *others],
            what=f"files after checkpoint {later}, written after that",
            hint="what a killed process left behind goes with the next write; what is no checkpoint stays",
        )
        order = [event for event in seen.synced if event in ("file", "name")]
        require(
            "file" in order and order.index("file") < (order.index("name") if "name" in order else len(order)),
            f"write_checkpoint() forced to the disk or renamed, in this order: {seen.synced}",
            "os.fsync the temporary file first, then os.replace it, then os.fsync the folder: a rename may otherwise "
            "reach the disk before the content does",
        )
        named = len(seen.synced) - 1 - seen.synced[::-1].index("name") if "name" in seen.synced else -1
        require(
            "folder" in seen.synced[named + 1 :],
            f"write_checkpoint() did not force the folder to the disk after the rename; in this order: {seen.synced}",
            "os.fsync of the folder: until then a power failure may take the new name back",
        )
        require(
            "folder" not in seen.synced[seen.synced.index("old one") :] if "old one" in seen.synced else True,
            f"write_checkpoint() removed old checkpoints before the new one was safe; in this order: {seen.synced}",
            "old checkpoints go last",
        )
        require(bool(seen.failed), "write_checkpoint() said nothing although the disk was full in the middle")
        require_equal(
            seen.after_failure, [name(third), name(later), *others], what="files after a write that failed half-way",
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
        every, kept = 2, 2
        for ranks in (2, 1):
            given = case(fresh.shared(f"lab5.logs{ranks}"), ranks=ranks, epochs=3, accumulation=1)
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


def _without_a_number(fresh: Fresh) -> dict[str, Any]:
    """Validation losses that are no numbers, until patience ends."""
    patience = fresh.integer(2, 3)
    return {"losses": [None] * patience + [0.1, 0.1], "patience": patience, "best": None}


def _until_it_stops(fresh: Fresh) -> dict[str, Any]:
    """Validation losses: up and down to the `best`, then `patience` that are not lower, one equal, one no number.

    Then lower.
    Before the best, fewer than `patience` in a row are not lower.
    """
    patience, best = fresh.integer(2, 3), fresh.integer(1, 6)
    lowest = fresh.uniform(0.5, 0.6)
    losses, missed = [lowest + 0.5], 0
    for _ in range(best - 1):
        missed = missed + 1 if missed < patience - 1 and fresh.integer(0, 1) else 0
        losses.append(min(losses) + fresh.uniform(0.01, 0.05) * (1 if missed else -1))
    after = fresh.shuffled([lowest, None, *[lowest + 0.1] * (patience - 2)])
    return {"losses": [*losses, lowest, *after, 0.1, 0.1, 0.1], "patience": patience, "best": best}


def _on(dtype: str) -> dict[str, Any]:
    """float64 needs no GPU; FP16 is graded on the grading device."""
    return {"device": "cpu"} if dtype == "float32" else {}
