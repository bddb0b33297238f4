"""Judges the model under FSDP2: against one GPU, by the bytes that a rank holds, and by when it gathers what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.sharding.checks.common import MIXED, ask, judge_refusals, kind_of, require_weights, told, total, truth

_FEATURES, _STEPS, _BATCH = 16, 2, 8
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
        """Trains as one GPU does."""
        for ranks in (2, 4):
            cases, inputs, seen = _trained(submission, generator) if ranks == 2 else _on_four(submission, generator)
            runs = truth(submission, "network", cases=cases, **inputs).whole("runs")
            for rank, each in enumerate(seen):
                for case, run, whole in zip(cases, each.whole("runs"), runs, strict=True):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    for step, (loss, expected) in enumerate(zip(run["losses"], whole["losses"], strict=True)):
                        require_close(
                            loss,
                            expected,
                            relative=_LOSS,
                            what=f"{what}: loss of step {step}",
                            hint="the mean over the batches of all ranks, with the weights before the step",
                        )
                    require_equal(
                        run["gradients"], 0, what=f"{what}: gradients after train_step()", hint="each step has its own"
                    )
                    clipped = f", clipped to {case['max_norm']:.3g}" if case["max_norm"] else ""
                    require_weights(
                        run["weights"],
                        whole["weights"],
                        relative=_RELATIVE,
                        what=f"{what}: weights after {case['steps']} steps{clipped}",
                        hint="gradients are averaged over the ranks, and clipped by the norm of all of them together",
                    )

    @requires("equals_one_gpu")
    def test_share_held(self, submission: Submission, generator: InputGenerator) -> None:
        """Holds its share, and a few blocks on the way."""
        cases, _, seen = _trained(submission, generator)
        for rank, each in enumerate(seen):
            case, run = cases[0], each.runs[0]
            whole, block = _bytes(case)
            share = whole / len(seen)
            what = f"{_what(case, len(seen))}, rank {rank}"
            require(
                run["held"] <= _PADDING * 3 * share + _SLACK,
                f"{what}: holds {mebibytes(run['held'])} after a step, expected a share of parameters and of AdamW's "
                f"two states, {mebibytes(3 * share)}",
                "each block is sharded, and what is left is, too; the optimizer gets the sharded parameters",
            )
            require(
                run["shard_peak"] <= _PADDING * share + 1.5 * block + _SLACK,
                f"{what}: shard() needed {mebibytes(run['shard_peak'])} at most, expected a share of "
                f"{mebibytes(share)} and a block of {mebibytes(block)}",
                "leave the model on the CPU: fully_shard moves each block, and keeps a share of it",
            )
            most = _PADDING * share + _BLOCKS_AT_ONCE * block + _SLACK
            require(
                run["step_peak"] <= most,
                f"{what}: a step needs {mebibytes(run['step_peak'])} more than is held between steps, expected "
                f"{mebibytes(most)} at most: a share of the gradients and a few of {case['blocks']} blocks",
                "each block is a unit of its own, let go after its forward",
            )

    @requires("equals_one_gpu")
    def test_gathered_in_turn(self, submission: Submission, generator: InputGenerator) -> None:
        """Gathers blocks once or twice a step, as asked."""
        cases, _, seen = _trained(submission, generator)
        for case, run in zip(cases, seen[0].runs, strict=True):
            what = f"a step of {_what(case, len(seen))}, reshard_after_forward={case['reshard']}"
            whole, block = _bytes(case)
            rest = whole - case["blocks"] * block
            gathered, reduced = (total(run["collectives"], kind) for kind in ("AllGather", "ReduceScatter"))
            once = case["blocks"] * block
            # What is left and the last block are needed last in forward and first in backward: either is right.
            low, high = (2 * once - block + rest, 2 * (once + rest)) if case["reshard"] else (once, once + 2 * rest)
            hint = "reshard_after_forward decides for each block whether backward gathers it once more"
            sent = f"{what}: what goes around is {told(run['collectives'])}"
            message = f"{sent}; expected all-gathers of {low:,} to {high:,} bytes"
            require(0.99 * low <= gathered <= _PADDING * high, message, hint)
            require(
                0.99 * whole <= reduced <= _PADDING * whole,
                f"{sent}; expected each gradient reduce-scattered once, {whole:,} bytes",
                "one backward, one reduction of each gradient",
            )
            units = sum(kind_of(one) == "ReduceScatter" for one in run["collectives"])
            require_equal(
                units,
                case["blocks"] + 1,
                what=f"{what}: reduce-scatters",
                hint="one for each block, one for what is left of the model",
            )

    @requires("equals_one_gpu")
    def test_mixed_precision(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes in 16 bits, and keeps float32."""
        generator = generator.shared("sharding.fsdp.mixed")
        case = _case(generator, blocks=2, compute_dtype="bfloat16")
        inputs = _data(generator)
        seen = ask(submission, "fsdp.train", 2, device=MIXED, cases=[case], **inputs)
        (whole,) = truth(submission, "network", cases=[case], **inputs).runs
        size, _ = _bytes(case)
        for rank, each in enumerate(seen):
            (run,) = each.runs
            what = f"{_what(case, 2)}, compute_dtype=torch.bfloat16, rank {rank}"
            require_equal(run["dtypes"], ["bfloat16"], what=f"{what}: dtypes of the blocks' outputs", hint=_POLICY)
            require_equal(run["output_dtype"], "float32", what=f"{what}: dtype that the model returns", hint=_POLICY)
            require_equal(run["weight_dtypes"], ["float32"], what=f"{what}: dtypes of the parameters", hint=_POLICY)
            sums = sorted({one["name"] for one in run["collectives"] if kind_of(one) == "ReduceScatter"})
            require(
                bool(sums) and all("_f32_" in name for name in sums),
                f"{what}: gradients are summed by {', '.join(sums)}, expected float32 (f32)",
                "MixedPrecisionPolicy(reduce_dtype=...): sums in 16 bits lose what each rank adds",
            )
            gathered = total(run["collectives"], "AllGather")
            require(
                gathered <= _PADDING * size,
                f"{what}: all-gathers of {gathered:,} bytes in a step, expected two of {size // 2:,} at most",
                "MixedPrecisionPolicy(param_dtype=...): parameters travel in 16 bits",
            )
            for step, (loss, expected) in enumerate(zip(run["losses"], whole["losses"], strict=True)):
                require_close(loss, expected, relative=_MIXED_LOSS, what=f"{what}: loss of step {step}")

    @requires("equals_one_gpu")
    def test_gathered_ahead(self, submission: Submission, generator: InputGenerator) -> None:
        """Begins to gather as many blocks ahead as asked."""
        cases, _, seen = _trained(submission, generator)
        for case, run in zip(cases, seen[0].runs, strict=True):
            blocks, ahead = case["blocks"], case["prefetch"]
            begun, products = [], 0
            gathers = 0
            for turn in run["turns"]:
                if "AllGather" in turn:
                    gathers += 1
                elif turn == "product":
                    if products % 2 == 1 or products == 0:  # the first layer's one, then two for each block
                        begun.append(gathers)
                    products += 1
                if len(begun) == blocks + 1:
                    break
            found = [count - begun[0] for count in begun[1:]]
            require_equal(
                found,
                [min(index + 1 + ahead, blocks) for index in range(blocks)],
                what=f"forward of {_what(case, len(seen))}, prefetch={ahead}: blocks whose gathering has begun when "
                "block 0, 1, ... computes",
                hint="set_modules_to_forward_prefetch of each block names those that follow it, the next one first",
            )

    @requires("equals_one_gpu")
    def test_state_gathered_and_loaded(self, submission: Submission, generator: InputGenerator) -> None:
        """Gathers the whole state, and loads it."""
        case, seed = _case(generator, blocks=2), generator.integer(1001, 2000)
        seen = ask(submission, "fsdp.states", 2, case=case, other_seed=seed, **_data(generator))
        sizes = {name: case[name] for name in ("seed", "width", "blocks")}
        whole = truth(submission, "state", features=_FEATURES, **sizes)
        first, other = seen
        what = "gather_state()"
        require_equal(sorted(first.names), sorted(whole.names), what=f"names in {what} on rank 0", hint=_STATE)
        require_equal(first.kinds, ["Tensor"], what=f"tensors of {what}", hint=_STATE)
        require_equal(first.places, ["cpu"], what=f"where the tensors of {what} are", hint=_STATE)
        require_equal(other.names, [], what=f"names in {what} on rank 1", hint=_STATE)
        state = first.whole("state")
        for name, shape in whole.shapes.items():
            require_equal(list(np.shape(state[name])), shape, what=f"shape of {name} in {what}", hint=_STATE)
        parameters = [name for name in whole.names if name != "factors"]
        flat = np.concatenate([np.ravel(state[name]) for name in parameters])
        require_arrays_close(flat, first.weights, rtol=1e-6, what=f"parameters in {what}", hint=_STATE)
        require_arrays_close(state["factors"], whole.factors, rtol=1e-6, what=f"the buffer in {what}", hint=_STATE)
        for rank, each in enumerate(seen):
            what = f"load_state() into a model of other weights, rank {rank}"
            require_arrays_close(each.loaded, first.weights, rtol=1e-6, what=f"{what}: weights", hint=_LOAD)
            require_arrays_close(each.factors, whole.factors, rtol=1e-6, what=f"{what}: the buffer", hint=_LOAD)
            require_equal(each.untouched, True, what=f"{what}: the state is what it was", hint=_COPY)
            share = first.weights.size / len(seen)
            require(
                each.sharded and each.local <= _PADDING * share + 64,
                f"{what}: the rank has {each.local} numbers of parameters, expected a share of {share:.0f}",
                "the model stays sharded",
            )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(ask(submission, "fsdp.refusals", 2, width=2 * generator.integer(4, 8)))


_POLICY = "MixedPrecisionPolicy: blocks compute in param_dtype; what the optimizer has and the model returns is float32"
_STATE = "the whole state, parameters and buffers, as ordinary tensors on the CPU of rank 0; nothing elsewhere"
_LOAD = "rank 0 gives every rank its part of each parameter, and every buffer"
_COPY = "set_model_state_dict puts its own tensors into the dictionary that it is given"


def _case(generator: InputGenerator, **changed: Any) -> dict[str, Any]:
    return {
        "width": 64,
        "blocks": 8,
        "seed": generator.integer(1, 1000),
        "optimizer": "AdamW",
        "lr": generator.uniform(0.005, 0.02),
        "steps": _STEPS,
        "max_norm": None,
        "compute_dtype": None,
        "reshard": True,
        "prefetch": 0,
        **changed,
    }


def _data(generator: InputGenerator) -> dict[str, Any]:
    return {
        "inputs": generator.normal(_STEPS, _BATCH, _FEATURES),
        "targets": generator.normal(_STEPS, _BATCH, _FEATURES),
    }


def _trained(
    submission: Submission, generator: InputGenerator
) -> tuple[list[dict[str, Any]], dict[str, Any], Sequence[Seen]]:
    """Two trainings on two ranks, of which each has the other value of every option."""
    generator = generator.shared("sharding.fsdp.trained")
    inputs = _data(generator)
    cases = [
        _case(generator, max_norm=generator.uniform(0.5, 2.0)),
        _case(generator, blocks=generator.integer(4, 5), optimizer="SGD", reshard=False, prefetch=2),
    ]
    return cases, inputs, ask(submission, "fsdp.train", 2, cases=cases, **inputs)


def _on_four(
    submission: Submission, generator: InputGenerator
) -> tuple[list[dict[str, Any]], dict[str, Any], Sequence[Seen]]:
    """A small one on four ranks, whose blocks they cannot share evenly."""
    inputs = _data(generator)
    case = _case(generator, width=generator.odd(9, 15), blocks=1, max_norm=generator.uniform(0.5, 2.0))
    return [case], inputs, ask(submission, "fsdp.train", 4, cases=[case], **inputs)


def _bytes(case: dict[str, Any]) -> tuple[int, int]:
    """Of the network's parameters in float32, and of one of its blocks."""
    width = case["width"]
    block = 4 * (4 * width * width + 3 * width)
    rest = 4 * (2 * _FEATURES * width + width)
    return rest + case["blocks"] * block, block


def _what(case: dict[str, Any], ranks: int) -> str:
    return f"a model of {case['blocks']} blocks of width {case['width']} on {ranks} ranks"
