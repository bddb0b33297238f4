"""Which object something is, without the audit event that `id` raises: our own hook asks at each frame of a launch."""

from __future__ import annotations

from collections.abc import Callable

number_of: Callable[[object], int] = object.__hash__
"""A number that no other living object has."""
