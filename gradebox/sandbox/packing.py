"""What a worker makes of a probe's value: plain values, what is put aside of them, and the bytes that are sent.

All of it runs when the last comparison of a rank's instruments is over, while code of the submission may still run in
between: a callback of the garbage collector, a signal's handler, a mode of PyTorch that was left on. So each function
here is made before the submission runs, and reaches all that it uses by local variables (`codec.converter`). Imports
no PyTorch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gradebox.sandbox import codec, failures
from gradebox.sandbox.devices import Reading
from gradebox.sandbox.observer import SystemReading


def putting_aside(
    taken: dict[str, tuple[str, Any]],
    readings: dict[str, int],
    of_system: dict[str, str],
    from_probe: Callable[[Any], tuple[str, Any] | None],
) -> Callable[[str, Any], bool]:
    """A function that takes tensors, arrays and readings out of a probe's value; false for anything else.

    It shows `from_probe` nothing that holds other values.
    """
    is_a, kind, text, attribute, array, masked = isinstance, type, str, getattr, np.ndarray, np.ma.MaskedArray
    of_device, system, numbers, numeric = Reading, SystemReading, codec.numbers_of, "biufc"
    containers = (list, tuple, dict)

    def put_aside(path: str, value: Any) -> bool:
        if kind(value) is of_device:
            readings[path] = value.number
            return True
        if kind(value) is system:
            of_system[path] = value.name
            return True
        if is_a(value, containers) or attribute(kind(value), "__dataclass_fields__", None) is not None:
            return False
        tensor = from_probe(value)
        if tensor is None and is_a(value, array) and value.dtype.kind in numeric and not is_a(value, masked):
            tensor = (text(value.dtype), value)
        if tensor is None:
            return False
        taken[path] = (tensor[0], numbers(tensor[1]))
        return True

    return put_aside


def failed(outcome: dict[str, Any]) -> dict[str, Any]:
    """What is said of an error, which is never that all went well, whoever says it."""
    return {"kind": "tampered", "message": "what describes errors"} if outcome["kind"] == "ok" else outcome


def packer(max_bytes: int) -> Callable[[dict[str, Any], dict[str, Any]], bytes]:
    """A function that makes the payload of an outcome and its arrays, of so many bytes at most."""
    pack, plain, describe, of_error, size = codec.packer(), _plain_json, failures.describe, failed, len
    join, suppress, system = codec.join, contextlib.suppress, sys

    def payload(outcome: dict[str, Any], arrays: dict[str, Any]) -> bytes:
        try:
            data = join(plain(outcome), b"") if outcome["kind"] == "tampered" else pack(outcome, arrays)
        except Exception as error:
            data = pack(of_error(describe(error, submission="\0", importing=(), probe_folders=())), {})
        if size(data) > max_bytes:
            message = f"the result has {size(data)} bytes, allowed are {max_bytes}"
            data = pack({"kind": "output", "message": message}, {})
        for stream in (system.stdout, system.stderr):
            with suppress(Exception):
                stream.flush()
        return data

    return payload


def _plain_json(outcome: dict[str, Any]) -> bytes:
    """JSON of texts without quotes or escapes in them, made without the encoder that may have been replaced."""
    return ("{" + ",".join(f'"{key}":"{value}"' for key, value in outcome.items()) + "}").encode()
