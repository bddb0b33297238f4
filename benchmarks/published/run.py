"""Runs workloads on the virtual GPU that a figure names. Not here: what comes of it (`benchmarks.published.report`)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

import vgpu
from benchmarks.published import detectors, figures, kernels, memory, networks, scaling, transformers
from benchmarks.published.figures import Comparison, Figure
from benchmarks.published.timing import allow_tf32

Workload = Callable[[Mapping[str, Any], str], float]
WORKLOADS: dict[str, Workload] = {
    "matmul": kernels.matmul,
    "matmul_best": kernels.matmul_best,
    "sdpa": kernels.sdpa,
    "attention_eager": kernels.attention_eager,
    "elementwise_bandwidth": kernels.elementwise_bandwidth,
    "transfer_gbs": kernels.transfer_gbs,
    "allreduce_busbw": kernels.allreduce_busbw,
    "cnn_train": networks.cnn_train,
    "cnn_infer": networks.cnn_infer,
    "cnn_evaluate": networks.cnn_evaluate,
    "yolov5_infer": detectors.yolov5_infer,
    "bert_train": transformers.bert_train,
    "bert_infer": transformers.bert_infer,
    "vit_infer": transformers.vit_infer,
    "layer_tflops": transformers.layer_tflops,
    "gpt_iter_ms": transformers.gpt_iter_ms,
    "gpt_tokens": transformers.gpt_tokens,
    "vit_l_adam_gb": memory.vit_l_adam_gb,
    "hf_bert_reserved_mib": memory.hf_bert_reserved_mib,
    "amp_recipe_mib": memory.amp_recipe_mib,
    "adam_simple_bytes": memory.adam_simple_bytes,
}
_CACHED_WORKSPACES = "TORCH_CUBLAS_WORKSPACE_CACHE"


def run_all(chosen: Iterable[Figure], say: Callable[[str], None] = print) -> list[Comparison]:
    """Every figure of which this process can run the workload; a quotient after the two that it is of."""
    comparisons: dict[str, Comparison] = {}
    for figure in chosen:
        start = time.perf_counter()
        simulated = _simulated(figure, comparisons)
        if simulated is None:
            continue
        done = comparisons[figure.id] = Comparison(figure, simulated, time.perf_counter() - start)
        say(f"{figure.id:28} {figure.value:10.4g} {simulated:10.4g} {figure.unit:8} {done.ratio:6.3f}")
    return list(comparisons.values())


def _simulated(figure: Figure, comparisons: Mapping[str, Comparison]) -> float | None:
    if figure.workload == "ratio":
        parts = [comparisons.get(figure.sizes[name]) for name in ("of", "to")]
        return None if None in parts else parts[0].simulated / parts[1].simulated  # type: ignore[union-attr]
    if figure.workload == "ddp":
        return scaling.speedup(figure)
    with _workspaces_as(figure), vgpu.attach(figure.gpu, values=False), _tuned(figure):
        allow_tf32(figure.precision)
        return WORKLOADS[figure.workload](figure.sizes, figure.precision)


@contextlib.contextmanager
def _workspaces_as(figure: Figure) -> Iterator[None]:
    """cuBLAS's workspaces kept between calls where the measured PyTorch, before 2.15, kept them."""
    if _CACHED_WORKSPACES not in figure.note:
        yield
        return
    before = os.environ.get(_CACHED_WORKSPACES)
    os.environ[_CACHED_WORKSPACES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHED_WORKSPACES]
        else:
            os.environ[_CACHED_WORKSPACES] = before


@contextlib.contextmanager
def _tuned(figure: Figure) -> Iterator[None]:
    """`torch.backends.cudnn.benchmark`, where the measured program sets it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = figure.tuned
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


__all__ = ["WORKLOADS", "figures", "run_all"]
