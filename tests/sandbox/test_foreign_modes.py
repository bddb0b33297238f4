"""Which modes of functions may be on while a probe looks at tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import vgpu
from gradebox.sandbox.identity import number_of
from gradebox.sandbox.trusted_code import TrustedCode, foreign_mode
from vgpu.torch_integration.dispatch.function_mode import FunctionMode

LIBRARIES = (str(Path(torch.__file__).parents[1]) + "/", str(Path(vgpu.__file__).parents[1]) + "/vgpu/", sys.prefix)
SIMULATOR = frozenset(
    number_of(function.__code__) for function in vars(FunctionMode).values() if hasattr(function, "__code__")
)
HANDLER = "__torch_function__"


class _Own(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False


@pytest.fixture
def genuine() -> Iterator[Any]:
    with vgpu.attach("T4", force=True):
        yield _get_current_function_mode_stack()[0]


def _verdict(mode: object, *genuine: object) -> str:
    return foreign_mode(TrustedCode(LIBRARIES, simulator=SIMULATOR), genuine, HANDLER, mode)


def test_a_mode_that_a_program_attached_by_itself_is_let_through(genuine: Any) -> None:
    assert _verdict(genuine) == ""
    assert _verdict(genuine, genuine) == ""
    with torch.device("cpu"):
        assert _verdict(_get_current_function_mode_stack()[0], genuine) == ""


def test_a_mode_that_may_answer_as_somebody_wants_is_named(genuine: Any) -> None:
    copied = object.__new__(FunctionMode)
    vars(copied).update(vars(genuine))
    assert "FunctionMode" in _verdict(copied, genuine)
    assert "_Own" in _verdict(_Own(), genuine)
    for name in ("_call", HANDLER):
        vars(copied)[name] = MethodType(lambda *_: False, copied)
        assert "FunctionMode" in _verdict(copied), name
        del vars(copied)[name]
    assert _verdict(copied) == ""
