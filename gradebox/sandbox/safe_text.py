"""Text of what a submission made, read without running any code of it."""

from __future__ import annotations

_SHOWN_TYPES = (int, float, bool, type(None))


def safe(value: object, otherwise: str) -> str:
    """Text of a value without running any code of it: a subclass of str may bring methods of its own."""
    kind = type(value)  # and not `isinstance`, which asks the value for its `__class__`
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, bytes):
        return b"".join([value]).decode("utf-8", "backslashreplace")  # type: ignore[list-item]
    if kind in (tuple, list):
        return "(" + ", ".join([safe(element, "an object") for element in value[:4]]) + ")"  # type: ignore[index]
    return repr(value) if kind in _SHOWN_TYPES else otherwise


def plain_ascii(text: str, most: int) -> str:
    """ASCII, so that a line of notes is as long as it looks."""
    return text[:most].encode("ascii", "backslashreplace").decode()[:most]
