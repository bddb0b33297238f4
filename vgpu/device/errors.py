"""The errors of the virtual GPU. Not here: CUDA's own errors, which the simulation raises with PyTorch's types."""

from __future__ import annotations


class Unsupported(RuntimeError):
    """An operation that the virtual GPU does not simulate; the text names it and says what to do instead.

    It is raised rather than returning a number that nobody computed.
    """

    def __init__(self, operation: str, instead: str) -> None:
        super().__init__(f"the virtual GPU does not support {operation}: {instead}")
        self.operation = operation
        self.instead = instead


class StreamHazard(UserWarning):
    """Two uses of the same memory that nothing orders; on a card the values may be wrong. The text says what helps."""


class SpecError(ValueError):
    """A GPU description that cannot be used; the text names the file, the key and what is wrong with it."""


class AttachError(RuntimeError):
    """`vgpu.attach` was called where it must not be: inside another attach, or where real CUDA is present."""
