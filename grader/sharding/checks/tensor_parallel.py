"""Judges the tensor-parallel MLP: against NumPy, by its messages, and by what a rank keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.sharding.checks.common import ask, judge_refusals, kind_of, told
from grader.sharding.truth.mlp import Layers, Passes, both_passes

_RTOL, _ATOL = 2e-4, 5e-5
"""Of float32 in sums of some dozens of products; measured: 2e-6."""
_MOST, _NARROW = 128, 28
"""Hidden features at most, and others."""
_WEIGHT = 0.2
"""Of a weight, so that outputs are about 1."""
_SPLIT = {"up_weight": 0, "up_bias": 0, "down_weight": 1}
"""The side of each parameter that is shared out."""
_ROUNDING = 512
_SIZES = {"float32": 4, "float64": 8}
_KINDS = {
    "contiguous": "contiguous tensors",
    "transposed": "transposed tensors",
    "expanded": "a gradient with strides of 0",
}
_FUNCTIONS = ("copy_to_ranks", "sum_over_ranks")


@criterion("sharding.tensor_parallel")
class TestTensorParallel:
    def test_copies_and_sums(self, submission: Submission, generator: InputGenerator) -> None:
        """Copies and sums, forward and backward."""
        ranks, shape = 2, (generator.integer(3, 6), generator.integer(4, 7))
        values, slopes = generator.normal(ranks, *shape), generator.normal(ranks, *shape)
        seen = ask(submission, "tensor_parallel.functions", ranks, numbers=values, slopes=slopes)
        for rank, each in enumerate(seen):
            found = each.whole("seen")
            for function in _FUNCTIONS:
                for kind in _KINDS:
                    one = found[f"{function}, {kind}"]
                    given = slopes if kind != "expanded" else np.broadcast_to(slopes[:, :1, :1], slopes.shape)
                    copies = function == _FUNCTIONS[0]
                    output = values[rank] if copies else values.sum(axis=0)
                    gradient = given.sum(axis=0) if copies else given[rank]
                    what = f"{function}() on {ranks} ranks, rank {rank}, {_KINDS[kind]}"
                    for name, expected in (("output", output), ("gradient", gradient)):
                        require_arrays_close(
                            one[name], expected, rtol=_RTOL, atol=_ATOL, what=f"{what}: {name}", hint=_PASSES
                        )
                    require_equal(
                        one["untouched"],
                        True,
                        what=f"{what}: its input and the gradient are left as they are",
                        hint="dist.all_reduce writes into what it is given: give it a copy",
                    )
                    for passed, talks in (("forward", not copies), ("backward", copies)):
                        require_equal(
                            [kind_of(message) for message in one[passed]],
                            ["AllReduce"] * talks,
                            what=f"{what}: messages in {passed}",
                            hint=_PASSES,
                        )

    def test_output_equals_whole(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes what the whole layers do."""
        for ranks in (2, 4):
            for case, seen, passes in _layers(submission, generator, ranks):
                for rank, (run, expected) in enumerate(zip(seen, passes, strict=True)):
                    require_arrays_close(
                        run["output"],
                        expected.output,
                        rtol=_RTOL,
                        atol=_ATOL,
                        what=f"{_what(case, ranks)}: output on rank {rank}",
                        hint="rows of the first layer, columns of the second, a sum over the group, and the last bias "
                        "once",
                    )
                    require_equal(
                        run["untouched"], True, what=f"{_what(case, ranks)}: the whole layers are left as they are"
                    )

    @requires("output_equals_whole")
    def test_gradients_equal_whole(self, submission: Submission, generator: InputGenerator) -> None:
        """Has the gradients of the whole layers."""
        for ranks in (2, 4):
            for case, seen, passes in _layers(submission, generator, ranks):
                shared = 2 if case["pairs"] else ranks
                for rank, (run, expected) in enumerate(zip(seen, passes, strict=True)):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    require(run["input_gradient"] is not None, f"{what}: the input has no gradient", _F)
                    require_arrays_close(
                        run["input_gradient"],
                        expected.input_gradient,
                        rtol=_RTOL,
                        atol=_ATOL,
                        what=f"{what}: gradient of the input",
                        hint=_F,
                    )
                    names = sorted(name for name in expected.gradients if case.get(name, True))
                    require_equal(sorted(run["parts"]), names, what=f"{what}: parameters", hint=_NAMES)
                    for name in names:
                        whole = expected.gradients[name]
                        wanted = _part(whole, name, rank % shared, shared)
                        require(run["gradients"][name] is not None, f"{what}: {name} has no gradient", _NAMES)
                        require_arrays_close(
                            run["gradients"][name],
                            wanted,
                            rtol=_RTOL,
                            atol=_ATOL,
                            what=f"{what}: gradient of {name}",
                            hint="that of its own part of the whole layer; that of down_bias is the same on each rank",
                        )

    @requires("output_equals_whole")
    def test_one_message_each_way(self, submission: Submission, generator: InputGenerator) -> None:
        """Sends one message each way."""
        for ranks in (2, 4):
            for case, seen, passes in _layers(submission, generator, ranks):
                for rank, (run, expected) in enumerate(zip(seen, passes, strict=True)):
                    for passed, values in (("forward", expected.output), ("backward", expected.input_gradient)):
                        messages, size = run[passed], _SIZES[case["dtype"]] * values.size
                        require(
                            [kind_of(one) for one in messages] == ["AllReduce"] and messages[0]["bytes"] == size,
                            f"{_what(case, ranks)}, rank {rank}: {told(messages)} in {passed}, expected "
                            f"1 x AllReduce ({size:,} bytes)",
                            "forward sums outputs, backward sums gradients of the input; hidden features do not travel",
                        )

    @requires("output_equals_whole")
    def test_share_held(self, submission: Submission, generator: InputGenerator) -> None:
        """Keeps its own part of the layers only."""
        for ranks in (2, 4):
            for case, seen, _ in _layers(submission, generator, ranks):
                shared = 2 if case["pairs"] else ranks
                whole = {name: value for name, value in _whole(case, _inputs(generator, ranks)).items() if value.size}
                parts = {name: _part(value, name, 0, shared) for name, value in whole.items()}
                count = sum(part.size for part in parts.values())
                for rank, run in enumerate(seen):
                    what = f"{_what(case, ranks)}, rank {rank}"
                    for name, value in whole.items():
                        require(name in run["parts"], f"{what}: there is no parameter {name}", _NAMES)
                        require_arrays_close(
                            run["parts"][name],
                            _part(value, name, rank % shared, shared),
                            rtol=1e-6,
                            what=f"{what}: {name}",
                            hint=_NAMES,
                        )
                    require_equal(run["count"], count, what=f"{what}: numbers in all parameters", hint=_NAMES)
                    require_equal(run["dtypes"], [case["dtype"]], what=f"{what}: dtypes of the parameters")
                    size = _SIZES[case["dtype"]]
                    require(
                        run["held"] <= size * count + _ROUNDING * len(parts),
                        f"{what}: holds {run['held']:,} bytes on its GPU, expected {size * count:,}",
                        "a view of a whole weight keeps all of it: copy the part, and leave the layers where they are",
                    )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(ask(submission, "tensor_parallel.refusals", 2, hidden=2 * generator.integer(2, 6)))


_PASSES = "f: nothing forward, a sum backward; g: a sum forward, nothing backward"
_F = "each rank has a part of it: copy_to_ranks sums them in backward"
_NAMES = "up_weight and up_bias: rows; down_weight: columns; down_bias: whole. In the order of the ranks in the group"


def _inputs(generator: InputGenerator, ranks: int) -> dict[str, Any]:
    generator = generator.shared(f"sharding.tensor_parallel.{ranks}")
    up_bias, down_bias = generator.shuffled([True, False]), generator.shuffled([True, False])
    activations = generator.shuffled(["gelu", "relu", "silu"])
    cases = []
    for index in range(2):
        cases.append(
            {
                "hidden": ranks * generator.integer(24, 32),  # what is whole is seen above the allocator's rounding
                "features": generator.integer(12, 20),
                "outputs": generator.integer(21, 28),
                "up_bias": up_bias[index],
                "down_bias": down_bias[index],
                "activation": activations[index],
                "pairs": ranks == 4 and index == 1,
                "dtype": ("float32", "float64")[ranks == 2 and index == 1],
            }
        )
    if ranks == 2:
        cases[0].update(up_bias=True, down_bias=True, activation="gelu")
    length = generator.integer(2, 4)
    return {
        "cases": cases,
        "up": _WEIGHT * generator.normal(_MOST, _MOST),
        "down": _WEIGHT * generator.normal(_MOST, _MOST),
        "biases": generator.normal(2, _MOST),
        "inputs": generator.normal(ranks // 2, 3, length, _NARROW),
        "slopes": generator.normal(ranks // 2, 3, length, _NARROW),
    }


def _layers(
    submission: Submission, generator: InputGenerator, ranks: int
) -> list[tuple[dict[str, Any], list[dict[str, Any]], list[Passes]]]:
    """Each case, what each rank saw of it, and what the whole layers do with that rank's inputs."""
    inputs = _inputs(generator, ranks)
    seen: list[Seen] = ask(submission, "tensor_parallel.layers", ranks, **inputs)
    runs = [each.whole("runs") for each in seen]
    made = []
    for index, case in enumerate(inputs["cases"]):
        whole = _whole(case, inputs)
        layers = Layers(
            whole["up_weight"],
            whole["up_bias"] if case["up_bias"] else None,
            whole["down_weight"],
            whole["down_bias"] if case["down_bias"] else None,
        )
        passes = []
        for rank in range(ranks):
            pair = rank // 2 if case["pairs"] else 0
            x, slopes = (np.asarray(inputs[name][pair], np.float64) for name in ("inputs", "slopes"))
            passes.append(
                both_passes(layers, case["activation"], x[..., : case["features"]], slopes[..., : case["outputs"]])
            )
        made.append((case, [each[index] for each in runs], passes))
    return made


def _whole(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """The whole layers' weights and biases; a bias that is not there has no elements."""
    hidden, features, outputs = case["hidden"], case["features"], case["outputs"]
    biases = inputs["biases"]
    values = {
        "up_weight": inputs["up"][:hidden, :features],
        "up_bias": biases[0][: hidden * case["up_bias"]],
        "down_weight": inputs["down"][:outputs, :hidden],
        "down_bias": biases[1][: outputs * case["down_bias"]],
    }
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


def _part(whole: Any, name: str, number: int, ranks: int) -> Any:
    """The part of a parameter that the rank of this number in its group has."""
    return whole if name not in _SPLIT else np.split(whole, ranks, axis=_SPLIT[name])[number]


def _what(case: dict[str, Any], ranks: int) -> str:
    group = " in pairs" if case["pairs"] else ""
    left_out = "".join(f", {name}=None" for name in ("up_bias", "down_bias") if not case[name])
    kind = f", {case['dtype']}" * (case["dtype"] != "float32")
    return (
        f"ParallelMLP() of {case['features']}, {case['hidden']} and {case['outputs']} features, {case['activation']}"
        f"{kind}{left_out}, on {ranks} ranks{group}"
    )
