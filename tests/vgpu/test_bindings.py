"""The functions that stand for overloads call the same kernels with the same arguments."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from vgpu.runtime.operations import bindings  # noqa: E402


class _Notes(TorchDispatchMode):
    """Writes down what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _examples(overload: Any) -> list[tuple[Any, ...]]:
    """Arguments in the places and forms in which a mode is given them."""
    matrix, batch, vector = torch.rand(3, 3), torch.rand(2, 3, 3), torch.rand(3)
    name = overload._schema.name.removeprefix("aten::")
    special: dict[str, list[tuple[Any, ...]]] = {
        "addmm": [(vector, matrix, matrix)],
        "bmm": [(batch, batch)],
        "baddbmm": [(batch, batch, batch)],
        "mv": [(matrix, vector)],
        "dot": [(vector, vector)],
        "threshold": [(matrix, 0, 0), (matrix, 0.5, 1.0)],
        "threshold_": [(matrix, 0, 0)],
        "t": [(matrix,), (vector,)],
        "permute": [(batch, [2, 0, 1])],
        "unsqueeze": [(matrix, -1)],
        "transpose": [(batch, 0, -1)],
        "select": [(batch, 0, 1)],
        "amax": [(matrix,), (matrix, [0]), (matrix, [0, 1], True)],
        "mean": [(matrix, [0]), (matrix, [0, 1], True), (matrix, None)],
        "lerp": [(matrix, matrix, 0.5)],
        "lerp_": [(matrix, matrix, 0.5)],
        "fill_": [(matrix, 2), (matrix, 0.5), (matrix, True)],
        "view": [(matrix, [9]), (matrix, [-1, 1])],
        "expand": [(vector, [2, 3])],
    }
    if name == "sum":
        return [(matrix, [0]), (matrix, [0, 1], True), (matrix, []), (matrix, None)]
    if name in special:
        return special[name]
    tensors = sum("Tensor" in str(argument.type) for argument in overload._schema.arguments if not argument.kwarg_only)
    examples: list[tuple[Any, ...]] = [tuple(torch.rand(3, 3) for _ in range(tensors))]
    if overload._overloadname == "Tensor":
        examples += [(matrix, 2), (matrix, 0.5), (matrix, vector), (torch.arange(3), 2), (vector, torch.tensor(2.0))]
    return examples


@pytest.mark.parametrize("overload", bindings.overloads(), ids=str)
def test_a_binding_calls_its_overload(overload: Any) -> None:
    function = bindings.direct(overload)
    assert function is not None
    for example in _examples(overload):
        with torch.no_grad(), _Notes() as notes:
            copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in example]
            notes.calls.clear()
            result = function(*copies)
            assert len(notes.calls) == 1
        called, args, kwargs = notes.calls[0]
        assert (called, kwargs) == (overload, {})
        defaults = [argument.default_value for argument in overload._schema.arguments]
        for place, value in enumerate(args):
            other = copies[place] if place < len(copies) else defaults[place]
            assert value is other if isinstance(value, torch.Tensor) else (type(value), value) == (type(other), other)
        again = [value.clone() if isinstance(value, torch.Tensor) else value for value in example]
        expected = overload(*again)
        assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(result, expected)
        # What is written in place is the argument itself, and a view is one of its argument.
        assert (result is copies[0]) == (expected is again[0])
        assert result._is_view() == expected._is_view()


def test_a_replaced_function_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", None)
    function = bindings.direct(torch.ops.aten.mm.default)
    assert function is not None
    assert torch.equal(function(torch.eye(2), torch.eye(2)), torch.eye(2))
