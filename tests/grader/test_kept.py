"""What probes hand out behaves as plain functions and methods do, to code that copies what it is given."""

from __future__ import annotations

import copy

import torch
from torch import nn

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
