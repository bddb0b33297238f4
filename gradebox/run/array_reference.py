"""The stand-in for an array in a list or a dictionary that a probe returned."""

from __future__ import annotations

from typing import Any, Self

from numpy.typing import NDArray


class ArrayReference(str):
    """The path of that array, under which `Seen` has it, so that code that expects a number or a text there does not
    take an array for one."""

    def __new__(cls, path: str, array: NDArray[Any]) -> Self:
        made = super().__new__(cls, path)
        made.array = array
        return made

    array: NDArray[Any]

    def __repr__(self) -> str:
        return f"an array of {self.array.dtype} with shape {self.array.shape}"


def in_place(value: Any) -> Any:
    """`value` with every array where it stood, in lists as well."""
    if isinstance(value, ArrayReference):
        return value.array
    return [in_place(item) for item in value] if isinstance(value, (list, tuple)) else value
