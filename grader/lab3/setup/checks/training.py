"""What Lab 3's trainings must be: shares of the samples, batches, weights, what they report, patience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    numbers,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.setup import reference
from grader.lab3.setup.cases.training import TRAIN_TWO_HEADS, Options, Passed, Train, TrainReply, main_training
from grader.lab3.setup.checks.joining import meets_at_fixed_port
from grader.lab3.setup.reference import RTOL, Trained
from grader.lab3.shared.reference import Array, are_close
from grader.shared.results import require_result

PATIENCE_SECONDS = 10.5
"""What the probe passes as `timeout_seconds`, less the number of ranks."""
_GRADIENTS = "lab3.setup.gradients_equal_full_batch"
SUMMED = Cause(
    "train_sums_over_ranks",
    "Follow the mean gradient of all ranks, with the learning rate given: leave gradients to DistributedDataParallel.",
    _GRADIENTS,
    mistake="Gradients are added up over the ranks (or the learning rate is multiplied by their number)",
)
NOT_EXCHANGED = Cause(
    "train_never_exchanges",
    "Call the wrapper that DistributedDataParallel made, not the module inside: its forward prepares the exchange.",
    _GRADIENTS,
    mistake="Gradients are never exchanged: each rank trains on its own share alone",
)
NEVER_CLEARED = Cause(
    "train_never_clears",
    "Call optimizer.zero_grad() in each step, before backward().",
    _GRADIENTS,
    mistake="Gradients are never cleared: each step adds its own to those of all steps before",
)
CLEARED_EACH_EPOCH = Cause(
    "train_clears_each_epoch",
    "Call optimizer.zero_grad() in each step, before backward(), and not only when an epoch begins.",
    _GRADIENTS,
    mistake="Gradients are cleared once per epoch and not in each step",
)
UNCHANGED = Cause(
    "train_changes_nothing",
    "Hand the parameters of the model that is passed in to the optimizer. Clear gradients before backward(), and not "
    "before step().",
    "lab3.setup.replicas_equal",
    mistake="Training leaves the weights as they were",
)
OWN_START = Cause(
    "train_never_makes_equal",
    "Wrap the model in DistributedDataParallel, which hands out rank 0's parameters and buffers.",
    "lab3.setup.replicas_equal",
    mistake="Every rank begins with parameters of its own: nobody makes them equal",
)
OWN_BUFFERS = Cause(
    "train_keeps_own_buffers",
    "Let DistributedDataParallel hand out rank 0's buffers at the beginning, as well as its parameters: with "
    "broadcast_buffers=False it leaves them out.",
    "lab3.setup.replicas_equal",
    mistake="Every rank begins with buffers of its own: nobody makes them equal",
)
BATCH_DIVIDED = Cause(
    "batch_divided_among_the_ranks",
    "Hand batch_size to each rank's loader as it is.",
    mistake="batch_size is divided among the ranks, although it is that of each rank",
)
TIMEOUT = Cause(
    "timeout_not_passed_on",
    "Pass timeout=datetime.timedelta(seconds=timeout_seconds) to init_process_group.",
    "lab3.setup.meets_where_it_is_told",
    mistake="setup() does not pass timeout_seconds on to init_process_group",
)
TIMEOUT_UNIT = Cause(
    "timeout_in_another_unit",
    "Name the unit: datetime.timedelta(seconds=timeout_seconds). A number without a name counts days.",
    "lab3.setup.meets_where_it_is_told",
    mistake="setup() passes timeout_seconds on in another unit than seconds",
)
_UNITS_SECONDS = (86_400.0, 3_600.0, 60.0, 1e-3, 1e-6)
"""Days, hours, minutes, milliseconds and microseconds."""
TIMEOUT_ROUNDED = Cause(
    "timeout_rounded",
    "Pass timeout_seconds on as it is: datetime.timedelta takes fractions of a second, too.",
    mistake="timeout_seconds is rounded to whole seconds",
)
_PYTORCH_SECONDS, _SETUP_SECONDS = 1800.0, 600.0
"""How long a group waits if nothing is passed to `init_process_group`, and if nothing is passed to `setup`."""
MEETING_TIMED = Cause(
    "meeting_timed",
    "Start the clock after setup(), right before the first epoch.",
    mistake="In train() the clock starts before the ranks have met",
)
_LOSS_HINT = "Sum up each batch's mean loss times its samples over all ranks, then divide by all samples."
_LOSSES = {
    "of_this_rank": "each rank reports the mean loss of its own samples alone",
    "means_of_this_rank": "each rank reports the mean over its own batches, in which a smaller last batch weighs as "
    "much as the others",
    "mean_of_means": "the loss of an epoch is the mean over batches (a mean of means), in which a smaller last batch "
    "weighs as much as the others",
    "summed": "the losses of the ranks are added up and not divided by their number",
    "last_batch": "the loss of an epoch is that of its last batch",
}
"""What to say of each of `reference.wrong_losses`."""


def train(submission: Submission, case: Train) -> list[TrainReply]:
    """What each rank observed when it trained on the CPU.

    If `setup` meets at a fixed port, which `joins_and_leaves` says, ranks that train again meet those that have not
    left yet. Then there are no further trainings.
    """
    try:
        return submission.rank_probe(case, case.ranks, device="cpu")
    except CheckFailed as failed:
        again = case.again and case.function != TRAIN_TWO_HEADS and not failed.answered
        if not again or not meets_at_fixed_port(submission):
            raise
        return submission.rank_probe(replace(case, again=[]), case.ranks, device="cpu")


def steps_of(replies: Sequence[Passed]) -> list[list[list[int]]]:
    """The samples of each step, by rank.

    Raises:
        CheckFailed: the ranks made different numbers of steps, or none.
    """
    counts = [len(reply.samples) for reply in replies]
    require(len(set(counts)) == 1 and counts[0] > 0, f"steps on each rank: saw {counts}, expected the same of all")
    return [reply.samples for reply in replies]


def epochs_of(reply: Passed, epochs: int) -> list[list[int]]:
    """The samples that one rank went through in each epoch.

    Raises:
        CheckFailed: its steps cannot be divided by the number of epochs.
    """
    steps = len(reply.samples)
    require(steps > 0 and steps % epochs == 0, f"{epochs} epochs made {steps} steps on one rank")
    length = steps // epochs
    return [
        [number for batch in reply.samples[epoch * length : (epoch + 1) * length] for number in batch]
        for epoch in range(epochs)
    ]


def follow(case: Train, replies: Sequence[TrainReply], *, summed: bool = False) -> Trained:
    """What the steps come to that the ranks made. Raises as `steps_of`."""
    return reference.follow(case, steps_of(replies), summed=summed)


def require_followed(case: Train, replies: Sequence[TrainReply]) -> None:
    """Fail unless the weights of further trainings follow from the samples that passed the model, whose numbers a
    submission could change. If the first training's weights are wrong, that is charged there."""
    rtol, right = RTOL[case.dtype], follow(case, replies).weight
    if not all(are_close(reply.weight, right, rtol) for reply in replies):
        return
    for place, changes in enumerate(case.again):
        options = {name: value for name, value in changes.items() if name != "by_address"}
        trainings = [reply.again[place] for reply in replies]
        expected = reference.follow(replace(case, options={**case.options, **options}), steps_of(trainings)).weight  # type: ignore[typeddict-item]
        for rank, training in enumerate(trainings):
            require(
                are_close(training.weight, expected, rtol),
                f"train() with {options}, rank {rank}: weights do not follow from the samples that passed the model",
                "Pass each sample to the model as the dataset gives it.",
            )


def cause_of(case: Train, replies: Sequence[TrainReply]) -> Cause | None:
    """The mistake that leads to the ranks' weights; None if there is none, or if the weights are right."""
    cause, _ = _explained(case, replies)
    if cause is None or case.function != TRAIN_TWO_HEADS:
        return cause
    # The same mistake in other code is another mistake.
    name = cause.name.replace("train_", "train_two_heads_")
    return Cause(name, cause, "lab3.setup.debugged_script_trains_right", mistake=cause.mistake)


def _explained(case: Train, replies: Sequence[TrainReply]) -> tuple[Cause | None, Trained]:
    """The mistake that leads to the ranks' weights, and the training with it if all ranks have the same weights."""
    steps = steps_of(replies)
    right = reference.follow(case, steps)

    def are(expected: Sequence[Array]) -> bool:
        rtol = RTOL[case.dtype]
        return all(are_close(reply.weight, weight, rtol) for reply, weight in zip(replies, expected, strict=True))

    if are([right.weight] * case.ranks):
        return None, right
    wrong = (
        (SUMMED, reference.follow(case, steps, summed=True)),
        (NEVER_CLEARED, reference.follow(case, steps, kept="always")),
        (CLEARED_EACH_EPOCH, reference.follow(case, steps, kept="in an epoch")),
        (OWN_BUFFERS, reference.follow(case, steps, own_buffers=True)),
    )
    for cause, trained in wrong:
        if are([trained.weight] * case.ranks):
            return cause, trained
    starts = [np.asarray(weight, dtype=np.float64) for weight in case.weights]
    if are(starts) or are(starts[:1] * case.ranks):
        return UNCHANGED, right
    if are(reference.follow_apart(case, steps, exchanged=False)):
        return NOT_EXCHANGED, right
    return (OWN_START if are(reference.follow_apart(case, steps, exchanged=True)) else None), right


def recognised(case: Train, replies: Sequence[TrainReply]) -> AbstractContextManager[None]:
    """Where a comparison in here fails, say which mistake leads to the ranks' weights, if one does."""
    return recognising(lambda: cause_of(case, replies))


def cause_of_training(submission: Submission, generator: InputGenerator) -> Cause | None:
    """The mistake that leads to the weights of the training by which `gradients_equal_full_batch` judges."""
    case = main_training(generator)
    try:
        return cause_of(case, train(submission, case))
    except CheckFailed:
        return None


def _cause_of_losses(case: Train, replies: Sequence[TrainReply]) -> Cause | None:
    """The mistake that leads to the losses that all ranks report, where the weights are right."""
    steps, epochs = steps_of(replies), case.options["epochs"]
    trained = follow(case, replies)
    reported = [require_result(reply.result)["losses"] for reply in replies]
    name = case.function.rpartition(".")[2]
    if not all(isinstance(losses, list) and len(losses) == epochs for losses in reported):
        return None
    for wrong, said in _LOSSES.items():
        expected = [reference.wrong_losses(trained, steps, epochs, rank)[wrong] for rank in range(case.ranks)]
        actual = np.asarray(reported, dtype=np.float64)
        if np.allclose(actual, expected, rtol=max(1e-6, RTOL[case.dtype]), atol=0):
            return Cause(f"{name}_losses_{wrong}", _LOSS_HINT, mistake=f"In {name}() {said}")
    return None


def require_weights(replies: Sequence[TrainReply], expected: Array, *, rtol: float, what: str, hint: str) -> None:
    """Fail unless every rank's weights are those expected."""
    atol = rtol * float(np.abs(expected).max())
    for rank, reply in enumerate(replies):
        what_of_rank = f"{what}, weights of rank {rank}"
        require_arrays_close(reply.weight, expected, rtol=rtol, atol=atol, what=what_of_rank, hint=hint)


def require_exchanged(case: Train, replies: Sequence[TrainReply], *, what: str) -> None:
    """Fail unless the ranks' collectives carried as much as the gradients of every step, and the network did."""
    hint = "Exchange gradients in every step, through the process group: call the wrapper, not the module inside."
    for rank, reply in enumerate(replies):
        least = len(reply.samples) * case.gradient_bytes
        require(
            reply.carried_bytes >= least,
            f"{what}: collectives on rank {rank} carried {reply.carried_bytes} bytes, fewer than the {least} of "
            f"{len(reply.samples)} steps' gradients",
            hint,
        )
    network = replies[0].loopback_bytes
    if network is not None:
        steps = sum(len(training.samples) for training in (replies[0], *replies[0].again))
        least = 2 * (case.ranks - 1) * steps * case.gradient_bytes  # each rank sends and gets all but its own part
        require(
            network >= least,
            f"{what}: {network} bytes went over the network, fewer than the {least} of {steps} steps' gradients",
            hint,
        )


def require_shared(shares: Sequence[Sequence[int]], samples: int, *, what: str, hint: str) -> None:
    """Fail unless the ranks' samples hold every one, none of them twice except what must be filled up."""
    together = [number for share in shares for number in share]
    missing = samples - len(set(together))
    twice = len(together) - len(set(together))
    spare = -samples % len(shares)
    require(
        missing == 0 and twice <= spare,
        f"{what}, {samples} samples: {missing} were left out (expected none), {twice} came twice (expected at most "
        f"{spare})",
        hint,
    )


def require_batches(replies: Sequence[Passed], samples: int, options: Options, *, what: str, hint: str) -> None:
    """Fail unless every rank's epoch was batches of `batch_size`, and a smaller one at its end at most."""
    size = options["batch_size"]
    expected = reference.batch_sizes(samples, len(replies), size)
    for rank, reply in enumerate(replies):
        sizes = [len(batch) for batch in reply.samples]
        if sizes == reference.batch_sizes(samples, len(replies), max(1, size // len(replies))) * options["epochs"]:
            hint = BATCH_DIVIDED
        require(
            sizes == expected * options["epochs"],
            f"{what}, batch_size={size}: rank {rank} made batches of {sizes[: len(expected)]} samples in an epoch, "
            f"expected {expected}",
            hint,
        )


def require_reported(case: Train, replies: Sequence[TrainReply], *, what: str, evaluated: bool = True) -> None:
    """Fail unless each rank's `DdpTraining` reports the training that its model saw.

    With a mistake that was recognised in the weights, what is reported must be right for the training with that
    mistake. Unless it was `evaluated`, any accuracy will do.
    """
    steps = steps_of(replies)
    all_called = max(reply.begin for reply in replies)
    _, trained = _explained(case, replies)
    epochs, size = case.options["epochs"], case.options["batch_size"]
    losses = reference.epoch_losses(trained, steps, epochs)
    accuracy = reference.accuracy(case, trained.weight)
    expected = {
        "device": "cpu",
        "backend": "gloo",
        "world_size": case.ranks,
        "batch_size": size,
        "effective_batch_size": case.ranks * size,
        "epochs": epochs,
        "optimizer_steps": len(steps[0]),
    }
    for rank, reply in enumerate(replies):
        require_equal(
            reply.dtype,
            case.dtype,
            what=f"{what}, dtype of rank {rank}'s model afterwards",
            hint=(
                "Train the model in the dtype that it has. Float64 takes twice the memory, and on "
                "GPUs far more than twice the time."
            ),
        )
        report = require_result(reply.result)
        for name, value in expected.items():
            require_equal(report[name], value, what=f"{what}: DdpTraining.{name} on rank {rank}")
        reported = numbers(report["losses"], epochs, f"{what}: DdpTraining.losses on rank {rank}")
        with recognised(case, replies), recognising(lambda: _cause_of_losses(case, replies)):
            for epoch, (actual, loss) in enumerate(zip(reported, losses, strict=True)):
                require_close(
                    actual,
                    loss,
                    relative=max(1e-6, RTOL[case.dtype]),
                    what=f"{what}: DdpTraining.losses[{epoch}] on rank {rank}",
                    hint=_LOSS_HINT,
                )
        accuracy_of = f"{what}: DdpTraining.accuracy on rank {rank}"
        if accuracy is None:
            require_equal(report["accuracy"], None, what=accuracy_of, hint="Report None if there is no test set.")
        elif evaluated:
            hint = "Call evaluate() with the trained model and the test set at the end, on all ranks."
            least, most = accuracy
            with recognised(case, replies):
                require_between(report["accuracy"], least - 1e-6, most + 1e-6, what=accuracy_of, hint=hint)
        most = reply.whole_seconds - (all_called - reply.begin)
        reported_seconds = number(report["seconds"], f"{what}: DdpTraining.seconds on rank {rank}")
        require_between(
            reported_seconds,
            reply.least_seconds,
            most,
            what=f"{what}: DdpTraining.seconds on rank {rank}",
            show=seconds,
            expected=f"{seconds(reply.least_seconds)} (first to last forward pass, test included) to {seconds(most)} "
            "(from when the last rank called to the end of the call)",
            hint=MEETING_TIMED
            if most < reported_seconds <= reply.whole_seconds
            else "Take the time that passes (not processor time) from the first epoch to the end of the test.",
        )


def is_in_another_unit(patience: float, seconds: float) -> bool:
    """Whether a process group waits for so many days, minutes or milliseconds instead of seconds."""
    return any(math.isclose(patience, seconds * unit, rel_tol=1e-3) for unit in _UNITS_SECONDS)


def require_patience(replies: Sequence[TrainReply], *, name: str) -> None:
    """Fail unless the process group waited as long for a rank as the call of the function of this name said."""
    for rank, reply in enumerate(replies):
        expected = PATIENCE_SECONDS + len(replies)
        hint: str = f"Hand timeout_seconds on from {name}() to setup()."
        if reply.patience == _PYTORCH_SECONDS:
            hint = TIMEOUT
        elif reply.patience == _SETUP_SECONDS:
            hint = Cause(
                f"{name}_keeps_its_timeout", hint, mistake=f"{name}() does not hand timeout_seconds to setup()"
            )
        elif reply.patience in (math.floor(expected), math.ceil(expected)):
            hint = TIMEOUT_ROUNDED
        elif is_in_another_unit(reply.patience, expected):
            hint = TIMEOUT_UNIT
        require(
            abs(reply.patience - expected) < 1e-3,
            f"{name}(timeout_seconds={expected:g}): the process group of rank {rank} waits {reply.patience:g} s for a "
            "rank that does not come",
            hint,
        )


def require_waited(replies: Sequence[TrainReply], patience: float, *, name: str) -> None:
    """Fail unless rank 0 gave up as soon as it should when rank 1 stopped in a forward pass."""
    waited = replies[0].waited
    passed = f"it raised after {waited:.1f} s" if waited else "it was still waiting after three times as long"
    require(
        waited is not None and 0.5 * patience <= waited,
        f"{name}(timeout_seconds={patience:.1f}), and rank 1 stops in its first forward pass: {passed}",
        f"Hand timeout_seconds on from {name}() to setup().",
    )
