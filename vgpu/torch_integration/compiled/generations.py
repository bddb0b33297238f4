"""Outputs of replayed graphs (`mode="reduce-overhead"`): the next run writes over them, and reading them is an error.

Rules and text of torch/_inductor/cudagraph_trees.py: a new call of compiled code begins a generation, unless gradients
of an earlier one are still to be computed; `torch.compiler.cudagraph_mark_step_begin` begins one in any case. Values
stay what they were underneath: PyTorch raises at the access as well. Not modelled: gradients that a graph has made, and
outputs that are passed on to the next run.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vgpu.runtime.gpu import VirtualGPU

_TEXT = (
    "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Stack trace: {}. To "
    "prevent overwriting, clone the tensor outside of torch.compile() or call "
    "torch.compiler.cudagraph_mark_step_begin() before each model invocation."
)


class Generation:
    """What the graphs of one GPU gave out since the last one began."""

    def __init__(self) -> None:
        self.has_pending_backward = False
        self._number: int | None = None
        self._outputs: list[tuple[StorageWeakRef, str]] = []

    def begin(self, inputs: Iterable[Any]) -> None:
        """A graph is about to run with these inputs."""
        number, is_marked = _number()
        if number == self._number or (self.has_pending_backward and not is_marked):
            return
        self._number, self.has_pending_backward = number, False
        passed_on = _storages(inputs)
        for output, trace in self._outputs:
            if not output.expired() and output.cdata not in passed_on:
                torch._C._set_storage_data_ptr_access_error_msg(output.cdata, _TEXT.format(trace))
        self._outputs.clear()

    def give(self, outputs: Sequence[Any], traces: Sequence[str], inputs: Iterable[Any]) -> None:
        """The graph has run. Outputs that share an input's memory are the program's own."""
        own = _storages(inputs)
        for place, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.numel() and output.untyped_storage()._cdata not in own:
                trace = traces[place] if place < len(traces) else "[Could not find stack trace]"
                self._outputs.append((StorageWeakRef(output.untyped_storage()), trace))


def generation(gpu: VirtualGPU) -> Generation:
    """The current one of a GPU."""
    return _GENERATIONS.setdefault(gpu, Generation())


_GENERATIONS: weakref.WeakKeyDictionary[VirtualGPU, Generation] = weakref.WeakKeyDictionary()


def _number() -> tuple[int, bool]:
    """Which generation it would be, and whether the program has said so."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    marked: int = trees.MarkStepBox.mark_step_counter if trees is not None else 0
    return marked or sys.modules["torch._dynamo.mutation_guard"].GenerationTracker.generation, marked != 0


def _storages(values: Iterable[Any]) -> set[int]:
    return {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}
