"""The two modes of an attachment on a thread: entering, leaving, and standing aside while another one is attached.

Not here: what the modes do (`vgpu.torch_integration.dispatch.function_mode`,
`vgpu.torch_integration.dispatch.dispatch_mode`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from vgpu.runtime.machine import Machine
from vgpu.torch_integration.dispatch.dispatch_mode import DispatchMode
from vgpu.torch_integration.dispatch.function_mode import FunctionMode
from vgpu.torch_integration.handling_mode import seen_by


class IdleFunctionMode(FunctionMode):
    """A function mode that lets everything through."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class IdleDispatchMode(DispatchMode):
    """A dispatch mode that lets everything through."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Modes:
    """The modes of one machine; a program's threads share them."""

    def __init__(self, machine: Machine) -> None:
        self.function_mode = FunctionMode(machine)
        self.dispatch_mode = DispatchMode(machine, self.function_mode)

    def begin(self) -> None:
        """It is known which machine it is."""
        self.function_mode.begin()
        self.dispatch_mode.begin()

    def enter(self) -> Callable[[], None]:
        """Put them on the calling thread; what this returns takes them off, whatever else was put on since."""
        self.function_mode.__enter__()
        self.dispatch_mode.__enter__()

        def leave() -> None:
            stack = dispatch._get_current_dispatch_mode_stack
            _take_off(self.dispatch_mode, stack, _pop_dispatch, dispatch._push_mode)
            stack = overrides._get_current_function_mode_stack
            _take_off(self.function_mode, stack, overrides._pop_mode, overrides._push_mode)

        return leave

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """What PyTorch calls."""
        return FunctionMode.__torch_function__, DispatchMode.__torch_dispatch__

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside, PyTorch is what the program sees, also where PyTorch has taken the modes off."""
        is_on = any(mode is self.dispatch_mode for mode in dispatch._get_current_dispatch_mode_stack())
        with seen_by(self.function_mode), contextlib.nullcontext() if is_on else self.dispatch_mode:
            yield

    @contextlib.contextmanager
    def standing_aside(self) -> Iterator[None]:
        """Stay where they are, and do nothing. (A mode's class decides what it does.)"""
        self.stop()
        try:
            yield
        finally:
            self.function_mode.__class__ = FunctionMode
            self.dispatch_mode.__class__ = DispatchMode

    def stop(self) -> None:
        """For good: a thread that still runs after its GPU has gone uses plain PyTorch."""
        self.function_mode.__class__ = IdleFunctionMode
        self.dispatch_mode.__class__ = IdleDispatchMode


def _pop_dispatch() -> Any:
    innermost = dispatch._get_current_dispatch_mode_stack()[-1]
    return dispatch._pop_mode(getattr(innermost, "_mode_key", None))


def _take_off(
    mode: TorchFunctionMode | TorchDispatchMode,
    stack: Callable[[], Any],
    pop: Callable[[], Any],
    push: Callable[[Any], None],
) -> None:
    """Leave a mode that may not be the innermost one: a program can have left a block of its own open."""
    if not any(other is mode for other in stack()):
        return
    above = []
    while stack()[-1] is not mode:
        above.append(pop())
    mode.__exit__(None, None, None)
    for other in reversed(above):
        push(other)
