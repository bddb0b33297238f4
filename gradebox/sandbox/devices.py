"""What submissions run on. A course that has more than the CPU brings a module of its own, which `course.toml` names.

That module (`DeviceModule`) is used in two places. In the judge, `parse` turns `--device` into a `Device`. In the
sandbox's processes, where the submission runs, the rest: it is what the engine needs to know of PyTorch, CUDA or a
simulator, none of which it imports itself. This module is one too, for courses that have only the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CPU = "cpu"
"""The device that is always there."""


class DeviceError(Exception):
    """`--device` names something that is not there; the message says what to do."""


@dataclass(frozen=True)
class Device:
    """Where submissions run."""

    name: str
    """What the sandbox is asked for: `cpu`, or what the course knows: `cuda`, `vgpu:T4`."""

    label: str
    """The device's name for people."""

    simulated: bool = False
    """Whether its times are computed and not measured, so that a busy machine changes nothing."""

    hardware: str = ""
    """Names the piece of hardware; the same text in all processes of a machine. Other work would disturb what is
    measured on it, so a request whose probe measures has it alone (`gradebox.hardware`). Empty: no hardware."""

    memory_bytes: int | None = None
    """Of a real device; None if it is not known."""

    one_process: bool = False
    """Whether the driver lets only one process at a time use it (NVIDIA's compute mode `EXCLUSIVE_PROCESS`)."""

    @property
    def model(self) -> str | None:
        """The simulated device's model; None of a real one."""
        return self.name.partition(":")[2] or None


@dataclass(frozen=True)
class Reading:
    """In what a probe returns: what the simulated device reads, for the judge alone, stands here. Its number."""

    number: int


@dataclass(frozen=True)
class Simulator:
    """A program in the submission's own process that plays a device: what of it may be asked, and by whom.

    It knows the values that checks compare with, so it reports to the engine, by audit events (`sys.audit`), who reads
    what it has recorded. Modules and functions are named as they are in its package.
    """

    package: str
    """`vgpu`. All of its code is trusted, and must be after a run what it was before."""
    title: str
    """In messages: `the virtual GPU`."""
    unsupported: str
    """Class of the error by which it says that a value is unknown, so that nobody loses points for it."""
    record_event: str
    """Raised when somebody reads what it has recorded. The first argument says what, in words."""
    launch_event: str
    """Raised when work is given to the device, or, with an argument, when the device is asked."""
    asked: frozenset[str]
    """Attributes of the attached device that probes read or call."""
    instruments: Mapping[str, tuple[str, ...]]
    """By module: beginnings of functions' names that may read the record, for values that a real device has. None of
    them may call what it is handed, or a function in C that was built to ask would be taken for it."""
    entries: Mapping[str, str]
    """By module: the function through which a library hands it an operation of a program's."""
    engine: tuple[str, ...]
    """Modules that give work to the device on behalf of another part of the simulator only."""
    recorder: str
    """The module whose generators hold the record."""
    broken_event: str
    """Audit event: the submission has changed what the simulator knows by itself; the argument says what."""
    generators: Mapping[str, tuple[str, ...]]
    """By module, the names of those that hold the record, or what is written to the device."""
    profilers: tuple[str, ...] = ()
    """Ends of paths of libraries' files that set a profile function when a profiler of theirs is asked for stacks."""


class DeviceModule(Protocol):
    """What a course's module of devices defines. All but `parse` is used in the sandbox's processes."""

    SIMULATOR: Simulator | None
    """None where devices are real."""
    INSTRUMENTS: Mapping[str, tuple[str, ...]]
    """By module: functions of libraries that probes rely on, which must be after a run what they were before."""
    CLASSES: Mapping[str, tuple[str, ...]]
    """The same for classes, with all their methods."""
    EXCHANGED: frozenset[str]
    """Modules of which probes exchange functions themselves; those may be others after a run."""

    def parse(self, option: str) -> Device:
        """In the judge: what `--device` names. Raises `DeviceError`."""

    def watch(self, device: str) -> AbstractContextManager[Sequence[str]]:
        """In the judge: while a request measures on a real `device`. What it yields lists, once the context has ended,
        what disturbed the device meanwhile, in words: work of others, a lower clock. Empty where nothing is known."""

    def before_imports(self) -> None:
        """In the server, before it imports anything: see to it that no import opens a device, which would be of no use
        to the children that are forked afterwards."""

    def require_forkable(self) -> None:
        """In the server, when all is imported. Raises RuntimeError where a library would not survive a fork."""

    def prepares(self, device: str) -> str:
        """What `prepare` does for requests on `device`, by a name of the course's; empty where they gain nothing."""

    def prepare(self, what: str) -> Any:
        """Before a fork: do what each of many children would do to attach a device of those; handed to them as
        `prepared`. A process is forked for each name, and lives, so the fewer the better."""

    def seed(self, device: str, number: int, *, threads: int) -> None:
        """In a child: the same random numbers in every run, and so many threads for computing."""

    def serves(self, device: str) -> bool:
        """Whether `device` is simulated by a process of its own (`serve`)."""

    def serve(
        self,
        device: str,
        lines: Sequence[Connection],
        control: Connection,
        *,
        present: bool,
        conditions: Sequence[Mapping[str, Any]],
        prepared: Any,
    ) -> dict[str, Any]:
        """In that process: be `device` for the ranks at the other ends of `lines`, until `control` says a word.

        `present` says whether there is a submission, `conditions` what a check wants of the device. Returns, for each
        rank, what its probe has had read (`readings`), and why it was cut off (`faults`, empty where it was not); and
        perhaps rows that `gradebox.run.pictures.timeline` draws of it (`shown`).
        """

    def attach(
        self, device: str, *, values: bool, ranks: int, prepared: Any, line: Connection | None
    ) -> AbstractContextManager[Any]:
        """In a child: make `device` available; yields what probes get as `student.gpu`, or None.

        `values` false asks a simulator for shapes only. `prepared` is None where `prepare` was not called, or failed.
        `line` leads to the device's process, where it has one.
        """

    def visible(self, device: str) -> str:
        """The name by which a submission knows `device`: `student.device`."""

    def parts(self, gpu: Any) -> Mapping[str, tuple[Any, ...]]:
        """The objects by which an attached `gpu` measures, by name: the same ones after a run, compared by identity."""

    def answering(self, gpu: Any) -> Mapping[str, Mapping[Any, Any]]:
        """Tables by which an attached `gpu` answers what a probe asks of it or of a tensor, by name. Nothing may be
        added to them or put elsewhere while a submission runs."""

    def links(self, gpu: Any) -> Iterable[tuple[object, str]]:
        """Parts of an attached `gpu` by which it reports, each as an attribute of another one."""

    def modes(self, gpu: Any) -> tuple[object, ...]:
        """The modes of functions that an attached `gpu` has put on."""

    def hidden(self, gpu: Any) -> tuple[object, ...]:
        """The generators that hold an attached `gpu`'s record."""

    def to_probe(self, array: NDArray[Any]) -> Any:
        """An array as probes get it."""

    def from_probe(self, value: Any) -> tuple[str, NDArray[Any]] | None:
        """The name of a value's type and its numbers, where it is a tensor of a library; None for everything else.

        Runs when the submission has run, so it must not let the value's class answer for itself.
        """


def load(module: str) -> DeviceModule:
    """The module of this name; without one, what is here: the CPU."""
    device_module: Any = importlib.import_module(module) if module else sys.modules[__name__]
    return device_module  # type: ignore[no-any-return]


def parse(option: str, module: str = "") -> Device:
    """The device that `--device` or a class's `class.toml` names, in the words of a course's `module`.

    Without a module there is the CPU. Messages name the device and no option, because it may come from either.

    Raises:
        DeviceError: there is no such device.
    """
    if module:
        try:
            return load(module).parse(option)
        except ModuleNotFoundError as error:
            raise DeviceError(f"the course's module of devices, {module}, cannot be imported: {error}") from None
    if option not in ("auto", CPU):
        raise DeviceError(f"device {option}: this course runs on the CPU; expected auto or cpu")
    return Device(CPU, "CPU")


# --- the CPU, in the sandbox ------------------------------------------------------------------------------------------

SIMULATOR: Simulator | None = None
INSTRUMENTS: Mapping[str, tuple[str, ...]] = {}
CLASSES: Mapping[str, tuple[str, ...]] = {}
EXCHANGED: frozenset[str] = frozenset()


def watch(device: str) -> AbstractContextManager[Sequence[str]]:
    """Nothing is known of who else uses the CPU."""
    return contextlib.nullcontext(())


def before_imports() -> None:
    """There is nothing to open."""


def require_forkable() -> None:
    """NumPy is."""


def prepares(device: str) -> str:
    """There is nothing to prepare."""
    return ""


def serves(device: str) -> bool:
    """Nothing is simulated."""
    return False


def serve(
    device: str,
    lines: Sequence[Connection],
    control: Connection,
    *,
    present: bool,
    conditions: Sequence[Mapping[str, Any]],
    prepared: Any,
) -> dict[str, Any]:
    """Never called."""
    raise DeviceError(f"{device} is not simulated")


def prepare(what: str) -> None:
    """Never called, as `prepares` says."""


def seed(device: str, number: int, *, threads: int) -> None:
    """Forked processes would share the state of the server's generators."""
    random.seed(number)
    np.random.seed(number)


def attach(
    device: str, *, values: bool, ranks: int, prepared: Any, line: Connection | None
) -> AbstractContextManager[None]:
    """The CPU needs no attaching."""
    return contextlib.nullcontext()


def visible(device: str) -> str:
    return CPU


def parts(gpu: Any) -> Mapping[str, tuple[Any, ...]]:
    return {}


def answering(gpu: Any) -> Mapping[str, Mapping[Any, Any]]:
    return {}


def links(gpu: Any) -> tuple[tuple[object, str], ...]:
    return ()


def modes(gpu: Any) -> tuple[object, ...]:
    return ()


def hidden(gpu: Any) -> tuple[object, ...]:
    return ()


def to_probe(array: NDArray[Any]) -> NDArray[Any]:
    return array


def from_probe(value: Any) -> None:
    """Arrays are taken by the engine; NumPy has no other tensors."""
    return
