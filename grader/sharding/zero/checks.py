"""Judges the sharded optimizer: against the whole one, by the bytes that ranks hold, and by what they send."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.sharding.shared.checks import (
    in_words,
    judge_refusals,
    kind_of,
    on_ranks,
    reference,
    require_kept_here,
    require_weights,
    total,
)
from grader.sharding.zero.cases import (
    STATES,
    HeldReply,
    Hold,
    OptimizerCase,
    Train,
    TrainedRun,
    changed_options,
    held,
    late_group,
    refused,
    reloaded,
    several_optimizers,
    size_of,
    unsharded,
)

_RELATIVE = 2e-6
"""Of the largest weight: measured 0. Parameters in bfloat16 are rounded in the same places."""
_ROUNDING = 512
"""Bytes: the allocator's granularity, for each tensor."""
_FLAGS = 256
"""Bytes on which ranks may agree in a step: whether a number is finite, a norm."""
_ONCE = "a broadcast from the owner, or an all-gather of shares: each weight once (an all-reduce sends twice)"
_ADAM_STATES = 2
_LEAST_WORK = 6.8
"""Times the bytes of a share: a fused AdamW reads four tensors and writes three."""
_LESS_WORK = 0.9
"""Of one of four ranks, compared with one of two: 0.5 if a rank only updates, 1 if it updates all. With a further pass
over all weights, which moves three times their bytes, a fused optimizer has 0.73."""


@criterion("sharding.zero")
class TestZero:
    def test_equals_unsharded(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks, inputs in zip((2, 4), several_optimizers(generator), strict=True):
            for rank, case, run, expected in _trained(submission, inputs, ranks):
                require_weights(
                    run.weights,
                    expected.weights,
                    relative=_RELATIVE,
                    what=f"{_what(case, ranks)}: weights on rank {rank} after {case['steps']} steps",
                    hint="each owner steps with its group's options, then every rank gets its weights: whatever their "
                    "dtype and strides are, and in the same order on all ranks",
                )

    @requires("equals_unsharded")
    def test_options_followed(self, submission: Submission, generator: InputGenerator) -> None:
        for rank, case, run, expected in _trained(submission, changed_options(generator), 2):
            what = f"{_what(case, 2)}, rank {rank}"
            require_equal(
                run.closures,
                expected.closures,
                what=f"{what}: how often step(closure) called the closure, and what it returned",
                hint="once, with gradients enabled, before anything is updated",
            )
            require_equal(run.counts, expected.counts, what=f"{what}: parameters in each of param_groups", hint=_GROUPS)
            require_equal(run.options, expected.options, what=f"{what}: options in param_groups", hint=_GROUPS)
            require_weights(
                run.weights,
                expected.weights,
                relative=_RELATIVE,
                what=f"{what}: weights{_changes(case)}",
                hint="this rank's own optimizer steps with the options that param_groups have by then",
            )

    @requires("equals_unsharded")
    def test_states_shared_out(self, submission: Submission, generator: InputGenerator) -> None:
        work: list[float] = []
        for ranks in (2, 4):
            inputs, replies = _held(submission, generator, ranks)
            for case, runs in zip(inputs.cases, zip(*(reply.runs for reply in replies), strict=True), strict=True):
                sizes = [size_of(parameter) for parameter in case["parameters"]]
                shares = [run.bytes / _ADAM_STATES for run in runs]
                slack = _ROUNDING * len(sizes)
                what = f"{_what(case, ranks)} of {', '.join(f'{size:,}' for size in sizes)} bytes"
                for rank, run in enumerate(runs):
                    require_kept_here(f"{what}, rank {rank}", run.elsewhere, run.copied_bytes, slack)
                require(
                    abs(sum(shares) - sum(sizes)) <= slack,
                    f"{what}: all ranks together hold {sum(shares):,.0f} bytes of each of AdamW's two states, expected "
                    f"{sum(sizes):,}",
                    "each parameter's states are on one rank, nothing of the step stays behind, and no other copies",
                )
                require(
                    max(shares) - min(shares) <= max(sizes) + slack,
                    f"{what}{_grouped(case)}: the ranks hold {', '.join(f'{share:,.0f}' for share in shares)} bytes of "
                    "each state",
                    "balance bytes, over all groups, and neither numbers of parameters nor of their values: no rank "
                    "owns more than another and the largest one",
                )
                for rank, (run, share) in enumerate(zip(runs, shares, strict=True)):
                    require(
                        run.computed_bytes >= _LEAST_WORK * share,
                        f"{what}, rank {rank}: a step moves {run.computed_bytes:,.0f} bytes to update "
                        f"{share:,.0f} bytes of weights, expected at least {_LEAST_WORK * share:,.0f}",
                        "the optimizer of the share updates it: it reads weight, gradient and states, and writes all "
                        "but the gradient",
                    )
            # Of cases that differ by the number of ranks alone.
            whole = sum(size_of(parameter) for parameter in inputs.cases[0]["parameters"])
            work.append(max(reply.runs[0].computed_bytes for reply in replies) / whole)
        on_two, on_four = work
        require(
            on_four <= _LESS_WORK * on_two,
            f"a step moves {on_two:.3g} times the parameters' bytes on one of 2 ranks, and {on_four:.3g} times on one "
            f"of 4; expected at most {_LESS_WORK * on_two:.3g}",
            "each rank updates its own share only: of four ranks each has half of the work that one of two has",
        )

    @requires("equals_unsharded")
    def test_each_weight_sent_once(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            inputs, replies = _held(submission, generator, ranks)
            case, messages = inputs.cases[0], replies[0].runs[0].collectives
            size = sum(map(size_of, case["parameters"]))
            # A byte goes around twice in an all-reduce; a rank's messages from and to one other are all but one share,
            # and shares are equal here.
            times = {"AllReduce": 2.0, "SendRecv": ranks / (ranks - 1)}
            carried = sum(message["bytes"] * times.get(kind_of(message), 1.0) for message in messages)
            sent = f"{_what(case, ranks)}: what goes around in a step is {in_words(messages)}"
            require(
                carried >= 0.999 * size,
                f"{sent}, expected all {size:,} bytes",
                "every rank needs what the others have updated",
            )
            require(
                carried <= 1.05 * size,
                f"{sent}, {carried / size:.2f} times the parameters' {mebibytes(size)}",
                _ONCE,
            )
            for other, run in zip(inputs.cases, replies[0].runs, strict=True):
                size = sum(map(size_of, other["parameters"]))
                reduced = 2 * total(run.collectives, "AllReduce")
                require(
                    reduced <= _FLAGS + 0.05 * size,
                    f"{_what(other, ranks)}: what goes around in a step is {in_words(run.collectives)}, of which "
                    f"all-reduces carry {reduced / size:.2f} times the parameters' {mebibytes(size)}",
                    _ONCE,
                )

    @requires("equals_unsharded")
    def test_state_saved_and_loaded(self, submission: Submission, generator: InputGenerator) -> None:
        for rank, case, run, expected in _trained(submission, reloaded(generator), 2):
            what = f"{_what(case, 2)}, state_dict() on rank {rank}"
            saved, whole = run.saved, expected.saved
            if saved is None or whole is None:
                raise TypeError("a case that is saved and loaded has a state")
            require_equal(saved.numbers, whole.numbers, what=f"{what}: parameters by group", hint=_WHOLE)
            require_equal(saved.options, whole.options, what=f"{what}: options", hint=_WHOLE)
            require_equal(sorted(saved.state), sorted(whole.state), what=f"{what}: states", hint=_WHOLE)
            for name, value in whole.state.items():
                require_arrays_close(
                    saved.state[name], value, rtol=1e-5, atol=1e-6, what=f"{what}: {name}", hint=_WHOLE
                )
            require_equal(saved.places, ["cpu"], what=f"{what}: where its tensors are", hint=_WHOLE)
            require_weights(
                run.weights,
                expected.weights,
                relative=_RELATIVE,
                what=f"{_what(case, 2)}: weights on rank {rank}, saved, every state halved, and loaded before "
                f"step {case['reloaded']}",
                hint="load_state_dict takes the states of this rank's share, by their numbers, and all options",
            )

    @requires("equals_unsharded")
    def test_late_group_shared_out(self, submission: Submission, generator: InputGenerator) -> None:
        shares: list[float] = []
        inputs = late_group(generator)
        for rank, case, run, expected in _trained(submission, inputs, 2):
            what = f"{_what(case, 2)}, a group added before step {case['late']}, rank {rank}"
            require_equal(run.options, expected.options, what=f"{what}: options", hint=_GROUPS)
            require_weights(
                run.weights,
                expected.weights,
                relative=_RELATIVE,
                what=f"{what}: weights",
                hint="new parameters are shared out as well, and the earlier ones keep their states",
            )
            if run.held is None:
                raise TypeError("a case with a late group looks at what is held")
            require_kept_here(what, run.held.elsewhere, 0, 0)
            shares.append(run.held.bytes / STATES[case["optimizer"]])
        (case,) = inputs.cases
        sizes = [size_of(parameter) for parameter in case["parameters"]]
        slack = _ROUNDING * len(sizes)
        what = f"{_what(case, 2)} of {sum(sizes):,} bytes in all, a group added before step {case['late']}"
        held = ", ".join(f"{share:,.0f}" for share in shares)
        require(
            abs(sum(shares) - sum(sizes)) <= slack and max(shares) - min(shares) <= max(sizes) + slack,
            f"{what}: the ranks hold {held} bytes of each state, expected {sum(sizes):,} in all, and no rank more than "
            "another and the largest parameter",
            "share the new group out as the first one: each parameter has one owner, and bytes are balanced",
        )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(on_ranks(submission, refused(generator), 2))


def _changes(case: OptimizerCase) -> str:
    if case["scheduler"]:
        return " with StepLR, which halves lr after each step"
    changed = " and ".join(f"{name} to {value:.3g}" for name, value in case["changed"].items())
    return f", when param_groups[1] changes {changed} after step 0" if changed else ""


_GROUPS = "every rank's param_groups have all parameters and all options, with the class's defaults"
_WHOLE = (
    "on the CPU, all ranks' states under the numbers of the whole optimizer, as that one's own state_dict() has them"
)


def _trained(
    submission: Submission, inputs: Train, ranks: int
) -> list[tuple[int, OptimizerCase, TrainedRun, TrainedRun]]:
    """For each rank and case what became of it, and what the whole optimizer makes of it."""
    replies = on_ranks(submission, inputs, ranks)
    expected = reference(submission, unsharded(inputs)).runs
    return [
        (rank, case, run, whole)
        for rank, reply in enumerate(replies)
        for case, run, whole in zip(inputs.cases, reply.runs, expected, strict=True)
    ]


def _held(submission: Submission, generator: InputGenerator, ranks: int) -> tuple[Hold, Sequence[HeldReply]]:
    """What each rank holds and sends; fails unless just that makes the weights right."""
    inputs = held(generator, ranks)
    replies, wholes = on_ranks(submission, inputs, ranks), reference(submission, unsharded(inputs)).runs
    for rank, reply in enumerate(replies):
        for case, run, whole in zip(inputs.cases, reply.runs, wholes, strict=True):
            require_weights(
                run.weights,
                whole.weights,
                relative=_RELATIVE,
                what=f"{_what(case, ranks)}: weights on rank {rank} after {case['steps']} steps",
                hint="what is held and sent is what updates every weight on every rank, large ones as well",
            )
    return inputs, replies


def _grouped(case: OptimizerCase) -> str:
    groups, kinds = len(case["groups"]), sorted({parameter["dtype"] for parameter in case["parameters"]})
    return (f", each in a group of its own ({groups})" if groups > 1 else "") + (
        f", in {' and '.join(kinds)}" if len(kinds) > 1 else ""
    )


def _what(case: OptimizerCase, ranks: int) -> str:
    return f"{case['optimizer']} of {len(case['parameters'])} parameters on {ranks} ranks"
