"""Bytes on a GPU by what they are for: parameters, gradients, optimizer state, activations, workspaces, other.

The categories follow torch/profiler/_memory_profiler.py (`Category`, `MemoryProfile._set_*`): parameters are what a
module owns (here with its buffers) or an optimizer updates; gradients are `.grad` and the buckets of DDP; optimizer
state is what `optimizer.state` holds. Activations are results of operations in forward, casts by autocast and
recomputed ones included (ACTIVATION; TEMPORARY and INPUT are separated there by the data flow, which is not recorded
here). Other: inputs and whatever else is made or copied as data, results in backward (gradients of activations:
AUTOGRAD_DETAIL) and temporary results of an optimizer step.

Often a block's category shows after its allocation. So the history keeps one changeable tag per allocation, which is
set when a module, a backward pass or an optimizer step says what it was. Not here: the bytes
(`vgpu.runtime.memory.device_memory`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.autograd.graph
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from vgpu.runtime.memory.blocks import Block
from vgpu.runtime.memory.device_memory import OTHER, DeviceMemory
from vgpu.runtime.patching import PatchSet

NAMES = ("parameters", "gradients", "optimizer_state", "activations", "workspaces", "other")
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, WORKSPACES = range(5)
assert NAMES[OTHER] == "other"


class CategorySample(NamedTuple):
    """Bytes by category at a host time (seconds since attach)."""

    seconds: float
    bytes: dict[str, int]


def of_result() -> int:
    """The category of an operation's result, until more is known: in backward only what is recomputed is kept."""
    in_backward = torch._C._current_graph_task_id() != -1
    return OTHER if in_backward and not torch.is_grad_enabled() else ACTIVATIONS


class Ledger:
    """Which modules and optimizers there are, so that their tensors' blocks can be tagged. One per machine."""

    def __init__(
        self, block_of: Callable[[torch.Tensor], Block | None], memories: Callable[[], Sequence[DeviceMemory]]
    ) -> None:
        """Finds a tensor's block, and the memories of all GPUs."""
        self._block_of, self._memories = block_of, memories
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakKeyDictionary[Any, _Step] = weakref.WeakKeyDictionary()

    def note_optimizer(self, optimizer: Any) -> None:
        """An optimizer is made."""
        self._optimizers[optimizer] = _Step(None, [])

    def mark(self, tensors: Iterable[Any], category: int) -> None:
        """The blocks of these tensors (others may be among them) belong to a category."""
        block_of = self._block_of
        with torch._C.DisableTorchFunction():
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    block = block_of(tensor)
                    if block is not None and block.tag is not None:
                        block.tag[0] = category

    def note_module(self, module: nn.Module) -> None:
        """A module whose parameters or buffers may live on a GPU now."""
        self._modules.add(module)
        self.mark((*module._parameters.values(), *module._buffers.values()), PARAMETERS)

    def note_gradients(self) -> None:
        """A backward pass has ended: what `.grad` holds are gradients."""
        with torch._C.DisableTorchFunction():
            self.mark([leaf.grad for leaf in self._leaves()], GRADIENTS)

    def _leaves(self) -> Iterator[torch.Tensor]:
        for module in list(self._modules):
            for parameter in module._parameters.values():
                if parameter is not None:
                    yield parameter
        for optimizer in list(self._optimizers):
            yield from _updated(optimizer)

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to update its parameters."""
        leaves = _updated(optimizer)
        self.mark(leaves, PARAMETERS)
        with torch._C.DisableTorchFunction():
            self.mark([leaf.grad for leaf in leaves], GRADIENTS)
        known = self._optimizers.get(optimizer)
        if known is None or known.state is not optimizer.state:
            # New, or `load_state_dict` has replaced its state.
            self.mark(_tensors_in(optimizer.state), OPTIMIZER_STATE)
        starts = [memory.event_count() for memory in self._memories()]
        self._optimizers[optimizer] = _Step(optimizer.state, starts)

    def after_step(self, optimizer: Any) -> None:
        """What the step made and kept is its state; what it made and dropped is other."""
        step = self._optimizers.get(optimizer)
        if step is None:
            return
        grown = False
        for memory, start in zip(self._memories(), step.starts, strict=False):
            alive: set[int] = set()
            for event in memory.events(start):
                if event.tag[0] == ACTIVATIONS:
                    event.tag[0] = OTHER
                if event.bytes > 0:
                    alive.add(id(event.tag))
                else:
                    alive.discard(id(event.tag))
            grown = grown or bool(alive)
        if grown:
            self.mark(_tensors_in(optimizer.state), OPTIMIZER_STATE)

    def look(self) -> None:
        """Before an answer: tag what has become known since the last step or backward pass."""
        for module in list(self._modules):
            self.note_module(module)
        for optimizer in list(self._optimizers):
            self.mark(_updated(optimizer), PARAMETERS)
            self.mark(_tensors_in(getattr(optimizer, "state", ())), OPTIMIZER_STATE)
        self.note_gradients()


class _Step(NamedTuple):
    """What is remembered of an optimizer: its state dictionary, and where its last step began in each history."""

    state: Any
    starts: list[int]


def _updated(optimizer: Any) -> list[torch.Tensor]:
    return [leaf for group in getattr(optimizer, "param_groups", ()) for leaf in group["params"]]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested dictionaries and lists (LBFGS keeps lists of tensors in its state)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in list(value.values()):
            yield from _tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _totals_after(memory: DeviceMemory, last: int | None = None) -> list[int]:
    totals = [0] * len(NAMES)
    events = memory.events()
    for event in events if last is None else events[: last + 1]:
        totals[event.tag[0]] += event.bytes
    return totals


def _named(totals: Iterable[int]) -> dict[str, int]:
    return dict(zip(NAMES, totals, strict=True))


def now(memory: DeviceMemory) -> dict[str, int]:
    """Bytes allocated now, by category; they add up to `torch.cuda.memory_allocated()`."""
    return _named(_totals_after(memory))


def at_peak(memory: DeviceMemory) -> dict[str, int]:
    """The same at the moment of the peak since the last reset; they add up to `max_memory_allocated()`."""
    return _named(_totals_after(memory, memory.peak_event()))


def timeline(memory: DeviceMemory) -> list[CategorySample]:
    """The same after every change of memory."""
    totals = [0] * len(NAMES)
    samples = []
    for event in memory.events():
        totals[event.tag[0]] += event.bytes
        samples.append(CategorySample(event.seconds, _named(totals)))
    return samples


def install(patches: PatchSet, ledger: Ledger) -> None:
    """Learn of modules, backward passes and optimizer steps; PyTorch's own hooks where it has them."""
    handles = [
        module_hooks.register_module_parameter_registration_hook(_noting(ledger, PARAMETERS)),
        module_hooks.register_module_buffer_registration_hook(_noting(ledger, PARAMETERS)),
        optimizer_hooks.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: ledger.before_step(optimizer)),
        optimizer_hooks.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: ledger.after_step(optimizer)),
    ]
    for handle in handles:
        patches.on_undo(handle.remove)
    move, restore = nn.Module._apply, nn.Module.__setstate__

    def apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        result: nn.Module = move(self, *args, **kwargs)
        ledger.note_module(self)
        return result

    def setstate(self: nn.Module, state: Any) -> None:
        restore(self, state)  # a copy or an unpickled module, whose parameters nobody registers
        ledger.note_module(self)

    make = optimizer_hooks.Optimizer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        ledger.note_optimizer(self)

    patches.set(optimizer_hooks.Optimizer, "__init__", init)
    patches.set(nn.Module, "_apply", apply)
    patches.set(nn.Module, "__setstate__", setstate)
    run = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        inner = torch._C._current_graph_task_id() != -1
        result = run(*args, **kwargs)
        if not inner:
            ledger.note_gradients()
        return result

    patches.rebind(run, run_backward)


def _noting(ledger: Ledger, category: int) -> Callable[[nn.Module, str, Any], None]:
    def note(module: nn.Module, name: str, tensor: Any) -> None:
        ledger._modules.add(module)
        ledger.mark((tensor,), category)

    return note
