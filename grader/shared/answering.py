"""What of a virtual GPU answers in the submission's process: its modes, their tables, and the way to its own process.

Not here: what is compared when all is over (`grader.shared.devices.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgpu import VirtualGPU


def modes(gpu: VirtualGPU) -> tuple[object, ...]:
    """The modes of functions that are on before there is a submission."""
    from torch.overrides import _get_current_function_mode_stack

    return tuple(_get_current_function_mode_stack())


def answering(gpu: VirtualGPU) -> dict[str, Mapping[Any, Any]]:
    """The functions that its modes have an answer to, and namespaces: of the modes, and of the classes of all parts."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from vgpu.torch_integration.dispatch.function_mode import HANDLERS

    tables: dict[str, Mapping[Any, Any]] = {"functions of the virtual GPU": HANDLERS}
    for mode in (*modes(gpu), *_get_current_dispatch_mode_stack()):
        tables[f"a mode of the virtual GPU ({type(mode).__name__})"] = vars(mode)
        tables |= _classes(mode)
    for owner, _ in links(gpu):
        tables |= _classes(owner)
    return tables


def links(gpu: VirtualGPU) -> list[tuple[object, str]]:
    """The parts by which each GPU reports, each with where it is found."""
    found: list[tuple[object, str]] = []
    for each in gpu.machine.gpus:
        found += [(each, name) for name in ("machine", "memory", "queue", "clock", "registry", "repeats")]
        found += [(each.memory, "history"), (each.memory, "living"), (each.memory.history, "tell")]
        if hasattr(each.queue, "line"):
            line: object = each.queue.line
            names = ("_connection", "tell", "_writers")
            found += [(each.queue, "line"), *((line, name) for name in names if hasattr(line, name))]
    return found


def _classes(part: object) -> dict[str, Mapping[Any, Any]]:
    return {f"{kind.__module__}.{kind.__qualname__}": vars(kind) for kind in type(part).__mro__[:-1]}
