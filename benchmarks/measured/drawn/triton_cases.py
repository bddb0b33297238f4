"""Triton's vector add, softmax of rows and product of matrices, in several sizes and with several blocks."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    LOW_AND_FULL,
    Drawn,
    Family,
    Measured,
    Parameters,
    element_bytes,
    size,
    tensor,
    until,
)

_EACH = 20
_MOST_ELEMENTS, _MOST_OPERATIONS = 2**26, 5e11
_TILES = ((64, 64, 32), (128, 64, 32), (128, 128, 32), (128, 128, 64))


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_EACH):
        precision = LOW_AND_FULL[number % len(LOW_AND_FULL)]
        yield precision, {"kernel": "add", "count": size(rng, 2**8, 2**27), "block": rng.choice((256, 1024, 4096))}
        shape = until(lambda: {"rows": size(rng, 1, 65_536), "columns": size(rng, 2, 8192)}, _fits)
        yield precision, {"kernel": "softmax"} | shape
        yield "bf16" if precision == "bf16" else "fp16", _product(rng, number)


def _fits(p: dict[str, Any]) -> bool:
    return bool(p["rows"] * p["columns"] <= _MOST_ELEMENTS)


def _product(rng: random.Random, number: int) -> dict[str, Any]:
    m, n, k = _TILES[number % len(_TILES)]
    tile = {"kernel": "matmul", "block_m": m, "block_n": n, "block_k": k}
    sides = until(
        lambda: {name: size(rng, 32, 8192) for name in ("m", "n", "k")},
        lambda p: 2.0 * p["m"] * p["n"] * p["k"] <= _MOST_OPERATIONS,
    )
    return tile | sides


def _prepare(p: Parameters, precision: str) -> Step:
    from benchmarks.measured.drawn import triton_kernels as kernels

    if p["kernel"] == "add":
        x = tensor(p["count"], precision=precision)
        out, grid = torch.empty_like(x), (-(-p["count"] // p["block"]),)
        return lambda: kernels.add[grid](x, x, out, p["count"], BLOCK=p["block"])
    if p["kernel"] == "softmax":
        x = tensor(p["rows"], p["columns"], precision=precision)
        out, block = torch.empty_like(x), 1 << (p["columns"] - 1).bit_length()
        return lambda: kernels.softmax[(p["rows"],)](x, out, p["columns"], BLOCK=block)
    left, right = tensor(p["m"], p["k"], precision=precision), tensor(p["k"], p["n"], precision=precision)
    out = torch.empty(p["m"], p["n"], device="cuda", dtype=left.dtype)
    grid2 = (-(-p["m"] // p["block_m"]), -(-p["n"] // p["block_n"]))
    blocks = {"BLOCK_M": p["block_m"], "BLOCK_N": p["block_n"], "BLOCK_K": p["block_k"]}
    return lambda: kernels.matmul[grid2](left, right, out, p["m"], p["n"], p["k"], **blocks)


def _measure(p: Parameters, precision: str) -> Measured:
    step = _prepare(p, precision)
    start = timing.real_seconds()
    step()
    torch.cuda.synchronize()
    first = timing.real_seconds() - start
    return Measured({"first_call_seconds": first} | timing.host_and_device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    if p["kernel"] == "matmul":
        elements = p["m"] * p["k"] + p["k"] * p["n"] + p["m"] * p["n"]
    else:
        elements = p.get("count", p.get("rows", 0) * p.get("columns", 0))
    return float(4 * element_bytes(precision) * elements)


def _missing() -> str:
    return "" if importlib.util.find_spec("triton") else "Triton is not installed"


TRITON = Family("triton", _draw, _measure, _bytes, missing=_missing)
