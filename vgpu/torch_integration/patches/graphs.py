"""`torch.cuda.CUDAGraph` on the virtual GPU; PyTorch's own `torch.cuda.graph` and `make_graphed_callables` use it.

Texts from aten/src/ATen/cuda/CUDAGraph.cpp. Not here: what a graph notes and does
(`vgpu.torch_integration.compiled.graphs`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
import torch.cuda.graphs

from vgpu.runtime import caller
from vgpu.runtime.attachment import attached
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.compiled.graphs import Graph
from vgpu.torch_integration.devices import cuda_error

_POOLS = itertools.count(1)


class CUDAGraph:
    """A graph of kernels that one launch starts (`torch.cuda.CUDAGraph`)."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph: Graph | None = None
        self._pool: Any = None
        self._release: weakref.finalize[[int], CUDAGraph] | None = None
        self._keeps = keep_graph

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Begin to note what the current stream is asked for."""
        if self._graph is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        gpu = attached()
        if gpu is None:
            raise RuntimeError("this graph belongs to a virtual GPU that is no longer attached")
        gpu.start()
        if gpu.stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok "
                               "to replay them on the default stream.)")  # fmt: skip
        self._pool = pool if pool is not None else graph_pool_handle()
        graph = Graph(gpu, max(self._pool))
        graph.begin()
        self._graph = graph
        self._release = weakref.finalize(self, gpu.memory.release_private, max(self._pool))
        self._release.atexit = False

    def capture_end(self) -> None:
        """The graph is complete."""
        graph = self._captured()
        if not graph.is_open:
            self._graph = None
            raise cuda_error("operation failed due to a previous error during capture")
        if graph.is_empty:
            caller.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream."
            )
        graph.end()

    def instantiate(self) -> None:
        """Done by `capture_end` here."""
        self._captured()

    def replay(self) -> None:
        """Ask for all of it again, on the current stream."""
        self._captured().replay()

    def reset(self) -> None:
        """Forget what was captured; its memory pool is kept by other graphs only."""
        self._graph = None
        if self._release is not None:
            self._release()

    def pool(self) -> Any:
        """The memory pool that other graphs may share."""
        return self._pool

    def enable_debug_mode(self) -> None:
        """For `debug_dump`, which writes nothing here."""

    def debug_dump(self, debug_path: str) -> None:
        """Graphs of kernels are not drawn: `gpu.save_picture` shows them in time."""

    def _captured(self) -> Graph:
        if self._graph is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        return self._graph


def graph_pool_handle() -> tuple[int, int]:
    """A name for the memory of graphs that share it."""
    return 0, next(_POOLS)


def install(patches: PatchSet) -> None:
    """Replace the class, and what asks whether a stream is captured."""
    patches.rebind(torch.cuda.CUDAGraph, CUDAGraph)
    patches.set(torch.cuda.graph, "default_capture_stream", None)  # it would be another machine's
    patches.rebind(torch.cuda.graph_pool_handle, graph_pool_handle)

    def is_capturing() -> bool:
        gpu = attached()
        return THREAD.capture is not None and gpu is not None and THREAD.capture.takes(gpu, gpu.stream)

    patches.set_existing(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)
    patches.rebind(torch.cuda.is_current_stream_capturing, is_capturing)
