"""What a checkpoint must hold, and how little the ranks may write that do not write it."""

from __future__ import annotations

import zlib

import numpy as np

from gradebox.run.assertions import Cause, require
from gradebox.sandbox.probe_types import Array

_LEAST_BYTES = 4
"""Of a parameter in float64, in a file that is compressed."""
_MESSAGES = 2048
"""Bytes of messages and logs that a rank may write: right solutions wrote 148 at most, and a copy of all numbers in 16
bits has 9,000."""
_SHOWN = 4
"""Parameters by which others are known to be there."""


def require_parameters(content: Array, parameters: Array) -> None:
    """Fail if rank 0's file cannot hold these parameters: not as they are, nor in any other form."""
    held, values = np.asarray(content, dtype=np.uint8).tobytes(), np.ravel(parameters).astype(np.float64)
    least, packed = _LEAST_BYTES * values.size, len(zlib.compress(held))
    require(
        values[:_SHOWN].tobytes() in held or packed >= least,
        f"save_checkpoint('checkpoint.pt', ...): what is in the file takes {packed} bytes once it is compressed, fewer "
        f"than the {least} that {values.size} parameters take at least",
        "Save the model's state_dict().",
    )


def require_nothing_elsewhere(written: int | None, size: int, hint: Cause) -> None:
    """Fail if another rank has written any part of a checkpoint, to any file; None: the system does not count."""
    require(
        written is None or written <= _MESSAGES,
        f"rank 1 wrote {written} bytes in save_checkpoint(), as a rank does that saves; rank 0's file has {size}",
        hint,
    )
