"""Judges Lab 5's trainer: its steps, its validation, what it writes, and that a run in two parts has the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    CheckFailed,
    number,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab5.checks import report as lab5_report
from grader.lab5.truth.training import (
    OPTIMIZERS,
    Followed,
    Training,
    cross_entropy,
    draw,
    rate,
    scale_after,
    with_optimizer,
)
from grader.shared.cases import full_rows

GROWTH = 3
"""Good steps in a row after which the loss scale grows."""
RTOL = 1e-9
"""Of weights in float64: right ones agree to 1e-14, the smallest planted mistake is 1e-3."""
LOW_RTOL = 0.05
"""Of the way the weights move in float16 and bfloat16: right ones are off by 0.0002 to 0.005, those of a gradient that
was clipped before it was unscaled by 1."""
SINGLE = 1e-5
"""TensorBoard keeps float32."""
_TRAININGS: dict[str, tuple[Any, ...]] = {
    "ranks": (1, 2),
    "window": (1, 2, 3, 7),
    "limit": (None, 1e6, "some"),
    "optimizer": tuple(OPTIMIZERS),
    "last": ("full", "smaller", "padded"),
    "epochs": (1, 2),
}
_STATES = "model, optimizer, scheduler, scaler, steps, and of each rank random numbers, loader and progress"


def trained(submission: Submission, generator: InputGenerator, ranks: int) -> tuple[list[Training], list[Seen]]:
    """Epochs of several trainings on so many ranks; the same for all checks of a grading."""
    trainings = [draw(generator.shared(f"lab5.steps{ranks}"), ranks=ranks)]
    rows = [
        row for row in full_rows(generator.shared("lab5.trainings"), _TRAININGS, 6, _can_be) if row["ranks"] == ranks
    ]
    for place, row in enumerate(rows):
        shared = generator.shared(f"lab5.training{ranks}.{place}")
        settings = {"accumulation_steps": row["window"]}
        if row["limit"] != "some":
            settings["max_grad_norm"] = row["limit"]
        training = draw(shared, ranks=ranks, epochs=row["epochs"], last=row["last"], **settings)
        trainings.append(with_optimizer(training, row["optimizer"]))
    arguments = [each.arguments() for each in trainings]
    return trainings, submission.rank_probe("lab5.trainer.epochs", ranks, device="cpu", trainings=arguments)


def _can_be(row: Any) -> bool:
    """With AdamW the size of a gradient has no influence: clipping is not seen. One rank has all samples."""
    return (row["optimizer"], row["limit"]) != ("adamw", "some") and (row["ranks"], row["last"]) != (1, "padded")


@criterion("lab5.pipeline", early=True)
class TestPipeline:
    def test_steps_follow_the_mean_gradient(self, submission: Submission, generator: InputGenerator) -> None:
        """Steps along the mean gradient of a window."""
        for ranks in (1, 2):
            trainings, seen = trained(submission, generator, ranks)
            for place, training in enumerate(trainings):
                what = f"train_epoch() on {ranks} rank{'s' * (ranks > 1)}, {training.described()}"
                _judge_epochs(training, [each.runs[place] for each in seen], seen, place, what)
            _judge_orders(trainings[0], seen, ranks)

    @builds_on("steps_follow_the_mean_gradient")
    def test_learning_rate_per_optimizer_step(self, submission: Submission, generator: InputGenerator) -> None:
        """Moves the rate once per optimizer step."""
        for ranks in (1, 2):
            trainings, seen = trained(submission, generator, ranks)
            for place, training in enumerate(trainings):
                total, rates = training.total_steps(ranks), seen[0].runs[place]["rates"]
                what = f"train_epoch() on {ranks} rank{'s' * (ranks > 1)}, {training.described()}"
                require_equal(len(rates), total, what=f"{what}: optimizer steps")
                _judge_rates(training, rates, total, what)

    @builds_on("steps_follow_the_mean_gradient")
    def test_overflow_leaves_everything_alone(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains in 16 bits and skips overflows."""
        shared = generator.shared("lab5.mixed")
        values = {"dtype": ("float16", "bfloat16"), "accumulation_steps": (1, 2), "log_every_steps": (1, 2)}
        for row in full_rows(shared, values, 2):
            training = draw(shared, epochs=3, initial_scale=2.0**20, **row)
            seen = submission.numeric_probe("lab5.trainer.mixed", training=training.arguments(), growth=GROWTH)
            what = f"train_epoch() in {row['dtype']}, {training.described()}"
            _judge_mixed(training, seen, what + ", whose first steps overflow" * (row["dtype"] == "float16"))

    def test_validation_weighs_samples(self, submission: Submission, generator: InputGenerator) -> None:
        """Counts each validation sample of all ranks once."""
        classes, large = generator.integer(3, 5), generator.odd(9, 15)
        for sizes in ([[large, 2, large, 1]], [[], [large, 2, 3]], [[4, large], [1]]):
            samples, ranks = sum(map(sum, sizes)), len(sizes)
            shared = generator.shared(f"lab5.validate{sizes}")
            logits = shared.normal(samples, classes) * 2
            targets = np.array([shared.integer(0, classes - 1) for _ in range(samples)])
            logits[-1, targets[-1]] -= 9.0  # the last, smallest batch is the worst
            seen = submission.rank_probe(
                "lab5.trainer.validate", ranks, device="cpu", logits=logits, classes=targets, sizes=sizes, epochs=1
            )
            loss = float(cross_entropy(logits.astype(np.float64), targets)[0].mean())
            right = float(np.mean(logits.argmax(1) == targets))
            for rank, each in enumerate(seen):
                what = f"validate() on batches of {sizes} samples by rank, rank {rank}"
                for run in (each.training, each.evaluation):
                    result = run["result"]
                    require_equal(result["samples"], samples, what=f"{what}: samples")
                    require_close(
                        number(result["loss"], f"{what}: loss"), loss, relative=1e-6, what=f"{what}: loss",
                        hint="sum mean loss times samples over all batches and ranks, then divide once; no dropout",
                    )  # fmt: skip
                    accuracy = number(result["accuracy"], f"{what}: accuracy")
                    require_close(accuracy, right, relative=1e-6, what=f"{what}: accuracy")
                    require_equal(
                        run["modes"], run["before"], what=f"{what}: modes of the model and its modules afterwards",
                        hint="put each module's mode back: some may be frozen while others train",
                    )  # fmt: skip
                require_equal(each.graphs, 0, what=f"{what}: outputs that hold a graph", hint="use torch.no_grad()")
                if ranks == 1:
                    require_equal(each.empty, "ValueError", what="error of validate() without any sample")

    def test_resumed_run_has_the_same_bits(self, submission: Submission, generator: InputGenerator) -> None:
        """Resumes with the same bits."""
        for dtype in ("float32", "float16"):
            training, stop, middle = _run_in_two_parts(generator, dtype, 1)
            options: dict[str, Any] = {"device": "cpu"} if dtype == "float32" else {}
            seen = submission.numeric_probe(
                "lab5.trainer.resume", **options, training=training.arguments(), stop=stop, middle=middle
            )
            what = f"{stop} epochs{' and a step' * middle} + save, load + the rest in {dtype}, {training.described()}"
            _judge_resumed(seen, stop, middle, what)

    @requires("resumed_run_has_the_same_bits")
    def test_resumed_on_every_rank(self, submission: Submission, generator: InputGenerator) -> None:
        """Resumes with the same bits on every rank."""
        training, stop, middle = _run_in_two_parts(generator, "float32", 2)
        seen = submission.rank_probe(
            "lab5.trainer.resume", 2, device="cpu", training=training.arguments(), stop=stop, middle=middle
        )
        for rank, each in enumerate(seen):
            what = f"{stop} epochs{' and a step' * middle} + save, load + the rest on 2 ranks, {training.described()}"
            what += f": rank {rank}"
            require_equal(
                each.complete, True, what=f"{what}: whether the file is there once save_checkpoint() returns",
                hint="all ranks wait until rank 0 has written it",
            )  # fmt: skip
            _judge_resumed(each, stop, middle, what)
            require_equal(
                each.refused, "ValueError",
                what="error of load_checkpoint(): a run on 2 ranks, loaded by one without a process group",
            )  # fmt: skip

    @builds_on("resumed_run_has_the_same_bits", "validation_weighs_samples")
    def test_goes_on_after_sigterm(self, submission: Submission, generator: InputGenerator) -> None:
        """Stops on all ranks at once, and goes on from there."""
        for ranks in (1, 2):
            _judge_stops(submission, generator.shared(f"lab5.sigterm{ranks}"), ranks)

    @builds_on("steps_follow_the_mean_gradient", "validation_weighs_samples", "resumed_run_has_the_same_bits")
    def test_rank_zero_logs(self, submission: Submission, generator: InputGenerator) -> None:
        """Logs each step as it was, and writes from rank 0 alone."""
        values = {"ranks": (1, 2), "window": (1, 2), "every": (1, 2), "clipped": (False, True)}
        for row in full_rows(generator.shared("lab5.logged"), values, 2):
            ranks, every = row["ranks"], row["every"]
            settings: dict[str, Any] = {} if row["clipped"] else {"max_grad_norm": None}
            settings |= {"accumulation_steps": row["window"], "log_every_steps": every, "keep_checkpoints": 2}
            training = draw(generator.shared(f"lab5.logs{ranks}"), ranks=ranks, epochs=3, **settings)
            seen = submission.rank_probe(
                "lab5.trainer.logged", ranks, device="cpu", training=training.arguments(),
                back_to=training.steps_per_epoch(ranks) * 2,
            )  # fmt: skip
            _judge_log(training, seen, every)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        lab5_report.judge(submission)


def _judge_epochs(training: Training, runs: Sequence[Any], seen: Sequence[Seen], place: int, what: str) -> None:
    """What `train_epoch` made of a training, on each rank."""
    ranks = len(runs)
    for rank, run in enumerate(runs):
        require_equal(
            [run["validated"], run["modes"]], [0, [True] * training.config["epochs"]],
            what=f"{what}: samples that passed the model in evaluation mode, and whether each epoch ends in training "
            "mode; the model was in evaluation mode before",
            hint="train_epoch() trains in training mode, whatever the mode was",
        )  # fmt: skip
        batches = training.batches(ranks) * training.config["epochs"]
        require_equal(len(run["seen"]), batches, what=f"{what}: batches of rank {rank}")
    numbers = [run["seen"] for run in runs]
    windows, expected = training.windows(numbers), training.follow(numbers)
    each_epoch, total = training.steps_per_epoch(ranks), len(windows)
    for rank, run in enumerate(runs):
        require_equal(run["steps"], total, what=f"{what}: ProductionTrainer.steps of rank {rank}")
        require_arrays_close(
            seen[rank][f"runs/{place}/weight"], expected.weight, rtol=RTOL, atol=RTOL + _clipping(training, numbers),
            what=f"{what}: weights of rank {rank}",
            hint="the mean over all samples of the window on all ranks (the last window and its last batch are "
            "smaller), clipped once as a whole, then one step at the scheduled rate",
        )  # fmt: skip
        require(bool(run["frozen"]), f"{what}: a parameter that needs no gradient was moved")
        for epoch, result in enumerate(run["results"]):
            steps = slice(epoch * each_epoch, (epoch + 1) * each_epoch)
            samples = sum(map(len, windows[steps]))
            require_equal(
                [result[name] for name in ("epoch", "complete", "samples", "optimizer_steps", "skipped_steps")],
                [epoch, True, samples, each_epoch, 0],
                what=f"{what}: epoch, complete, samples, optimizer_steps and skipped_steps of rank {rank}",
            )
            require_close(
                number(result["loss"], f"{what}: loss"), sum(expected.losses[steps]) / samples, relative=1e-6,
                what=f"{what}: loss of epoch {epoch} on rank {rank}",
                hint="the mean over all samples of all ranks, each as it was before its window's step",
            )  # fmt: skip
        if ranks > 1:
            require_between(
                # Gradients may be exchanged without a reduction: right weights say that they were.
                run["reduced_gradients"] / total, 0.0, 1.99,
                what=f"{what}: bytes reduced, in gradients per optimizer step", expected="1, and a little for sums",
                hint="use no_sync() around forward and backward of all batches of a window except the last",
            )  # fmt: skip


def _clipping(training: Training, seen: Sequence[Sequence[Sequence[int]]]) -> float:
    """How far weights may be off where gradients were clipped exactly, unlike PyTorch's: both are right."""
    limit = training.config["max_grad_norm"]
    return 0.0 if limit is None else 1e-5 * len(training.windows(seen)) * training.config["learning_rate"]


def _judge_orders(training: Training, seen: Sequence[Seen], ranks: int) -> None:
    """Which batches an epoch has, wherever the loader is when it is asked for."""
    whole = training.batches(ranks)
    for rank, each in enumerate(seen):
        zeroth, first = each.runs[0]["seen"][:whole], each.runs[0]["seen"][whole:]
        orders = {
            "epoch 1, and again": first + first,
            "the rest of epoch 0": zeroth[1:],
            "epoch 1 in the middle of epoch 0": first,
        }
        for name, order in orders.items():
            require_equal(
                each.orders[name], order,
                what=f"samples of each batch, train_epoch() called for {name}, on rank {rank} of {ranks}",
                hint="begin_epoch goes to the beginning, or stays where the loader is in the epoch",
            )  # fmt: skip


def _judge_rates(training: Training, rates: Sequence[float], total: int, what: str) -> None:
    for index, observed in enumerate(rates):
        require_close(
            observed, rate(training.config, index, total), relative=1e-6,
            what=f"{what}: learning rate of optimizer step {index} of {total}",
            hint="the schedule counts the optimizer steps that were taken; total_steps are those of all epochs",
        )  # fmt: skip


def _judge_mixed(training: Training, seen: Seen, what: str) -> None:
    """Epochs in float16 or bfloat16."""
    dtype, total, windows = training.config["dtype"], training.total_steps(1), training.windows([seen.seen])
    size, batches = training.config["accumulation_steps"], training.batches(1)
    each_epoch = training.steps_per_epoch(1)
    taken = [batch // batches * each_epoch + batch % batches // size for batch in seen.taken]
    require_equal(seen.products, [[dtype], [dtype]], what=f"{what}: dtypes of the products, in training and validation")
    require_equal(seen.parameters, "float32", what=f"{what}: dtype of the parameters")
    made, left_out = (
        sum(int(number(each[name], name)) for each in seen.results) for name in ("optimizer_steps", "skipped_steps")
    )
    require_equal(
        [made, seen.steps, made + left_out], [len(taken), len(taken), total],
        what=f"{what}: optimizer_steps, ProductionTrainer.steps, and optimizer_steps + skipped_steps",
        hint="a step that the scaler skipped is not an optimizer step",
    )  # fmt: skip
    if dtype == "float16":
        require(left_out >= 1, f"{what}: no step was skipped, at a loss scale of 2^20")
        require(made >= 1, f"{what}: every step was skipped")
        expected = scale_after(training.config["initial_scale"], taken, total, GROWTH)
        require_equal(seen.scale, expected, what=f"{what}: loss scale, which grows after {GROWTH} good steps in a row")
    else:
        require(seen.scale in (None, 1.0), f"{what}: the loss is scaled by {seen.scale}; bfloat16 needs no scale")
    truth = training.follow([seen.seen], taken)
    moved = np.linalg.norm(truth.weight - np.asarray(training.weight, np.float64))
    apart = float(np.linalg.norm(seen["weight"] - truth.weight) / moved)
    require(
        apart < LOW_RTOL,
        f"{what}: the weights end {apart:.3g} times the way that they should have moved away from where they should "
        f"be, expected less than {LOW_RTOL} (rounding)",
        "unscale the gradients before they are clipped: max_grad_norm is meant for the gradient itself",
    )
    for epoch, result in enumerate(seen.results):
        steps = slice(epoch * each_epoch, (epoch + 1) * each_epoch)
        samples = sum(map(len, windows[steps]))
        hint = "the samples and the loss of a skipped window belong to the epoch, too"
        require_equal(result["samples"], samples, what=f"{what}: samples of epoch {epoch}", hint=hint)
        require_close(
            number(result["loss"], f"{what}: loss"), sum(truth.losses[steps]) / samples, relative=LOW_RTOL,
            what=f"{what}: loss of epoch {epoch}", hint=hint,
        )  # fmt: skip
    loss = number(seen.validation["loss"], f"{what}: loss of validate()")
    require_close(loss, training.loss(seen["weight"]), relative=LOW_RTOL, what=f"{what}: loss of validate()")
    _judge_rates(training, seen.rates, total, what)
    _judge_logged_steps(truth, seen.logged, training.config["log_every_steps"], LOW_RTOL, what)


def _judge_logged_steps(truth: Followed, logged: Sequence[Any], every: int, relative: float, what: str) -> None:
    """What the monitor received of the steps that were taken."""
    steps = [(step, values) for step, values in logged if "loss" in values]
    expected = list(range(every, len(truth.steps) + 1, every))
    require_equal(
        [step for step, _ in steps], expected, what=f"{what}: steps that the monitor received",
        hint="pass each step that was taken to log_step, once `steps` counts it",
    )  # fmt: skip
    for step, values in steps:
        wanted = truth.steps[step - 1]
        for name, value, hint in (
            ("loss", wanted.loss, "the mean over the samples of the window, before the step"),
            ("learning_rate", wanted.rate, "the rate of the step that was taken, not of the next one"),
            ("gradient_norm", wanted.norm, "of the unscaled gradient, before clipping; also if nothing is clipped"),
        ):
            found = number(values.get(name), f"{what}: {name} of step {step}")
            require_close(found, value, relative=relative, what=f"{what}: {name} of step {step} (logged)", hint=hint)


def _run_in_two_parts(generator: InputGenerator, dtype: str, ranks: int) -> tuple[Training, int, bool]:
    """A training, after how many epochs it is left, and whether it is continued in the middle of the next one."""
    runs_of = (("float32", 1), ("float16", 1), ("float32", 2))
    values = {"run": runs_of, "optimizer": ("momentum", "adamw"), "middle": (False, True)}
    (row,) = [row for row in full_rows(generator.shared("lab5.resumes"), values, 3) if row["run"] == (dtype, ranks)]
    shared, middle = generator.shared(f"lab5.resume.{dtype}.{ranks}"), row["middle"]
    # The larger scale overflows in the first steps. Of an epoch that is left in its middle there have to be several
    # steps: the checkpoint at the end of one with a single step would take the place of what is loaded.
    settings: dict[str, Any] = {"dtype": dtype, "accumulation_steps": 2, "initial_scale": 2.0 ** (8 if middle else 20)}
    training = draw(shared, ranks=ranks, epochs=shared.integer(4, 5), **settings)
    return with_optimizer(training, row["optimizer"]), shared.integer(1 + middle, 3), middle


def _judge_resumed(seen: Seen, stop: int, middle: bool, what: str) -> None:
    """A run in two parts."""
    require_equal(seen.begin, stop, what=f"{what}: the epoch that load_checkpoint() returned")
    before, after = seen.drawn
    require_equal(after, before, what=f"{what}: random numbers (hashes of their states) after save_checkpoint()",
                  hint="saving draws no random number")  # fmt: skip
    _require_same_bits(seen, "again", what)
    for name, state in seen.expected["random"].items():
        require_equal(
            seen.again["random"][name], state, what=f"{what}: {name} random numbers in the end (a hash of their state)",
            hint="restore_random_state puts them back, after everything else",
        )  # fmt: skip
    require_equal(seen.resumed, seen.results[stop:], what=f"{what}: what train_epoch() returned afterwards",
                  hint="the progress of an epoch belongs to the checkpoint" * middle)  # fmt: skip


def _require_same_bits(seen: Seen, name: str, what: str) -> None:
    """Fail unless a resumed run ended as the uninterrupted one did, bit for bit; says what differs first."""
    expected, found = seen.expected, seen[name]
    tail = expected["seen"][len(expected["seen"]) - len(found["seen"]) :]
    if found["seen"] != tail or not found["seen"]:
        where = next((i for i, (a, b) in enumerate(zip(found["seen"], tail, strict=False)) if a != b), 0)
        raise CheckFailed(
            f"{what}: it went through {len(found['seen'])} batches, and batch {where} of them has samples "
            f"{found['seen'][where] if found['seen'] else 'none'}, expected {tail[where] if tail else 'none'}",
            "load the loader's state back, and do not send the loader to the epoch's beginning",
        )
    for key, means in (
        ("steps", "optimizer steps in all"),
        ("rate", "learning rate of the next step (hexadecimal)"),
        ("scale", "loss scale"),
    ):
        require_equal(found[key], expected[key], what=f"{what}: {means}", hint=f"a checkpoint holds {_STATES}")
    require_arrays_close(
        seen[f"{name}/weight"], seen["expected/weight"], rtol=0,
        what=f"{what}: weights compared with those of an uninterrupted run",
        hint=f"they must be the same bits. A checkpoint holds {_STATES}; dropout draws from the random numbers",
    )  # fmt: skip
    require_equal(found["optimizer"], expected["optimizer"], what=f"{what}: hash of the optimizer's state")


_RUN = ("epochs", "validations", "ended", "optimizer_steps", "best_epoch")


def _judge_stops(submission: Submission, generator: InputGenerator, ranks: int) -> None:
    """A run that SIGTERM stops in the middle of an epoch, or in the last window of one, goes on where it was."""
    training = draw(generator, ranks=ranks, epochs=3, accumulation_steps=2, save_every_steps=2, keep_checkpoints=99)
    own, size, batches = len(training.inputs) // ranks, training.batch_size, training.batches(ranks)
    middle = generator.integer(2, 3 * size)
    # The last of five batches, a smaller one, is a window of its own.
    places = {"in the middle of the first epoch": middle, "in the last window": generator.integer(4 * size + 1, own)}
    seen = submission.rank_probe(
        "lab5.trainer.stopped", ranks, device="cpu", training=training.arguments(), places=places, signalled=ranks - 1
    )
    on = f"fit() on {ranks} rank{'s' * (ranks > 1)} with save_every_steps=2"
    total, each_epoch = training.total_steps(ranks), training.steps_per_epoch(ranks)
    saved = [step for step in range(1, total + 1) if step % each_epoch == 0 or step % 2 == 0]
    require_equal(
        seen[0].files, [f"step-{step:08d}.pt" for step in saved],
        what=f"checkpoints of {on}, {each_epoch} steps to an epoch",
        hint="after every save_every_steps steps of the run, and after each epoch's validation",
    )  # fmt: skip
    require_equal(
        seen[0].saved_before, [False] * 3, what=f"whether {on} has saved the last step of an epoch before it validates",
        hint="do not save at the end of the epoch: fit validates first",
    )  # fmt: skip
    wanted = {"in the middle of the first epoch": 2 * ((middle - 1) // size // 2 + 1), "in the last window": batches}
    for rank, each in enumerate(seen):
        require_equal(each.received, 0, what=f"{on}: times that SIGTERM was not caught")
        for place, stopped_at in wanted.items():
            run = each[place]
            what = f"{on}, SIGTERM to rank {ranks - 1} {place}: rank {rank}"
            complete = int(stopped_at == batches)
            require_equal(
                [run["stopped"]["ended"], run["batches"], len(run["stopped"]["epochs"])],
                ["signal", stopped_at, complete],
                what=f"{what}: TrainerRun.ended, batches before it stopped, complete epochs",
                hint="ask stop_requested after each window; every rank must come to the same answer",
            )  # fmt: skip
            _require_same_bits(each, f"{place}/again", f"{what}, then fit() by a new trainer")
            for name in _RUN:
                require_equal(
                    run["run"][name], each.uninterrupted[name],
                    what=f"{what}, then fit() by a new trainer: TrainerRun.{name}, expected that of a run left alone",
                    hint="the progress of an epoch, `epochs` and `validations` belong to the checkpoint",
                )  # fmt: skip


def _judge_log(training: Training, seen: Sequence[Seen], every: int) -> None:
    """Files and TensorBoard's entries of a run."""
    ranks, first = len(seen), seen[0]
    total, each_epoch = training.total_steps(ranks), training.steps_per_epoch(ranks)
    for rank, each in enumerate(seen[1:], 1):
        require_equal(each.files, [], what=f"files that rank {rank} made in fit() (each rank has a folder of its own)")
        require_equal(each.logged, [], what=f"metrics that the monitor of rank {rank} received")
    found = [name for name in first.files if name.startswith("run/checkpoints/")]
    wanted = [f"run/checkpoints/step-{each_epoch * epoch:08d}.pt" for epoch in (2, 3)]
    require_equal(found, wanted, what="checkpoints after fit() with 3 epochs and keep_checkpoints=2")
    truth = training.follow([each.seen for each in seen])
    what = f"fit() on {ranks} rank{'s' * (ranks > 1)}, {training.described()}, log_every_steps={every}"
    _judge_logged_steps(truth, first.logged, every, SINGLE, what)
    logged = list(range(every, total + 1, every))
    tags = {"train/loss": "loss", "train/learning_rate": "rate", "train/grad_norm": "norm"}
    for tag, name in tags.items():
        rows = first.entries.get(tag, [])
        require_equal([int(step) for step, _ in rows], logged, what=f"steps of TensorBoard's {tag}")
        for step, value in rows:
            wanted_value = getattr(truth.steps[int(step) - 1], name)
            require_close(value, wanted_value, relative=SINGLE, what=f"TensorBoard's {tag} of step {int(step)}")
        if ranks == 1:
            again = [int(step) for step, _ in first.again.get(tag, [])]
            require_equal(
                again, logged, what=f"steps of TensorBoard's {tag} after a run went back to an older checkpoint and on",
                hint="load_checkpoint calls log.resume_at: entries of later steps no longer count",
            )  # fmt: skip
