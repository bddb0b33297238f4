"""Warnings name the program's line, wherever in PyTorch or in this package they arise."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vgpu


def _from_a_function() -> None:
    torch.add(torch.ones(3, device="cuda"), 1, out=torch.ones(2, device="cuda"))


def _from_an_operation() -> None:
    torch.triangular_solve(torch.ones(2, 2, device="cuda"), torch.eye(2, device="cuda"))


def _from_this_package() -> None:
    torch.cuda.set_sync_debug_mode("warn")
    torch.ones(3, device="cuda").sum().item()


def _from_a_graph() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


def _caught(call: Callable[[], Any], action: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for _ in range(2):
            call()
    return caught


@pytest.fixture(autouse=True)
def _default_modes(gpu: vgpu.VirtualGPU) -> Any:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("call", [_from_a_function, _from_an_operation, _from_this_package, _from_a_graph])
def test_a_warning_is_at_the_programs_line(call: Callable[[], None]) -> None:
    lines, first = inspect.getsourcelines(call)
    caught = _caught(call, "always")
    assert caught
    assert {warning.filename for warning in caught} == {__file__}
    assert {warning.lineno for warning in caught} <= set(range(first + 1, first + len(lines)))


def test_filters_see_the_programs_line() -> None:
    shown = _caught(_from_a_function, "default")
    assert len(shown) == 1  # once for each line, and not once for a line of this package
    assert not _caught(_from_a_function, "ignore")
    with pytest.raises(UserWarning, match="resized"):
        _caught(_from_a_function, "error")
