"""Runs a function as compiled code: compiled at its first call and for new shapes, with the kernels of its backward.

TorchDynamo's rules (docs "torch.compile, dynamic shapes"): the second shape of an argument makes its sizes dynamic,
and a compiled function whose other properties keep changing runs eagerly after some recompilations. Not here: the
kernels (`vgpu.torch_integration.compiled.fusion`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.compiled.fusion import Fusion

# Host seconds to compile, and for each operation of it; with gradients twice as many. nanoGPT's README tells of "about
# a minute" for GPT-2 with 12 layers, forward and backward, which are some 900 operations here.
COMPILE_SECONDS, COMPILE_SECONDS_PER_OPERATION = 3.0, 0.06
# Checking the guards of a call: modelled.
GUARD_SECONDS = 30e-6
# One launch of a CUDA graph, with which "reduce-overhead" replaces those of its kernels: modelled.
REPLAY_SECONDS = 1e-5
# Calls that run kernel by kernel before a graph is recorded (torch/_inductor/cudagraph_trees.py).
_WARM_UP_CALLS = 2
# `torch._dynamo.config.recompile_limit`.
_RECOMPILE_LIMIT = 8
_REPLAYING = ("reduce-overhead", "max-autotune")
_INDUCTOR = "inductor"
_EAGER = ("eager", "aot_eager", "aot_eager_decomp_partition")
_LOCK = threading.Lock()


@dataclass
class Region:
    """One compiled function, and what it has been compiled for."""

    name: str
    dynamic: bool | None = None
    replayed: bool = False
    eager: bool = False
    shapes: dict[Any, set[Any]] = field(default_factory=dict)
    """By what else guards look at, the shapes that were met."""
    calls: int = 0

    def is_new(self, leaves: list[Any]) -> bool | None:
        """Whether a call with such arguments has to be compiled; None where it was too often and runs eagerly."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = tuple((type(leaf), leaf) for leaf in leaves if isinstance(leaf, (bool, str)))
        guards = (
            tuple((tensor.dtype, tensor.dim(), tensor.requires_grad) for tensor in tensors),
            others,
            torch.is_grad_enabled(),
        )
        # Integers become dynamic like sizes.
        shape = *(tuple(tensor.shape) for tensor in tensors), tuple(leaf for leaf in leaves if type(leaf) is int)
        with _LOCK:
            if guards not in self.shapes and len(self.shapes) >= _RECOMPILE_LIMIT:
                return None
            met = self.shapes.setdefault(guards, set())
            if shape in met:
                return False
            most = {None: 2, True: 1, False: _RECOMPILE_LIMIT}[self.dynamic]
            if len(met) >= most:
                return None if self.dynamic is False else False
            met.add(shape)
            return True


def region(name: str, mode: str | None, backend: Any, dynamic: bool | None, options: Any) -> Region:
    """What the arguments of `torch.compile` ask for. Raises Unsupported for other compilers than PyTorch's own."""
    if backend not in (_INDUCTOR, *_EAGER):
        raise unsupported("other backends of torch.compile", getattr(backend, "__name__", str(backend)))
    replayed = mode in _REPLAYING or bool((options or {}).get("triton.cudagraphs"))
    return Region(name, dynamic, replayed, eager=backend in _EAGER)


def call(gpu: VirtualGPU, known: Region, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `function` as compiled code on `gpu`."""
    if known.eager or (THREAD.fusion is not None and THREAD.fusion.is_open):
        return function(*args, **kwargs)
    leaves = tree_leaves((args, kwargs))
    is_new = known.is_new(leaves)
    if is_new is None:
        return function(*args, **kwargs)
    known.calls += 1
    replayed = known.replayed and known.calls > _WARM_UP_CALLS
    gpu.clock.spend(GUARD_SECONDS, "operation", f"guards of {known.name}", "guards")
    if replayed:
        gpu.clock.spend(REPLAY_SECONDS, "operation", f"replay of {known.name}", "replay")
    fusion = Fusion(gpu, replayed=replayed)
    fusion.enter()
    try:
        result = function(*args, **kwargs)
    finally:
        fusion.leave()
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    if is_new and fusion.operations:
        work = fusion.operations * (2 if made else 1)
        seconds = COMPILE_SECONDS + COMPILE_SECONDS_PER_OPERATION * work
        gpu.clock.spend(seconds, "start", f"compilation of {known.name}", "compilation")
    if made:
        _fuse_backward(fusion, made, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return result


def _fuse_backward(fusion: Fusion, results: Iterable[torch.Tensor], arguments: Iterable[torch.Tensor]) -> None:
    """The backward passes of the region's operations are compiled code as well."""
    outside = {tensor.grad_fn for tensor in arguments if tensor.grad_fn is not None}
    visited: set[Any] = set()
    waiting = [tensor.grad_fn for tensor in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited or node in outside or node.name().endswith("AccumulateGrad"):
            continue
        visited.add(node)
        node.register_prehook(lambda _: fusion.enter(in_backward=True))
        node.register_hook(lambda *_: fusion.pause())
        waiting += [following for following, _ in node.next_functions]
