"""What a program's process says to its device's, where that is another one: bytes, which the device checks.

Small records of fixed size for what happens often, and texts (JSON) for the rest: work, once for each kind of launch,
and questions. Not here: who sends them (`vgpu.device.remote`) and what follows (`vgpu.device.service`).
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from vgpu.device.kernel_work import (
    ENGINES,
    KINDS,
    PASSES,
    Again,
    Convolution,
    KernelWork,
    Product,
    Programs,
    Race,
    Stored,
)

LAUNCH = struct.Struct("<cBHIIddd")
"""GPU, thread, stream, work, when its launch began, how long that took the host, seconds (NaN: the device's to say)."""
HOLD = struct.Struct("<cBId")
"""GPU, stream, moment: what comes next on the stream waits for it."""
HOLD_EVENT = struct.Struct("<cBII")
"""GPU, stream, number of an event."""
EVENT = struct.Struct("<cBId")
"""GPU, stream, the host's time: a point in the stream, which gets the next number."""
STREAM = struct.Struct("<cBd")
"""GPU, the host's time: one more stream."""
LEVEL = struct.Struct("<cB")
"""GPU: its work has waited for other ranks."""
MARK = struct.Struct("<c")
"""A place in the record of all GPUs, which gets the next number."""
MEMORY = struct.Struct("<cBQQ")
"""GPU, bytes allocated now, the most since its last message of this kind; gets the next number of all GPUs."""
TEXT = struct.Struct("<cI")
"""How many bytes of JSON follow: a list, whose first item says what it is."""
SIZES = {
    b"L": LAUNCH.size, b"H": HOLD.size, b"h": HOLD_EVENT.size, b"E": EVENT.size, b"S": STREAM.size, b"V": LEVEL.size,
    b"M": MARK.size, b"A": MEMORY.size, b"T": TEXT.size,
}  # fmt: skip

_PLAIN = json.JSONEncoder(separators=(",", ":")).encode


class Malformed(Exception):
    """Bytes that no program's side of ours has sent."""


def text(*items: Any) -> bytes:
    """A text of these items."""
    data = _PLAIN(items).encode()
    return TEXT.pack(b"T", len(data)) + data


def number(value: object) -> float:
    """A finite number. Raises Malformed for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Malformed(f"{value!r} is no number")
    return float(value)


def whole(value: object, most: int) -> int:
    """A number from 0 to `most`. Raises Malformed for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Malformed(f"{value!r} is none of {most + 1} numbers")
    return value


def word(value: object) -> str:
    """A text. Raises Malformed for anything else."""
    if not isinstance(value, str):
        raise Malformed(f"{value!r} is no text")
    return value


def work_of(fields: Any) -> KernelWork:
    """The work that `list(work)` became as JSON. Raises Malformed where it is none."""
    if not isinstance(fields, list) or len(fields) != len(KernelWork._fields):
        raise Malformed("that is no work")
    made = dict(zip(KernelWork._fields, fields, strict=True))
    shapes = made.pop("shapes")
    product = made.pop("product")
    programs = made.pop("programs")
    again = made.pop("again")
    for name, value in made.items():
        usual = KernelWork._field_defaults.get(name, "")
        if isinstance(usual, (bool, str)):
            if type(value) is not type(usual):
                raise Malformed(f"work's {name} is {value!r}")
        elif number(value) < 0:
            raise Malformed(f"work's {name} is negative")
    if made["kind"] not in KINDS or made["engine"] not in ("", *ENGINES):
        raise Malformed(f"work of kind {made['kind']!r} for {made['engine']!r}")
    if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
        raise Malformed("work without shapes")
    return KernelWork(
        **made,
        shapes=tuple(tuple(whole(size, 2**62) for size in shape) for shape in shapes),
        product=None if product is None else _product_of(product),
        programs=None if programs is None else programs_of(programs),
        again=None if again is None else _again_of(again),
    )


def _again_of(fields: Any) -> Again:
    if not isinstance(fields, list) or len(fields) != len(Again._fields):
        raise Malformed("that is nothing to read again")
    return Again(*(whole(size, 2**62) for size in fields))


def _product_of(fields: Any) -> Product:
    if not isinstance(fields, list) or len(fields) != len(Product._fields):
        raise Malformed("that is no product")
    batch, m, n, k, times, kernel, backward, causal, steps, convolution = fields
    if not isinstance(backward, bool) or not isinstance(causal, bool):
        raise Malformed("that is no product")
    batch, m, n, k, steps = (whole(size, 2**62) for size in (batch, m, n, k, steps))
    made = None if convolution is None else _convolution_of(convolution)
    return Product(batch, m, n, k, number(times), word(kernel), backward, causal, steps, made)


def _convolution_of(fields: Any) -> Convolution:
    if not isinstance(fields, list) or len(fields) != len(Convolution._fields):
        raise Malformed("that is no convolution")
    passes, *sizes = fields[:8]
    strided, planar_input, planar_result = flags = fields[8:]
    if not isinstance(passes, list) or not all(name in PASSES for name in passes):
        raise Malformed("that is no convolution")
    if not all(isinstance(flag, bool) for flag in flags):
        raise Malformed("that is no convolution")
    images, channels, filters, inputs, results, window, groups = (whole(size, 2**62) for size in sizes)
    if not groups:
        raise Malformed("that is no convolution")
    return Convolution(
        tuple(passes), images, channels, filters, inputs, results, window, groups, strided, planar_input, planar_result
    )


def programs_of(fields: Any) -> Programs:
    """What a launch's programs did, from JSON. Raises Malformed where it is nothing of the kind."""
    if not isinstance(fields, list) or len(fields) != len(Programs._fields):
        raise Malformed("that is nothing that programs did")
    count, read, written, flops, tf32, strayed, races, stored, loaded = fields
    if not isinstance(tf32, bool) or not all(isinstance(rows, list) for rows in (races, stored, loaded)):
        raise Malformed("that is nothing that programs did")
    count, read, written, strayed = (whole(value, 2**62) for value in (count, read, written, strayed))
    return Programs(
        count,
        read,
        written,
        number(flops),
        tf32,
        strayed,
        tuple(map(_race_of, races)),
        tuple(map(_stored_of, stored)),
        tuple(map(_stored_of, loaded)),
    )


def _race_of(fields: Any) -> Race:
    if not isinstance(fields, list) or len(fields) != len(Race._fields):
        raise Malformed("that is no race")
    argument, element, programs, accesses = fields
    (left, right), (first, second) = programs, accesses
    programs = whole(left, 2**62), whole(right, 2**62)
    if type(element) is not int:
        raise Malformed("that is no race")
    return Race(word(argument), element, programs, (word(first), word(second)))


def _stored_of(fields: Any) -> Stored:
    if not isinstance(fields, list) or len(fields) != len(Stored._fields):
        raise Malformed("nothing was stored there")
    argument, total, squares = fields
    return Stored(word(argument), *(None if value is None else number(value) for value in (total, squares)))
