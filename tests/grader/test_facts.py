"""What a probe learns of a tensor comes from PyTorch's C++, whoever else would answer for it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import grader
from grader.shared.probes.facts import (
    buffers_of,
    dtype,
    gradient,
    has_graph,
    hooks_of,
    is_training,
    modules_of,
    parameters_of,
)

_GRAPH = frozenset({"requires_grad", "grad_fn"})
"""Attributes that say whether there is a graph."""


class _Denies(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.float64 if func == torch.Tensor.dtype.__get__ else False  # type: ignore[attr-defined]


class _Lies(torch.Tensor):
    requires_grad = False
    dtype = torch.float64

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False


def test_neither_a_mode_nor_a_subclass_answers_for_a_tensor() -> None:
    trained = torch.ones(2, requires_grad=True)
    with _Denies():
        assert trained.requires_grad is False
        assert has_graph(trained)
        assert dtype(trained) == torch.float32
    lying = trained.as_subclass(_Lies)
    assert has_graph(1, None, lying)
    assert dtype(lying) == torch.float32
    assert not has_graph(1, None, trained.detach())


def test_a_model_cannot_show_other_parts_than_it_has() -> None:
    shared = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(torch.nn.Sequential(shared, torch.nn.BatchNorm1d(2)), torch.nn.Linear(2, 3), shared)
    modules, parameters = list(model.modules()), list(model.parameters())

    class Other(torch.nn.Sequential):
        training = property(lambda model: False)  # type: ignore[assignment]

        def parameters(self, recurse: bool = True) -> Any:
            return iter(())

    model.__class__ = Other
    model.modules = lambda: iter(())  # type: ignore[method-assign]
    assert list(map(id, modules_of(model))) == list(map(id, modules))
    assert list(map(id, parameters_of(model))) == list(map(id, parameters))
    assert not model.training
    assert is_training(model)


class _Anything(str):
    def __hash__(self) -> int:
        return hash("training")

    def __eq__(self, other: object) -> bool:
        return True


def test_a_key_that_is_equal_to_every_name_answers_for_none() -> None:
    model = torch.nn.Linear(2, 2)
    space = dict(vars(model))
    vars(model).clear()
    vars(model)[_Anything("mode")] = False
    with pytest.raises(KeyError):
        is_training(model)
    assert not vars(model)["training"]  # what a plain look would have said
    vars(model).clear()
    vars(model).update(space)
    assert is_training(model)


def _reads(path: Path) -> int:
    """How often a step that notes something reads whether a tensor has a graph, by an attribute."""
    inner = [
        node
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and _notes(function)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in _GRAPH and isinstance(node.ctx, ast.Load)
    ]
    return len({(node.lineno, node.col_offset) for node in inner})


def _notes(function: ast.FunctionDef) -> bool:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(getattr(call, "attr", getattr(call, "id", "")).lstrip("_").startswith("note") for call in calls)


PROBES = sorted(
    path for path in Path(grader.__file__).parent.rglob("*.py") if "probes" in (path.stem, path.parent.name)
)


@pytest.mark.parametrize("path", PROBES, ids=lambda path: str(path.relative_to(Path(grader.__file__).parent)))
def test_a_probe_that_notes_asks_no_attribute_for_a_graph(path: Path) -> None:
    name = str(path.relative_to(Path(grader.__file__).parent))
    assert not _reads(path), f"{name}: use `has_graph` of grader.shared.probes.facts"


class _ShowsNone(dict[int, Any]):
    """Hooks that are there, and a length that denies them."""

    def __len__(self) -> int:
        return 0


def test_methods_put_on_a_model_hide_neither_hooks_nor_buffers_nor_gradients() -> None:
    model: Any = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    weight = model[1].weight
    weight.grad = torch.ones(2, 2)
    buffers, before = list(model.buffers()), hooks_of(model)
    model[0]._forward_hooks = _ShowsNone()
    model[0].register_forward_hook(lambda *_: None)
    general = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    for name in ("modules", "buffers", "parameters"):
        setattr(model, name, lambda *_: iter(()))
    weight.__class__ = type("Denies", (torch.nn.Parameter,), {"grad": None})
    try:
        assert weight.grad is None
        assert gradient(weight) is not None
        assert hooks_of(model) - before == 2
        assert [id(each) for each in buffers_of(model)] == [id(each) for each in buffers]
    finally:
        general.remove()
