"""Runs what TorchDynamo has captured as compiled code: its first call, the launches of a call, the kernels of backward.

TorchDynamo decides what is compiled, and when again. Here stands what TorchInductor would do with each graph, which
runs by the eager operations. Not here: the kernels (`vgpu.torch_integration.compiled.fusion`), and how TorchDynamo
sees the virtual GPU (`vgpu.torch_integration.patches.dynamo`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vgpu.runtime.attachment import attached
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.compiled.fusion import Fusion
from vgpu.torch_integration.compiled.generations import Generation, generation

# Host seconds to compile, and for each operation of it; with gradients twice as many. nanoGPT's README has "about
# a minute" for GPT-2 with 12 layers, forward and backward, which are some 900 operations here.
COMPILE_SECONDS, COMPILE_SECONDS_PER_OPERATION = 3.0, 0.06
# Checking the guards of a call: modelled.
GUARD_SECONDS = 30e-6
# One launch of a CUDA graph, with which "reduce-overhead" replaces those of its kernels: modelled.
REPLAY_SECONDS = 1e-5
# Calls that run kernel by kernel before a graph is recorded (torch/_inductor/cudagraph_trees.py).
_WARM_UP_CALLS = 2


class Region:
    """A graph that stands for compiled code; it is called with the graph's inputs."""

    def __init__(self, graph: Callable[..., Any], name: str, *, traces: Sequence[str] | None) -> None:
        """`traces`: after some calls all kernels of a call are launched at once, as a CUDA graph; where the program
        computes each result. None for a graph that stays kernels."""
        self._graph = graph
        self._name = name
        self._traces = traces
        self._calls = 0
        self._compiled_on: weakref.ref[Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """The graph's results, at the price of compiled code on the current GPU."""
        gpu = attached()
        if gpu is None or (THREAD.fusion is not None and THREAD.fusion.is_open):
            return self._graph(*inputs)
        # A machine that is attached later has compiled nothing yet.
        is_new = self._compiled_on is None or self._compiled_on() is not gpu.machine
        if is_new:
            self._compiled_on, self._calls = weakref.ref(gpu.machine), 0
        self._calls += 1
        return self._run(gpu, inputs, is_new=is_new)

    def _run(self, gpu: VirtualGPU, inputs: tuple[Any, ...], *, is_new: bool) -> Any:
        pool = None if self._traces is None else generation(gpu)
        replayed = pool is not None and self._calls > _WARM_UP_CALLS
        gpu.clock.spend(GUARD_SECONDS, "operation", f"guards of {self._name}", "guards")
        if replayed:
            gpu.clock.spend(REPLAY_SECONDS, "operation", f"replay of {self._name}", "replay")
        if pool is not None and gpu.values:
            pool.begin(inputs)
        fusion = Fusion(gpu, replayed=replayed)
        fusion.enter()
        try:
            result = self._graph(*inputs)
        finally:
            fusion.leave()
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
        if is_new and fusion.operations:
            work = fusion.operations * (2 if made else 1)
            seconds = COMPILE_SECONDS + COMPILE_SECONDS_PER_OPERATION * work
            gpu.clock.spend(seconds, "start", f"compilation of {self._name}", "compilation")
        if pool is not None and gpu.values:
            pool.give(tree_leaves(result), self._traces or (), inputs)
            pool.has_pending_backward = pool.has_pending_backward or bool(made)
        if made:
            _fuse_backward(fusion, pool, made, [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)])
        return result


def _fuse_backward(
    fusion: Fusion, pool: Generation | None, results: Iterable[torch.Tensor], arguments: Iterable[torch.Tensor]
) -> None:
    """The backward passes of the region's operations are compiled code as well."""

    def begin(_: Any) -> None:
        fusion.enter(in_backward=True)
        if pool is not None:
            pool.has_pending_backward = False

    def end(gradients: Sequence[torch.Tensor | None], _: Any) -> None:
        fusion.pause()
        if torch.is_grad_enabled():
            for gradient in gradients:
                if gradient is not None and gradient.grad_fn is not None:
                    gradient.grad_fn.register_prehook(_refuse_double_backward)

    outside = {tensor.grad_fn for tensor in arguments if tensor.grad_fn is not None}
    visited: set[Any] = set()
    waiting = [tensor.grad_fn for tensor in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited or node in outside or node.name().endswith("AccumulateGrad"):
            continue
        visited.add(node)
        node.register_prehook(begin)
        node.register_hook(end)
        waiting += [following for following, _ in node.next_functions]


def _refuse_double_backward(_: Any) -> None:
    raise RuntimeError("torch.compile with aot_autograd does not currently support double backward")
