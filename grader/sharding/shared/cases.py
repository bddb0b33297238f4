"""What several probes of the exercise return: what ranks sent each other, and how calls ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class Collective(TypedDict):
    """One kernel of NCCL, as the virtual GPU recorded it."""

    name: str
    bytes: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class RefusalsReply:
    """By call, in words, the name of the exception that it raised; "" if it returned."""

    calls: dict[str, str]
    """Calls that make no sense."""
    sensible: dict[str, str]
    """Neighbours of them that do."""
