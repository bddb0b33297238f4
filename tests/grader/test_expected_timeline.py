"""What is next to a failed measurement of Lab 1: the products that the reference launches, each waited for."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any, cast

import pytest

import vgpu
from gradebox.sandbox.probe_loader import Student
from grader.lab1.shared.cases.products import Call, Matmul
from grader.lab1.shared.probes import benchmark as probes
from grader.lab1.shared.probes import launches
from solutions.lab1_gpu_basics import benchmark

CALLS: list[Call] = [
    {"size": 301, "iterations": 7, "warmup": 3},
    {"size": 33, "iterations": 2, "device": "cpu"},
    {"size": 205, "iterations": 5, "dtype": "float16", "device": "cuda:0", "as_object": True, "busy": 4},
    {"size": 129},
]


class Gpu:
    """As much of a submission's room as the probes need on a virtual GPU in this process."""

    device = "cuda"
    gpu = None

    def module(self, name: str) -> Any:
        assert name == probes.BENCHMARK
        return benchmark


def products(probe: Any, **how: Any) -> tuple[list[float], list[Any]]:
    """The FLOPs of each product that ran, in turn, and the device's whole timeline."""
    with vgpu.attach("T4", values=False) as gpu:
        probe(cast(Student, Gpu()), Matmul(calls=CALLS, **how))
        kernels = list(gpu.timeline)
    return [kernel.flops for kernel in kernels if "mm" in kernel.name], kernels


@pytest.mark.parametrize("how", [{}, {"warm": True}, {"busy_products": 6}])
def test_it_launches_the_products_that_the_reference_launches(how: dict[str, Any]) -> None:
    ours, theirs = products(launches.matmul, **how)[0], products(probes.matmul, **how)[0]
    assert ours == theirs
    assert len(ours) > 100  # nothing given: 100 products, as the docstring of the task says


def test_each_timed_product_begins_on_an_idle_device() -> None:
    _, kernels = products(launches.matmul)
    timed = [kernel for kernel in kernels if "mm" in kernel.name][-100:]
    assert all(later.launched_at >= kernel.start + kernel.seconds for kernel, later in pairwise(timed))


def test_it_takes_what_the_probe_takes_that_it_stands_beside() -> None:
    assert inspect.signature(launches.matmul) == inspect.signature(probes.matmul)
