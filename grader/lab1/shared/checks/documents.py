"""Results that a program of the submission wrote, or that a student committed."""

from __future__ import annotations

from typing import Any, TypeAlias

Document: TypeAlias = Any
"""What a file of JSON says: it may be anything, whatever a check looks for in it."""
