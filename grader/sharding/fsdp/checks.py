"""Judges the model under FSDP2: against one GPU, by the bytes that a rank holds, and by when it gathers what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.sharding.fsdp.cases import (
    CHANGED,
    Refuse,
    Train,
    TrainCase,
    TrainReply,
    gathered,
    mixed_training,
    on_one_gpu,
    small_training,
    training,
    whole_state,
)
from grader.sharding.fsdp.reference import begun_ahead, block_flops, gathered_bytes, parameter_bytes
from grader.sharding.shared.checks import (
    MIXED,
    in_words,
    judge_refusals,
    kind_of,
    on_ranks,
    reference,
    require_kept_here,
    require_weights,
    total,
)

_RELATIVE = 5e-4
"""Of the largest weight. Measured, five seeds: 7e-7 at most."""
_LOSS = 1e-4
_PADDING = 1.1
"""Shares are padded to whole rows, and gathered with what is padded."""
_BLOCKS_AT_ONCE = 4.5
"""Blocks' worth of memory in a step beside the gradients' shares: measured 3.3 (two gathered, one gradient whole)."""
_SLACK = 2**14
"""Bytes: activations of a few samples, the allocator's granularity."""
_MIXED_LOSS = 0.05
"""Measured: 0.002."""


@criterion("sharding.fsdp")
class TestFsdp:
    def test_equals_one_gpu(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            inputs = training(generator) if ranks == 2 else small_training(generator)
            replies = on_ranks(submission, inputs, ranks)
            references = reference(submission, on_one_gpu(inputs)).runs
            for rank, reply in enumerate(replies):
                for case, run, whole in zip(inputs.cases, reply.runs, references, strict=True):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    for step, (loss, expected) in enumerate(zip(run.losses, whole.losses, strict=True)):
                        require_close(
                            loss,
                            expected,
                            relative=_LOSS,
                            what=f"{what}: loss of step {step}",
                            hint="the mean over the batches of all ranks, with the weights before the step",
                        )
                    require_equal(
                        run.gradients, 0, what=f"{what}: gradients after train_step()", hint="each step has its own"
                    )
                    clipped = f", clipped to {case['max_norm']:.3g}" if case["max_norm"] else ""
                    require_weights(
                        run.weights,
                        whole.weights,
                        relative=_RELATIVE,
                        what=f"{what}: weights after {case['steps']} steps{clipped}",
                        hint="gradients are averaged over the ranks, and clipped by the norm of all of them together",
                    )

    @requires("equals_one_gpu")
    def test_share_held(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, replies = _trained(submission, generator)
        for rank, reply in enumerate(replies):
            case, run = inputs.cases[0], reply.runs[0]
            whole, block = parameter_bytes(case)
            share = whole / len(replies)
            what = f"{_what(case, len(replies))}, rank {rank}"
            require(
                share <= run.held <= _PADDING * 3 * share + _SLACK,
                f"{what}: holds {mebibytes(run.held)} after a step, expected a share of parameters and of AdamW's "
                f"two states, {mebibytes(3 * share)}",
                "each block is sharded, and what is left is, too; the optimizer gets the sharded parameters",
            )
            require_kept_here(what, run.elsewhere, run.copied_bytes, block // 4)
            require(
                run.shard_peak <= _PADDING * share + 1.5 * block + _SLACK,
                f"{what}: shard() needed {mebibytes(run.shard_peak)} at most, expected a share of "
                f"{mebibytes(share)} and a block of {mebibytes(block)}",
                "leave the model on the CPU: fully_shard moves each block, and keeps a share of it",
            )
            most = _PADDING * share + _BLOCKS_AT_ONCE * block + _SLACK
            require(
                run.step_peak <= most,
                f"{what}: a step needs {mebibytes(run.step_peak)} more than is held between steps, expected "
                f"{mebibytes(most)} at most: a share of the gradients and a few of {case['blocks']} blocks",
                "each block is a unit of its own, let go after its forward",
            )

    @requires("equals_one_gpu")
    def test_gathered_in_turn(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, replies = _trained(submission, generator)
        for case, run in zip(inputs.cases, replies[0].runs, strict=True):
            what = f"a step of {_what(case, len(replies))}, reshard_after_forward={case['reshard']}"
            whole, _ = parameter_bytes(case)
            collected, reduced = (total(run.collectives, kind) for kind in ("AllGather", "ReduceScatter"))
            low, high = gathered_bytes(case)
            hint = "reshard_after_forward decides for each block whether backward gathers it once more"
            sent = f"{what}: what goes around is {in_words(run.collectives)}"
            message = f"{sent}; expected all-gathers of {low:,} to {high:,} bytes"
            require(0.99 * low <= collected <= _PADDING * high, message, hint)
            require(
                0.99 * whole <= reduced <= _PADDING * whole,
                f"{sent}; expected each gradient reduce-scattered once, {whole:,} bytes",
                "one backward, one reduction of each gradient",
            )
            units = sum(kind_of(message) == "ReduceScatter" for message in run.collectives)
            require_equal(
                units,
                case["blocks"] + 1,
                what=f"{what}: reduce-scatters",
                hint="one for each block, one for what is left of the model",
            )

    @requires("equals_one_gpu")
    def test_mixed_precision(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = mixed_training(generator)
        (case,) = inputs.cases
        replies = on_ranks(submission, inputs, 2, device=MIXED)
        (whole,) = reference(submission, on_one_gpu(inputs)).runs
        size, _ = parameter_bytes(case)
        for rank, reply in enumerate(replies):
            (run,) = reply.runs
            what = f"{_what(case, 2)}, compute_dtype=torch.bfloat16, rank {rank}"
            low = sum(ran["flops"] * ran["count"] for ran in run.products if ran["dtype"] == "bfloat16")
            of_blocks = block_flops(case, 2)
            require(
                low >= of_blocks,
                f"{what}: a step has products of {low:,} FLOPs in bfloat16, expected the {of_blocks:,} of all blocks",
                _POLICY,
            )
            require_equal(run.output_dtype, "float32", what=f"{what}: dtype that the model returns", hint=_POLICY)
            require_equal(run.weight_dtypes, ["float32"], what=f"{what}: dtypes of the parameters", hint=_POLICY)
            sums = sorted({message["name"] for message in run.collectives if kind_of(message) == "ReduceScatter"})
            require(
                bool(sums) and all("_f32_" in name for name in sums),
                f"{what}: gradients are summed by {', '.join(sums)}, expected float32 (f32)",
                "MixedPrecisionPolicy(reduce_dtype=...): sums in 16 bits lose what each rank adds",
            )
            collected = total(run.collectives, "AllGather")
            require(
                collected <= _PADDING * size,
                f"{what}: all-gathers of {collected:,} bytes in a step, expected two of {size // 2:,} at most",
                "MixedPrecisionPolicy(param_dtype=...): parameters travel in 16 bits",
            )
            for step, (loss, expected) in enumerate(zip(run.losses, whole.losses, strict=True)):
                require_close(loss, expected, relative=_MIXED_LOSS, what=f"{what}: loss of step {step}")

    @requires("equals_one_gpu")
    def test_gathered_ahead(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, replies = _trained(submission, generator)
        mixed = mixed_training(generator)
        runs = [*replies[0].runs, *on_ranks(submission, mixed, 2, device=MIXED)[0].runs]
        for case, run in zip([*inputs.cases, *mixed.cases], runs, strict=True):
            begun, products = [], 0
            gathers = 0
            for turn in run.turns:
                if "AllGather" in turn:
                    gathers += 1
                elif turn == "product":
                    if products % 2 == 1 or products == 0:  # the first layer's one, then two for each block
                        begun.append(gathers)
                    products += 1
                if len(begun) == case["blocks"] + 1:
                    break
            require_equal(
                [count - begun[0] for count in begun[1:]],
                begun_ahead(case),
                what=f"forward of {_what(case, len(replies))}, prefetch={case['prefetch']}: blocks whose gathering has "
                "begun when block 0, 1, ... computes",
                hint="set_modules_to_forward_prefetch of each block names the blocks after it, the next one first",
            )

    @requires("equals_one_gpu")
    def test_state_gathered_and_loaded(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = gathered(generator)
        replies = on_ranks(submission, inputs, 2)
        whole = reference(submission, whole_state(inputs.case))
        first, other = replies
        what = "gather_state()"
        require_equal(sorted(first.names), sorted(whole.names), what=f"names in {what} on rank 0", hint=_STATE)
        require_equal(first.kinds, ["Tensor"], what=f"tensors of {what}", hint=_STATE)
        require_equal(first.places, ["cpu"], what=f"where the tensors of {what} are", hint=_STATE)
        require_equal(other.names, [], what=f"names in {what} on rank 1", hint=_STATE)
        state = first.state
        for name, shape in whole.shapes.items():
            require_equal(list(np.shape(state[name])), shape, what=f"shape of {name} in {what}", hint=_STATE)
        parameters = [name for name in whole.names if name != "factors"]
        flat = np.concatenate([np.ravel(state[name]) for name in parameters])
        require_arrays_close(flat, first.weights, rtol=1e-6, what=f"parameters in {what}", hint=_STATE)
        require_arrays_close(state["factors"], whole.factors, rtol=1e-6, what=f"the buffer in {what}", hint=_STATE)
        for rank, reply in enumerate(replies):
            what = f"load_state() of {CHANGED:g} times that state into a model of other weights, rank {rank}"
            loaded, factors = CHANGED * first.weights, CHANGED * whole.factors
            require_arrays_close(reply.loaded, loaded, rtol=1e-6, what=f"{what}: weights", hint=_LOAD)
            require_arrays_close(reply.factors, factors, rtol=1e-6, what=f"{what}: the buffer", hint=_LOAD)
            require_equal(reply.untouched, True, what=f"{what}: the state is what it was", hint=_COPY)
            share = first.weights.size / len(replies)
            require(
                reply.sharded and reply.local <= _PADDING * share + 64,
                f"{what}: the rank has {reply.local} numbers of parameters, expected a share of {share:.0f}",
                "the model stays sharded",
            )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(on_ranks(submission, Refuse(width=2 * generator.integer(4, 8)), 2))


_POLICY = "MixedPrecisionPolicy: blocks compute in param_dtype; what the optimizer has and the model returns is float32"
_STATE = "the whole state, parameters and buffers, as ordinary tensors on the CPU of rank 0; nothing elsewhere"
_LOAD = "rank 0 gives every rank its part of each parameter, and every buffer"
_COPY = "set_model_state_dict puts its own tensors into the dictionary that it is given"


def _trained(submission: Submission, generator: InputGenerator) -> tuple[Train, Sequence[TrainReply]]:
    """The trainings of two ranks."""
    inputs = training(generator)
    return inputs, on_ranks(submission, inputs, 2)


def _what(case: TrainCase, ranks: int) -> str:
    return f"a model of {case['blocks']} blocks of width {case['width']} on {ranks} ranks"
