"""How large a checkpoint must be, and how little the ranks may write that do not write it."""

from __future__ import annotations

from gradebox.run.assertions import Cause, require

_LEAST_BYTES = 4
"""Of a parameter in float64, even where a file is compressed."""


def require_size(size: int, *, parameters: int) -> None:
    """Fail if rank 0's file is too small to hold the parameters."""
    least = _LEAST_BYTES * parameters
    require(
        size >= least,
        f"save_checkpoint('checkpoint.pt', ...): the file has {size} bytes, fewer than the {least} that {parameters} "
        "parameters take at least",
    )


def require_nothing_elsewhere(written: int | None, size: int, hint: Cause) -> None:
    """Fail if another rank has written half a checkpoint or more, to any file; None: the system does not count."""
    require(
        written is None or 2 * written < size,
        f"rank 1 wrote {written} bytes in save_checkpoint(), as a rank does that saves; rank 0's file has {size}",
        hint,
    )
