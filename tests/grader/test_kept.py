"""What probes hand out behaves as plain functions and methods do, to code that copies what it is given."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from grader.shared.probes.kept import function, gate, in_turn, method, notes


def test_a_model_that_was_handed_out_can_be_copied_and_its_copy_notes_as_well() -> None:
    note, noted = notes()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        @method
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            note("forward")
            return torch.as_tensor(self.layer(x))

    @function
    def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        note("hook")

    model = Model()
    model.layer.register_forward_hook(hook)
    twin = copy.deepcopy(model)
    assert twin.layer.weight is not model.layer.weight
    twin(torch.ones(1, 2))
    assert noted() == ["forward", "hook"]


def test_whatever_is_handed_out_may_be_copied() -> None:
    for handed_out in (notes()[0], in_turn([1.0], 2.0), gate(1.0).wait, function(len)):
        copy.deepcopy({"given": handed_out})
    turn = in_turn([1.0, 2.0], 3.0)
    assert [turn(), copy.deepcopy(turn)(), turn()] == [1.0, 2.0, 3.0]


def test_a_torch_function_mode_has_no_part_in_a_step_and_is_on_again_afterwards() -> None:
    """A submission may log PyTorch's functions; its mode must answer nothing that a probe looks at."""

    class Denies(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return False if func == torch.Tensor.requires_grad.__get__ else func(*args, **(kwargs or {}))  # type: ignore[attr-defined]

    def each(tensor: torch.Tensor) -> Iterator[bool]:
        yield tensor.requires_grad
        yield tensor.requires_grad

    def fails(tensor: torch.Tensor) -> None:
        raise ValueError("no")

    tensor = torch.zeros(1, requires_grad=True)
    with torch.device("meta"), Denies():
        assert function(lambda x: x.requires_grad)(tensor)
        assert list(function(each)(tensor)) == [True, True]
        with pytest.raises(ValueError, match="no"):
            function(fails)(tensor)
        assert function(lambda: torch.zeros(1))().is_meta  # the default device stays
        assert not tensor.requires_grad
        assert torch._C._len_torch_function_stack() == 2


def test_a_default_device_that_answers_by_code_of_the_submission_has_no_part_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denies(self: object, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func == torch.Tensor.requires_grad.__get__ else func(*args, **(kwargs or {}))  # type: ignore[attr-defined]

    tensor = torch.zeros(1, requires_grad=True)
    read = function(lambda x: x.requires_grad)
    with torch.device("meta"):
        default = torch._C._get_function_stack_at(0)
        vars(default)["__torch_function__"] = denies.__get__(default)
        assert read(tensor)
        del vars(default)["__torch_function__"]
    with monkeypatch.context() as patched, torch.device("meta"):
        patched.setattr(DeviceContext, "__torch_function__", denies)
        assert not tensor.requires_grad
        assert read(tensor)
    with monkeypatch.context() as patched, torch.device("meta"):
        patched.setattr(DeviceContext.__torch_function__, "__code__", denies.__code__)
        assert read(tensor)


def test_a_function_that_raised_may_be_called_again_although_its_frames_were_cleared() -> None:
    """As a program does that must not keep the memory of what ran out of it."""

    def fails(number: int) -> int:
        if number == 0:
            raise ValueError("no")
        return number

    handed_out = function(fails)
    with pytest.raises(ValueError, match="no") as caught:
        handed_out(0)
    traceback.clear_frames(caught.tb)
    assert traceback.extract_tb(caught.tb)[-1].name == "fails"
    assert handed_out(1) == 1


@dataclass(frozen=True)
class _Seen:
    """What a probe may note of a pass."""

    values: list[float]
    by_name: dict[str, set[int]]


def test_a_note_stays_what_it_was_whoever_holds_what_was_noted() -> None:
    note, noted = notes()
    seen = _Seen([1.0, 2.0], {"layer": {3}})
    for value in (seen, (1, [2]), None, float):
        note(value)
    seen.values.append(3.0)
    seen.by_name["layer"].add(4)
    noted()[1][1].append(3)
    noted().clear()
    assert noted() == [_Seen([1.0, 2.0], {"layer": {3}}), (1, [2]), None, float]
    # Nothing of it can be exchanged, as the cell of a closure can.
    assert isinstance(noted, MethodType)
    assert isinstance(noted.__self__, tuple)
