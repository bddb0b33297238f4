"""Inputs of Lab 2's stable softmax, and what its probe returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import NOT_GIVEN
from grader.shared.dimensions import Case, Dimension, Space


@dataclass(frozen=True, kw_only=True)
class SoftmaxCase:
    """One call of `stable_softmax`."""

    name: str
    """Of the tensor."""
    dtype: str
    dim: int | None = None
    """None: not given."""
    transposed: bool = False
    """The first and the last dimension are exchanged, so that the tensor is not in memory in one piece."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxResult:
    """What one call returned, and the bytes that it copied to the host (None of a real device, which tells nobody)."""

    dtype: str
    values: Array
    """In float64, into which every dtype here fits."""
    unchanged: bool
    """Whether the argument is what it was."""
    copied_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class SoftmaxReply:
    """What each call returned, and the operations of PyTorch's own softmax and attention that ran."""

    results: list[SoftmaxResult]
    softmaxes: list[str]
    attentions: list[str]


@dataclass(frozen=True, kw_only=True)
class Softmax(ProbeInputs[SoftmaxReply], probe="lab2.stability.tools.softmax"):
    """Calls of `stable_softmax`."""

    cases: list[SoftmaxCase]
    tensors: dict[str, Array]


def _shapes(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        rank = request.tensors[f"tensors/{case['name']}"].ndim
        yield {**case, "rank": rank, "place": None if case["dim"] is None else case["dim"] % rank}


def _along(case: Case) -> str | None:
    if case["rank"] == 1:
        return None
    if case["place"] is None:
        return NOT_GIVEN
    return {0: "first", case["rank"] - 1: "last"}.get(case["place"], "middle")


_NUMBERS = ("ordinary", "large", "huge", "far", "masked")
SOFTMAX = Space(
    probes=(Softmax.probe,),
    cases=_shapes,
    dimensions=(
        Dimension(
            "numbers",
            _NUMBERS,
            lambda case: name if (name := case["name"].removeprefix("flat_")) in _NUMBERS else None,
        ),
        Dimension("dtype", ("float16", "bfloat16", "float32", "float64"), lambda case: str(case["dtype"])),
        Dimension("dim", (NOT_GIVEN, "first", "middle", "last"), _along),
        Dimension("rank", ("1", "3"), lambda case: str(case["rank"]) if case["rank"] != 2 else None),
        Dimension(
            "memory",
            ("in one piece", "transposed"),
            lambda case: "transposed" if case["transposed"] else "in one piece",
        ),
    ),
    apart={
        ("numbers=huge", "dtype=float16"): "float16 does not hold them",
        ("rank=1", "dim=*"): "there is one dimension only",
        ("rank=1", "memory=transposed"): "there is nothing to transpose",
    },
)


def _softmax_allowed(row: Mapping[str, str]) -> bool:
    """Float16 cannot hold what is huge, and one dimension has no middle and cannot be transposed."""
    is_held = row["numbers"] != "huge" or row["dtype"] != "float16"
    return is_held and (row["rank"] == "3" or (row["dim"] != "middle" and row["memory"] == "in one piece"))


def softmax(generator: InputGenerator) -> Softmax:
    """Numbers from ordinary to extreme, in each dtype along each dim."""
    ordinary = generator.normal(generator.odd(3, 7), generator.odd(5, 9), generator.odd(3, 5))
    masked = ordinary * np.float32(2)
    masked[np.indices(masked.shape).sum(axis=0) % 3 == 0] = -np.inf  # one number at least is finite, along any dim
    tensors: dict[str, NDArray[np.float32]] = {
        "ordinary": ordinary,
        "large": ordinary + np.float32(generator.uniform(2e3, 9e3)),
        "huge": ordinary * np.float32(1e37),
        "far": np.sign(ordinary) * np.float32(6e4),
        "masked": masked,
        "long": np.zeros((1, generator.odd(70_001, 80_001)), dtype=np.float32),
        "flat": generator.normal(generator.odd(21, 31)) * np.float32(2),
    }
    tensors |= {f"flat_{name}": tensors[name][1, :, 1] for name in _NUMBERS}
    cases = [
        SoftmaxCase(name="ordinary", dtype="float64", dim=1),
        SoftmaxCase(name="ordinary", dtype="float16", dim=-2),
        SoftmaxCase(name="ordinary", dtype="bfloat16", dim=0, transposed=True),
        SoftmaxCase(name="flat", dtype="float16"),
        SoftmaxCase(name="ordinary", dtype="float32"),
        SoftmaxCase(name="large", dtype="float32", dim=0),
        SoftmaxCase(name="huge", dtype="float32", dim=-1),
        SoftmaxCase(name="far", dtype="float16", dim=-1),
        SoftmaxCase(name="masked", dtype="float32", dim=1),
        SoftmaxCase(name="masked", dtype="bfloat16", dim=1),
        SoftmaxCase(name="long", dtype="float16", dim=-1),
        *(_softmax_case(generator, row) for row in generator.cases(SOFTMAX.values(), 5, _softmax_allowed)),
    ]
    return Softmax(cases=cases, tensors=dict(tensors))


def _softmax_case(generator: InputGenerator, row: Mapping[str, str]) -> SoftmaxCase:
    rank = int(row["rank"])
    dims = {"first": (0, -rank), "middle": (1, -2), "last": (rank - 1, -1)}
    return SoftmaxCase(
        name=f"flat_{row['numbers']}" if rank == 1 else row["numbers"],
        dtype=row["dtype"],
        dim=generator.shuffled(dims[row["dim"]])[0] if row["dim"] != NOT_GIVEN else None,
        transposed=row["memory"] == "transposed",
    )


# --- find_nonfinite ---------------------------------------------------------------------------------------------------


SPACES = (SOFTMAX,)
