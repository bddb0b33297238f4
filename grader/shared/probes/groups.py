"""For how long process groups wait for a lost rank: as they were made, whatever their options say later.

Gloo takes its timeout when a group is made. The options of the group can be written afterwards, and nothing follows
from that. Not for groups that NCCL makes. Imports nothing of `grader` but `kept`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from grader.shared.probes.kept import function, notes

_MAKER = "_new_process_group_helper"
"""Of `torch.distributed.distributed_c10d`: all ways to make a group end there."""

_note, _noted = notes()


def timeout_of(group: object, noted: Callable[[], list[Any]] = _noted) -> float | None:
    """Seconds that a collective of this group waits before it raises; None for a group that nobody has seen made."""
    return next((seconds for made, seconds in noted() if made is group), None)


def in_group() -> bool:
    """Whether this process belongs to a process group, also to one that only `torch.distributed.group` has lost."""
    return dist.is_initialized() or bool(dist.distributed_c10d._world.pg_map)


def _watch() -> None:
    space, device = vars(dist.distributed_c10d), torch.device("cpu")
    make: Callable[..., Any] = space[_MAKER]

    def make_and_note(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        with contextlib.suppress(RuntimeError, AttributeError):  # no backend for the CPU
            timeout: timedelta = made[0]._get_backend(device).options._timeout
            _note((made[0], timeout.total_seconds()))
        return made

    # In one step, so that nobody else can note something of a group.
    space[_MAKER] = function(make_and_note)


if dist.is_available():
    _watch()
