"""Which probes measure something that other work on the same device would disturb.

A probe declares it:

    @measures("time")
    def product(student, *, size): ...

A request for such a probe has a real device to itself; all other requests share the device. The judge reads the
declaration from the probe's source, because it must not import what probes import. Not here: whether a device was
disturbed by somebody else's work (`gradebox.sandbox.devices.DeviceModule.watch`).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from gradebox.common import layout

_Probe = TypeVar("_Probe", bound=Callable[..., object])

Quantity = Literal["time", "device memory"]
"""`time`: any clock, event or profiler. `device memory`: bytes that all processes share, as NVML or `mem_get_info`
report them, or running out of memory. Counts of PyTorch's allocator for its own process need no declaration."""


def measures(*quantities: Quantity) -> Callable[[_Probe], _Probe]:
    """Declare that a probe measures these, so that nothing else may use a real device meanwhile.

    Raises:
        ValueError: no quantity is named.
    """
    if not quantities:
        raise ValueError('measures() names what is measured: @measures("time")')

    def declare(probe: _Probe) -> _Probe:
        probe.__measures__ = quantities  # type: ignore[attr-defined]
        return probe

    return declare


def measured_by(course: Path, probe: str) -> frozenset[str]:
    """What the probe `lab1.basics.product` of the course in this folder declares; nothing for one that is not there."""
    place, _, name = probe.rpartition(".")
    return _declared(layout.probe_file(course, place)).get(name, frozenset())


@functools.cache
def _declared(path: Path) -> dict[str, frozenset[str]]:
    """By function of a module of probes, the arguments of its `@measures(...)`."""
    try:
        tree = ast.parse(path.read_bytes())
    except OSError:
        return {}
    declarations: dict[str, frozenset[str]] = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == measures.__name__:
                declarations[function.name] = frozenset(ast.literal_eval(argument) for argument in decorator.args)
    return declarations
