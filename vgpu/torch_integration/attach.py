"""`vgpu.attach`: puts a virtual GPU under PyTorch for the length of a `with` block.

Not here: what the modes and patches do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch
import torch.utils._device

from vgpu.device.errors import AttachError
from vgpu.device.spec import Interconnect, Spec, get_interconnect, get_spec
from vgpu.runtime import attachment as state
from vgpu.runtime import children
from vgpu.runtime.attachment import attached
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory import categories
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.views.views import Views
from vgpu.torch_integration.dispatch import extensions
from vgpu.torch_integration.dispatch.function_mode import HANDLERS
from vgpu.torch_integration.modes import Modes
from vgpu.torch_integration.patches import (
    PatchSet,
    clocks,
    compilers,
    cuda,
    data_parallel,
    distributed,
    dynamo,
    event_loops,
    fake_devices,
    flash_attn,
    generators,
    graphs,
    higher_order,
    inner_calls,
    legacy_types,
    loaders,
    memory,
    modules,
    nvml,
    optimizers,
    profiling,
    python_calls,
    refusals,
    serialization,
    storages,
    streams,
    threads,
    triton,
    warned_lines,
)


def current() -> VirtualGPU | None:
    """The calling thread's current virtual GPU, or None when none is attached."""
    return attached()


@contextlib.contextmanager
def attach(
    spec: str | os.PathLike[str] | Spec = "T4",
    *,
    gpus: int = 1,
    interconnect: str | os.PathLike[str] | Interconnect | None = None,
    values: bool = True,
    force: bool = False,
) -> Iterator[VirtualGPU]:
    """Make `torch.device("cuda")` work on this machine, simulated; yields the GPU of index 0.

    `spec` is a built-in GPU ("T4", "A100-80GB", "H100", ...), a TOML file, or a `Spec`. `gpus` of them are attached to
    this process, linked by `interconnect`; `gpu.machine.gpus` has them all. With `values=False` tensors on
    the GPU have shapes only: much faster, `.item()` returns 0 and `.cpu()` zeros. On exit, also after an exception,
    every patch is undone; tensors that lived on the GPU are then ordinary CPU (or meta) tensors.

    Inside another attach, a fresh machine takes the place of the outer one, which waits unchanged until the inner block
    is left; its tensors cannot be used meanwhile. Raises SpecError for a bad spec, and AttachError where real CUDA is
    present and `force` is not given, or where other threads use the outer machine.
    """
    outer = _attachments[-1] if _attachments else None
    if outer is not None:
        outer.require_alone()
    elif _prepared:
        raise AttachError("this process, or one above it, has prepared a machine: begin that one")
    elif not force and torch.cuda.is_available():
        raise AttachError("this machine has a real CUDA device; pass force=True to simulate one instead")
    machine = _machine(spec, gpus, interconnect, values, outer)
    with outer.set_aside() if outer is not None else contextlib.nullcontext(), Attachment(machine, outer).entered():
        yield machine.gpus[0]


def prepare() -> Prepared:
    """Do now what children that this process forks would do each: `begin` what this returns, instead of `attach`.

    To attach is to look at thousands of modules, and a forked child that does so copies most of its memory. Which
    machine it is each child says by itself. Until then there is none: this process goes on in real time, without a GPU,
    and should do nothing but fork. Raises AttachError where a GPU is attached or prepared already.
    """
    if _attachments or _prepared:
        raise AttachError("a process prepares one machine, before it attaches any")
    machine = Machine()
    machine.views = Views()
    attachment = Attachment(machine, None)
    attachment.install()
    _prepared.append(attachment)
    return Prepared(attachment)


def _machine(
    spec: str | os.PathLike[str] | Spec,
    gpus: int,
    interconnect: str | os.PathLike[str] | Interconnect | None,
    values: bool,
    outer: Attachment | None,
) -> Machine:
    chosen, link = _cards(spec, interconnect)
    machine = Machine(outer=outer.machine if outer else None)
    machine.become(chosen, gpus=gpus, interconnect=link, values=values)
    machine.views = Views()
    return machine


def _cards(
    spec: str | os.PathLike[str] | Spec, interconnect: str | os.PathLike[str] | Interconnect | None
) -> tuple[Spec, Interconnect]:
    """Raises SpecError."""
    chosen = get_spec(spec)
    return chosen, get_interconnect(interconnect if interconnect is not None else chosen.interconnect, chosen)


class Prepared:
    """A machine that is attached except for its beginning, which is the children's."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._owner = os.getpid()

    @contextlib.contextmanager
    def begin(
        self,
        spec: str | os.PathLike[str] | Spec = "T4",
        *,
        gpus: int = 1,
        interconnect: str | os.PathLike[str] | Interconnect | None = None,
        values: bool = True,
    ) -> Iterator[VirtualGPU]:
        """`with attach(...)`, in a child that was forked since and that ends soon after the block.

        On exit GPU tensors are ordinary ones, and the patches stay: nobody needs what they replaced any more. Raises
        SpecError for a bad spec, and AttachError in the process that prepared.
        """
        if os.getpid() == self._owner:
            raise AttachError("a prepared machine begins in a child that was forked since")
        if self._attachment not in _prepared:
            raise AttachError("this machine has begun already, in this process or one above it")
        chosen, link = _cards(spec, interconnect)
        self._attachment.machine.become(chosen, gpus=gpus, interconnect=link, values=values)
        with self._attachment.begun():
            yield self._attachment.machine.gpus[0]


class Attachment:
    """One `with vgpu.attach(...)` block: a machine, its modes and its patches."""

    def __init__(self, machine: Machine, outer: Attachment | None) -> None:
        self.machine = machine
        self._modes = Modes(machine)
        self._patches: PatchSet = PatchSet(None if outer is None else outer._patches)
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Everything in place."""
        before = THREAD.reset()
        _attachments.append(self)
        try:
            state.push(self.machine)
            self._patches.on_undo(lambda: state.pop(self.machine))
            _install(self._patches, self.machine, self._modes)
            self._start()
            yield
        finally:
            _attachments.remove(self)
            self._patches.undo()
            THREAD.restore(before)
            self.machine.registry.clear()

    def install(self) -> None:
        """The patches in place, and nothing begun: clocks are real, operations PyTorch's own, the machine not known."""
        try:
            state.push(self.machine)
            _install(self._patches, self.machine, self._modes)
        except BaseException:
            self._patches.undo()
            raise
        finally:
            state.pop(self.machine)

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """What `install` left out, in a child; on exit the patches stay."""
        THREAD.reset()
        _prepared.remove(self)
        _attachments.append(self)
        state.push(self.machine)
        self.machine.forked()
        threads.forked()
        clocks.begin()
        try:
            self._start()
            yield
        finally:
            _attachments.remove(self)
            self._patches.end()
            state.pop(self.machine)
            self.machine.registry.clear()

    def _start(self) -> None:
        """It is known which machine it is: what waited for that, and the modes on, until the patches are undone."""
        self._modes.begin()
        self._patches.begin()
        device = torch.utils._device.CURRENT_DEVICE
        self._patches.on_undo(lambda: _restore_default_device(device))
        self._patches.on_undo(self._modes.enter())
        self._patches.on_undo(self._modes.stop)
        self._patches.on_undo(self.machine.clock.scheduler.close)

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Another machine takes the place; this one's clocks, memory and patches wait below it."""
        with self.machine.clock.hold(), self._modes.standing_aside():
            yield

    def require_alone(self) -> None:
        """Raise AttachError where other threads would go on using this machine while another one is attached."""
        clock = self.machine.clock
        if threading.get_ident() != self._thread or clock.scheduler.has_others(clock.mine()):
            raise AttachError(
                "a virtual GPU is attached already, and other threads of the program use it (those of a data loader, "
                "perhaps): leave that `with vgpu.attach(...)` block first, or end those threads"
            )


_attachments: list[Attachment] = []
_prepared: list[Attachment] = []
"""At most one: what this process, or one above it, prepared and none has begun."""


def _install(patches: PatchSet, machine: Machine, modes: Modes) -> None:
    cuda.install(patches, machine)
    streams.install(patches)
    graphs.install(patches)
    triton.install(patches, machine)
    memory.install(patches, machine)
    categories.install(patches, machine.ledger)
    modules.install(patches, machine)
    optimizers.install(patches, machine)
    generators.install(patches, machine)
    data_parallel.install(patches, machine)
    legacy_types.install(patches, machine)
    storages.install(patches, machine)
    serialization.install(patches, machine)
    profiling.install(patches)
    nvml.install(patches, machine)
    python_calls.install(patches, machine)
    inner_calls.install(patches, modes.function_mode, type(modes.dispatch_mode))
    distributed.install(patches, machine)
    children.install(patches, machine)
    compilers.install(patches, machine, modes.on, HANDLERS)
    dynamo.install(patches, machine, modes.functions(), modes.on)
    higher_order.install(patches, type(modes.dispatch_mode))
    refusals.install(patches, machine)
    extensions.install(patches, machine)
    fake_devices.install(patches, machine, modes.on)
    flash_attn.install(patches)
    patches.set(torch, "clear_autocast_cache", modes.function_mode.weights.clear)
    threads.install(patches, modes.enter)
    loaders.install(patches, machine)
    event_loops.install(patches)
    warned_lines.install(patches)
    clocks.install(patches)
    patches.rebind_everywhere()


def _restore_default_device(before: torch.device | None) -> None:
    """A default device of "cuda" would outlive the GPU."""
    device = torch.utils._device.CURRENT_DEVICE
    if device is not None and device.type == "cuda" and device != before:
        torch.set_default_device(before)
