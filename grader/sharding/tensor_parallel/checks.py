"""Judges the tensor-parallel MLP: against NumPy, by its messages, and by what a rank keeps."""

from __future__ import annotations

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.sharding.shared.checks import in_words, judge_refusals, kind_of, on_ranks, require_kept_here
from grader.sharding.tensor_parallel.cases import (
    FUNCTIONS,
    HOST_HIDDEN,
    HOST_WIDTH,
    KINDS,
    LayersCase,
    LayersRun,
    Refuse,
    copied_and_summed,
    shared_layers,
)
from grader.sharding.tensor_parallel.reference import Passes, part_of, passes_of_ranks, whole_parameters

_RTOL, _ATOL = 2e-4, 5e-5
"""Of float32 in sums of some dozens of products; measured: 2e-6."""
_ROUNDING = 512
_SIZES = {"float32": 4, "float64": 8}


@criterion("sharding.tensor_parallel")
class TestTensorParallel:
    def test_copies_and_sums(self, submission: Submission, generator: InputGenerator) -> None:
        ranks = 2
        inputs = copied_and_summed(generator, ranks)
        values = inputs.numbers
        for rank, reply in enumerate(on_ranks(submission, inputs, ranks)):
            for function in FUNCTIONS:
                for kind, words in KINDS.items():
                    run, slopes = reply.runs[f"{function}, {kind}"], inputs.slopes
                    if kind == "expanded":
                        slopes = np.broadcast_to(slopes[:, :1, :1], slopes.shape)
                    copies = function == FUNCTIONS[0]
                    output = values[rank] if copies else values.sum(axis=0)
                    gradient = slopes.sum(axis=0) if copies else slopes[rank]
                    what = f"{function}() on {ranks} ranks, rank {rank}, {words}"
                    for name, actual, expected in (
                        ("output", run.output, output), ("gradient", run.gradient, gradient),
                    ):  # fmt: skip
                        require_arrays_close(
                            actual, expected, rtol=_RTOL, atol=_ATOL, what=f"{what}: {name}", hint=_PASSES
                        )
                    require_equal(
                        run.untouched,
                        True,
                        what=f"{what}: its input and the gradient are left as they are",
                        hint="dist.all_reduce writes into what it is given: give it a copy",
                    )
                    for passed, messages, talks in (
                        ("forward", run.forward, not copies), ("backward", run.backward, copies),
                    ):  # fmt: skip
                        require_equal(
                            [kind_of(message) for message in messages],
                            ["AllReduce"] * talks,
                            what=f"{what}: messages in {passed}",
                            hint=_PASSES,
                        )

    def test_output_equals_whole(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            for case, runs, passes in _layers(submission, generator, ranks):
                for rank, (run, expected) in enumerate(zip(runs, passes, strict=True)):
                    require_arrays_close(
                        run.output,
                        expected.output,
                        rtol=_RTOL,
                        atol=_ATOL,
                        what=f"{_what(case, ranks)}: output on rank {rank}",
                        hint="rows of the first layer, columns of the second, a sum over the group, and the last bias "
                        "once",
                    )
                    require_equal(
                        run.untouched, True, what=f"{_what(case, ranks)}: the whole layers are left as they are"
                    )

    @requires("output_equals_whole")
    def test_gradients_equal_whole(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            for case, runs, passes in _layers(submission, generator, ranks):
                shared = 2 if case["pairs"] else ranks
                for rank, (run, expected) in enumerate(zip(runs, passes, strict=True)):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    require(run.input_gradient is not None, f"{what}: the input has no gradient", _F)
                    require_arrays_close(
                        run.input_gradient,
                        expected.input_gradient,
                        rtol=_RTOL,
                        atol=_ATOL,
                        what=f"{what}: gradient of the input",
                        hint=_F,
                    )
                    biases = _biases(case)
                    names = sorted(name for name in expected.gradients if biases.get(name, True))
                    require_equal(sorted(run.parts), names, what=f"{what}: parameters", hint=_NAMES)
                    for name in names:
                        whole = expected.gradients[name]
                        part = part_of(whole, name, rank % shared, shared)
                        require(run.gradients[name] is not None, f"{what}: {name} has no gradient", _NAMES)
                        require_arrays_close(
                            run.gradients[name],
                            part,
                            rtol=_RTOL,
                            atol=_ATOL,
                            what=f"{what}: gradient of {name}",
                            hint="that of its own part of the whole layer; that of down_bias is the same on each rank",
                        )

    @requires("output_equals_whole")
    def test_one_message_each_way(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            for case, runs, passes in _layers(submission, generator, ranks):
                for rank, (run, expected) in enumerate(zip(runs, passes, strict=True)):
                    for passed, messages, values in (
                        ("forward", run.forward, expected.output), ("backward", run.backward, expected.input_gradient),
                    ):  # fmt: skip
                        size = _SIZES[case["dtype"]] * values.size
                        require(
                            [kind_of(message) for message in messages] == ["AllReduce"]
                            and messages[0]["bytes"] == size,
                            f"{_what(case, ranks)}, rank {rank}: {in_words(messages)} in {passed}, expected "
                            f"1 x AllReduce ({size:,} bytes)",
                            "forward sums outputs, backward sums gradients of the input; hidden features do not travel",
                        )

    @requires("output_equals_whole")
    def test_share_held(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks in (2, 4):
            inputs = shared_layers(generator, ranks)
            for case, runs, _ in _layers(submission, generator, ranks):
                shared = 2 if case["pairs"] else ranks
                whole = {name: value for name, value in whole_parameters(case, inputs).items() if value.size}
                parts = {name: part_of(value, name, 0, shared) for name, value in whole.items()}
                count = sum(part.size for part in parts.values())
                for rank, run in enumerate(runs):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    for name, value in whole.items():
                        require(name in run.parts, f"{what}: there is no parameter {name}", _NAMES)
                        require_arrays_close(
                            run.parts[name],
                            part_of(value, name, rank % shared, shared),
                            rtol=1e-6,
                            what=f"{what}: {name}",
                            hint=_NAMES,
                        )
                    require_equal(run.count, count, what=f"{what}: numbers in all parameters", hint=_NAMES)
                    require_equal(run.dtypes, [case["dtype"]], what=f"{what}: dtypes of the parameters")
                    size = _SIZES[case["dtype"]]
                    require_kept_here(what, run.elsewhere, run.copied_bytes, _ROUNDING)
                    require(
                        run.layers_kept == 0,
                        f"{what}: keeps {run.layers_kept} weights and biases of the whole layers in the host's memory "
                        "after the caller has dropped them",
                        "copy the part to the GPU, and keep no name of the layers or of their parameters",
                    )
                    require(
                        size * count <= run.held <= size * count + _ROUNDING * len(parts),
                        f"{what}: holds {run.held:,} bytes on its GPU, expected {size * count:,}",
                        "a view of a whole weight keeps all of it: copy the part, and leave the layers where they are",
                    )

            whole_bytes = 4 * (2 * HOST_WIDTH * HOST_HIDDEN + HOST_WIDTH + HOST_HIDDEN)
            for rank, reply in enumerate(on_ranks(submission, inputs, ranks)):
                require(
                    reply.host_bytes is None or reply.host_bytes < (1 / ranks + _HOST_SLACK) * whole_bytes,
                    f"ParallelMLP() on {ranks} ranks, rank {rank}: takes {reply.host_bytes} bytes of the host for "
                    f"layers of {whole_bytes}, where the GPU with its own part is simulated",
                    "copy the part to the GPU, and nothing else; the caller has the layers",
                )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(on_ranks(submission, Refuse(hidden=2 * generator.integer(2, 6)), 2))


_HOST_SLACK = 0.25
"""Of the whole layers; measured in four right styles: 0.004."""
_PASSES = "f: nothing forward, a sum backward; g: a sum forward, nothing backward"
_F = "each rank has a part of it: copy_to_ranks sums them in backward"
_NAMES = "up_weight and up_bias: rows; down_weight: columns; down_bias: whole. In the order of the ranks in the group"


def _layers(
    submission: Submission, generator: InputGenerator, ranks: int
) -> list[tuple[LayersCase, list[LayersRun], list[Passes]]]:
    """Each case, what each rank observed of it, and what the whole layers do with that rank's inputs."""
    inputs = shared_layers(generator, ranks)
    replies = on_ranks(submission, inputs, ranks)
    return [
        (case, [reply.runs[index] for reply in replies], passes_of_ranks(case, inputs, ranks))
        for index, case in enumerate(inputs.cases)
    ]


def _biases(case: LayersCase) -> dict[str, bool]:
    """Whether each of them is there."""
    return {"up_bias": case["up_bias"], "down_bias": case["down_bias"]}


def _what(case: LayersCase, ranks: int) -> str:
    group = " in pairs" if case["pairs"] else ""
    left_out = "".join(f", {name}=None" for name, there in _biases(case).items() if not there)
    kind = f", {case['dtype']}" * (case["dtype"] != "float32")
    return (
        f"ParallelMLP() of {case['features']}, {case['hidden']} and {case['outputs']} features, {case['activation']}"
        f"{kind}{left_out}, on {ranks} ranks{group}"
    )
