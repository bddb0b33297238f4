"""Inputs of the numerical tools: formats, and networks whose gradients or outputs are not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import NOT_GIVEN
from grader.shared.dimensions import Case, Dimension, Space

Blocks = dict[str, list[str]]
"""Names of the layers of a network, by block."""

# --- describe_formats -------------------------------------------------------------------------------------------------


class FormatRow(TypedDict):
    """A `NumberFormat` that a submission returned: each field may be anything that JSON can say."""

    dtype: object
    bits: object
    largest: object
    smallest_normal: object
    smallest: object
    epsilon: object


@dataclass(frozen=True)
class FormatsReply:
    """What `describe_formats` returned."""

    formats: list[FormatRow]


@dataclass(frozen=True)
class Formats(ProbeInputs[FormatsReply], probe="lab2.stability.tools.formats"):
    """A call of `describe_formats`, which takes no arguments."""


@dataclass(frozen=True, kw_only=True)
class NonfiniteReply:
    """What `find_nonfinite` returned in each case."""

    answers: list[object]


@dataclass(frozen=True, kw_only=True)
class Nonfinite(ProbeInputs[NonfiniteReply], probe="lab2.stability.tools.nonfinite"):
    """Networks whose gradients are planted."""

    blocks: Blocks
    width: int
    cases: list[dict[str, str]]
    """By parameter, what is planted there: "nan", "inf", "-inf", "large", "none" (no gradient) or "weight" (the
    parameter is infinite, its gradient is not)."""


def _has(kind: str) -> Dimension:
    return Dimension(kind, ("no", "yes"), lambda case: "yes" if kind in case.values() else "no")


_BAD = ("nan", "inf", "-inf")
NONFINITE = Space(
    probes=(Nonfinite.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=tuple(map(_has, (*_BAD, "large", "none", "weight"))),
)


def named_blocks(generator: InputGenerator) -> Blocks:
    """Names of blocks and of the layers in each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        f"block_{letters[generator.integer(0, 25)]}{index}": [
            f"layer_{letters[generator.integer(0, 25)]}{place}" for place in range(generator.integer(2, 3))
        ]
        for index in range(3)
    }


def layers_of(blocks: Blocks) -> list[str]:
    """Full names of the layers, in the order in which they run."""
    return [f"{block}.{layer}" for block, layers in blocks.items() for layer in layers]


def nonfinite(generator: InputGenerator) -> tuple[Nonfinite, list[list[str]]]:
    """Networks with planted gradients, and the parameters to be named in each case."""
    blocks = named_blocks(generator)
    layers = layers_of(blocks)
    cases: list[dict[str, str]] = []
    expected: list[list[str]] = []
    rows = generator.cases(NONFINITE.values(), 2)
    for _ in range(6):
        chosen = generator.shuffled(list(range(len(layers))))
        kinds = dict(zip([*_BAD, "large", "none", "weight"], chosen, strict=False))
        if len(cases) == 2:
            kinds = {generator.shuffled(_BAD)[0]: chosen[0]}
        elif len(cases) == 3:
            kinds = {"large": chosen[0], "none": chosen[1], "weight": chosen[2]}
        elif len(cases) > 3:
            kinds = dict(zip([kind for kind, there in rows.pop().items() if there == "yes"], chosen, strict=False))
        cases.append({f"{layers[index]}.weight": kind for kind, index in kinds.items()})
        bad = sorted(index for kind, index in kinds.items() if kind in _BAD)
        expected.append([f"{layers[index]}.weight" for index in bad])
    return Nonfinite(blocks=blocks, width=generator.odd(5, 9), cases=cases), expected


# --- trace_nonfinite --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TracedCase:
    """One network for `trace_nonfinite`."""

    factors: dict[str, float] | None = None
    """By which layers multiply, if not by 1."""
    owns: dict[str, float | str] | None = None
    """By which blocks multiply what their layers give; the model itself is ""."""
    side: float | None = None
    """By which the inner tuple of a nested output is multiplied."""
    form: str | None = None
    """Of what blocks return: "tensor" (as without it), "pair" or "nested"."""
    dtype: str | None = None
    """An argument; None: not given."""
    training: bool = False

    def __str__(self) -> str:
        """What is special about the network, for a message."""
        returned = {"pair": "(x, x)", "nested": "(x, (x, x))"}.get(self.form or "", "a tensor")
        parts = [f"layer {name!r} multiplies by {factor:g}" for name, factor in (self.factors or {}).items()]
        for name, factor in (self.owns or {}).items():
            block = f"block {name!r}" if name else "the model itself"
            parts.append(f"{block} multiplies what its layers give by {factor}")
        if self.side is not None:
            parts.append(f"the inner tuple is multiplied by {self.side:g}")
        return f"{', '.join(parts) or 'nothing is too large'}; blocks return {returned}"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What became of one network."""

    name: object
    """What `trace_nonfinite` returned."""
    hooks: int
    """That are there afterwards, less those that were there before."""
    changed: list[str]
    """What of the model's state is no longer as it was."""
    other_modes: bool
    """Whether the model ran in other modes than it came in."""


@dataclass(frozen=True, kw_only=True)
class FailingTrace:
    """What became of a network whose last layer raises RuntimeError."""

    raised: bool
    hooks: int
    changed: list[str]


@dataclass(frozen=True, kw_only=True)
class TraceReply:
    """What became of each network, and of two more whose last layer fails."""

    traces: list[Trace]
    failures: list[FailingTrace]


@dataclass(frozen=True, kw_only=True)
class TraceNonfinite(ProbeInputs[TraceReply], probe="lab2.stability.tools.trace"):
    """Networks in which some layers or blocks multiply by a factor."""

    blocks: Blocks
    width: int
    inputs: Array
    cases: list[TracedCase]


def _source(case: Case) -> str | None:
    if case["side"] is not None:
        return "inner tuple"
    if case["owns"] is None:
        return "layers" if max(case["factors"].values()) > 1e3 else "nothing"
    ((where, factor),) = case["owns"].items()
    if where == "":
        return "model"
    return "block" if factor == 1e6 else "nan"


TRACED = Space(
    probes=(TraceNonfinite.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("source", ("layers", "nothing", "block", "model", "nan", "inner tuple"), _source),
        Dimension("form", ("tensor", "pair", "nested"), lambda case: case["form"] or "tensor"),
        Dimension("dtype", (NOT_GIVEN, "float16", "bfloat16", "float32"), lambda case: case["dtype"] or NOT_GIVEN),
        Dimension("modes", ("evaluation", "training"), lambda case: "training" if case["training"] else "evaluation"),
    ),
    apart={
        ("source=inner tuple", "form=tensor"): "there is none",
        ("source=inner tuple", "form=pair"): "there is none",
    },
)


def traced(generator: InputGenerator) -> tuple[TraceNonfinite, list[str | None]]:
    """Networks for `trace_nonfinite`, and the layer to be named in each of them."""
    blocks = named_blocks(generator)
    layers = layers_of(blocks)
    first, second = sorted(generator.shuffled(range(len(layers)))[:2])
    block, first_block = list(blocks)[generator.integer(0, len(blocks) - 1)], next(iter(blocks))
    # Together 10^8: more than float16 can hold from the second layer on, little for the others.
    two = TracedCase(factors={layers[first]: 1e4, layers[second]: 1e4})
    fine = TracedCase(factors={layers[first]: 1e2, layers[second]: 1e2})
    networks: list[tuple[TracedCase, str | None]] = [
        (replace(two, form="tensor", dtype="float16"), layers[second]),
        (replace(fine, form="pair"), None),
        (replace(two, dtype="bfloat16"), None),
        (replace(two, dtype="float32"), None),
        # No layer returns it, but the block around them, or the model around those.
        (TracedCase(owns={block: 1e6}, form=generator.shuffled(["tensor", "pair", "nested"])[0]), block),
        (TracedCase(owns={block: "nan"}, dtype="float32"), block),
        (TracedCase(owns={"": "-inf"}, form="pair", dtype="bfloat16"), ""),
        (TracedCase(side=1e6, form="nested"), first_block),
    ]
    places = generator.shuffled(range(len(networks)))
    networks = [
        (replace(case, training=bool(place % 2)), expected)
        for place, (case, expected) in ((place, networks[index]) for place, index in enumerate(places))
    ]
    sources: dict[str, tuple[TracedCase, str | None]] = {
        "layers": (two, layers[second]),
        "nothing": (fine, None),
        "block": (TracedCase(owns={block: 1e6}), block),
        "model": (TracedCase(owns={"": 1e6}), ""),
        "nan": (TracedCase(owns={block: "nan"}), block),
        "inner tuple": (TracedCase(side=1e6), first_block),
    }
    for row in generator.cases(TRACED.values(), 3, TRACED.allows):
        case, expected = sources[row["source"]]
        is_seen = row["dtype"] in (NOT_GIVEN, "float16") or row["source"] == "nan"  # the others hold 10^8
        dtype = None if row["dtype"] == NOT_GIVEN else row["dtype"]
        case = replace(case, form=row["form"], training=row["modes"] == "training", dtype=dtype)
        networks.append((case, expected if is_seen else None))
    inputs = generator.normal(generator.odd(3, 7), generator.odd(5, 9))
    inputs[0] = 1.0
    cases = [case for case, _ in networks]
    return TraceNonfinite(blocks=blocks, width=inputs.shape[1], inputs=inputs, cases=cases), [
        expected for _, expected in networks
    ]


SPACES = (NONFINITE, TRACED)
