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
        self._sizes: dict[tuple[int, ...], int] = {}
        """Calls by the sizes that are inputs: with dynamic shapes there is a CUDA graph for each."""
        self._has_warned = False
        self._compiled_on: weakref.ref[Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """The graph's results, at the price of compiled code on the current GPU."""
        gpu = attached()
        if gpu is None or (THREAD.fusion is not None and THREAD.fusion.is_open):
            return self._graph(*inputs)
        # A machine that is attached later has compiled nothing yet.
        is_new = self._compiled_on is None or self._compiled_on() is not gpu.machine
        if is_new:
            self._compiled_on = weakref.ref(gpu.machine)
            self._sizes.clear()
        return self._run(gpu, inputs, is_new=is_new)

    def _run(self, gpu: VirtualGPU, inputs: tuple[Any, ...], *, is_new: bool) -> Any:
        sizes = tuple(value for value in inputs if isinstance(value, int))
        pool = None if self._traces is None or not self._is_recorded(sizes) else generation(gpu)
        replayed = pool is not None and self._sizes[sizes] > _WARM_UP_CALLS
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

    def _is_recorded(self, sizes: tuple[int, ...]) -> bool:
        """Whether a call with these sizes is that of a CUDA graph (cudagraph_trees.py, `cudagraphify_impl`)."""
        from torch._inductor import config as inductor  # not for programs that compile otherwise

        config = inductor.triton
        if sizes and (
            config.cudagraph_skip_dynamic_graphs
            or not _are_chosen(sizes, getattr(config, "cudagraph_capture_sizes", None))
        ):
            return False
        if sizes not in self._sizes:
            limit = getattr(config, "cudagraph_dynamic_shape_rerecord_limit", None)
            if limit is not None and len(self._sizes) >= limit:
                return False
            warned_above = config.cudagraph_dynamic_shape_warn_limit
            if not self._has_warned and warned_above and len(self._sizes) >= warned_above:
                from torch._inductor.cudagraph_utils import maybe_warning_due_to_dynamic_shape

                self._has_warned = maybe_warning_due_to_dynamic_shape(self._sizes, sizes)  # type: ignore[arg-type]
        self._sizes[sizes] = self._sizes.get(sizes, 0) + 1
        return True


def _are_chosen(sizes: tuple[int, ...], chosen: Any) -> bool:
    """Whether `cudagraph_capture_sizes` has them: numbers for one size, tuples for several."""
    return chosen is None or (sizes[0] if len(sizes) == 1 else sizes) in chosen


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
