"""What the exercise "sharding" takes for right: gradients by differences, published tables, what a record says."""

from __future__ import annotations

import numpy as np
import pytest

from grader.sharding.analysis import reference
from grader.sharding.tensor_parallel.reference import Array, Layers, both_passes
from grader.shared.readings import read
from labkit.results import ShardedMemory
from solutions.sharding_exercise.analysis import largest_model, memory_per_rank
from vgpu.device.queue import Kernel

# Table 1 of arXiv:1910.02054: GB per rank of 7.5 billion parameters, by ranks, for the stages 1, 2 and 3.
TABLE_1 = {
    1: (120, 120, 120), 4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88),
    256: (30.4, 15.4, 0.47), 1024: (30.1, 15.1, 0.12),
}  # fmt: skip
# Table 2 of the same: billions of parameters that fit into 32 GB on 64 ranks, for the stages 0 to 3.
TABLE_2 = (2.0, 7.6, 14.4, 128.0)
STEP = 1e-6


@pytest.mark.parametrize("ranks", TABLE_1)
def test_memory_is_that_of_the_zero_papers_first_table(ranks: int) -> None:
    for stage, published in enumerate(TABLE_1[ranks], 1):
        held: ShardedMemory = memory_per_rank(7_500_000_000, ranks, stage)
        # Printed with three digits, the last of which is sometimes cut and sometimes rounded.
        assert held.total_bytes / 1e9 == pytest.approx(published, rel=0.01, abs=0.005)


def test_the_largest_models_are_those_of_its_second_table() -> None:
    sizes = [largest_model(32e9, 64, stage) / 1e9 for stage in range(4)]
    assert sizes == pytest.approx(TABLE_2, abs=0.05)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_gradients_of_the_truth_are_those_of_differences(activation: str) -> None:
    generator = np.random.default_rng(0)
    parts: dict[str, Array] = {
        "up": generator.normal(size=(4, 3)), "up_bias": generator.normal(size=4),
        "down": generator.normal(size=(2, 4)), "down_bias": generator.normal(size=2),
    }  # fmt: skip
    inputs, slopes = generator.normal(size=(2, 3, 3)), generator.normal(size=(2, 3, 2))
    exact = both_passes(Layers(**parts), activation, inputs, slopes)

    def loss(layers: dict[str, Array], x: Array) -> float:
        return float((both_passes(Layers(**layers), activation, x, slopes).output * slopes).sum())

    def differences(values: Array, changed: object) -> Array:
        gradient = np.zeros_like(values)
        for place in np.ndindex(values.shape):
            step = np.zeros_like(values)
            step[place] = STEP
            gradient[place] = (changed(values + step) - changed(values - step)) / (2 * STEP)  # type: ignore[operator]
        return gradient

    for name, values in parts.items():
        by_name = name if "bias" in name else f"{name}_weight"
        estimate = differences(values, lambda new, name=name: loss({**parts, name: new}, inputs))
        np.testing.assert_allclose(exact.gradients[by_name], estimate, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        exact.input_gradient, differences(inputs, lambda new: loss(parts, new)), rtol=1e-5, atol=1e-7
    )


def test_the_hidden_share_counts_each_moment_once() -> None:
    assert reference.hidden_share([[0, 4], [2, 6]], [[1, 3], [2, 3], [5, 9]]) == pytest.approx(0.5)
    assert reference.hidden_share([[1, 2]], []) == 0.0
    assert reference.hidden_share([[1, 1]], [[0, 3]]) is None


def test_a_record_says_what_ranks_told_each_other_and_when_products_ran() -> None:
    def kernel(name: str, start: float) -> Kernel:
        return Kernel(
            name=name, launched_at=start, start=start, seconds=0.5, stream=0, flops=0.0, bytes=64, dtype="float32",
            shapes=(), thread="main",
        )  # fmt: skip

    gather = "ncclDevKernel_AllGather_RING_LL"
    record = [kernel(gather, 0.0), kernel("aten::addmm", 1.0), kernel("aten::gelu", 2.0), kernel(gather, 3.0)]
    assert read("collectives", record, 1, 4, {}) == [{"name": gather, "bytes": 64, "start": 3.0, "end": 3.5}]
    assert read("turns", record, 0, 4, {}) == [gather, "product", gather]
