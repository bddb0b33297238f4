"""Inputs of `classify_gradients`: gradients of which some vanished or overflowed, and what they are without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import OR_NOT
from grader.shared.dimensions import Case, Dimension, Space

_PARAMETERS = ("weight", "bias")


@dataclass(frozen=True, kw_only=True)
class ClassifyCase:
    """One call of `classify_gradients`, with gradients and references by parameter."""

    gradients: dict[str, Array]
    reference: dict[str, Array]
    dtype: str
    """Of the gradients."""
    share: float | None = None
    """An argument; None: not given."""


@dataclass(frozen=True)
class ClassifyReply:
    """What each call returned."""

    answers: list[object]


@dataclass(frozen=True)
class Classify(ProbeInputs[ClassifyReply], probe="lab2.stability.tools.classify"):
    """Calls of `classify_gradients`."""

    cases: list[ClassifyCase]


def _gradients(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        gradients, reference = (
            np.concatenate([request.tensors[case[part][name]] for name in _PARAMETERS])
            for part in ("gradients", "reference")
        )
        yield {**case, "gradients": gradients, "reference": reference}


def _vanished(case: Case) -> str | None:
    live = case["reference"] != 0
    share = (live & (case["gradients"] == 0)).sum() / max(1, live.sum())
    return "none" if share == 0 else "few" if share < 0.05 else "many" if share > 0.1 else None


def _dead(case: Case) -> str:
    dead = int((case["reference"] == 0).sum())
    return "none" if dead == 0 else "all" if dead == len(case["reference"]) else "some"


def _planted(case: Case) -> str:
    bad = case["gradients"][~np.isfinite(case["gradients"])]
    return str(bad[0]) if len(bad) else "nothing"


CLASSIFIED = Space(
    probes=(Classify.probe,),
    cases=_gradients,
    dimensions=(
        Dimension("vanished", ("none", "few", "many"), _vanished),
        Dimension("dead", ("none", "some", "all"), _dead),
        Dimension("planted", ("nothing", "inf", "-inf", "nan"), _planted),
        Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("share", OR_NOT, lambda case: OR_NOT[case["share"] is not None]),
    ),
    apart={
        ("vanished=few", "dead=all"): "what is dead cannot vanish",
        ("vanished=many", "dead=all"): "what is dead cannot vanish",
    },
)


@dataclass(frozen=True)
class _Recipe:
    """How the gradients of a weight and of a small bias are made."""

    expected: str
    """How they are to be classified."""
    vanished: float = 0.0
    """Of the live gradients of the weight this share is 0."""
    dead: float = 0.0
    """Of all gradients this share is 0, with and without the precision in question."""
    planted: float | None = None
    """One gradient of the bias."""
    whole_bias: bool = False
    """All gradients of the bias are 0."""
    shrunk: float = 1.0
    """What is not 0 is smaller than in the reference by this factor."""
    exactly: float | None = None
    """Instead of `vanished`: this share of both parameters together, to the last one."""
    dtype: str = "float32"
    share: float | None = None


def classified(generator: InputGenerator) -> tuple[Classify, list[str]]:
    """Gradients, and how those of each case are to be classified."""
    inf, nan = math.inf, math.nan
    recipes = [
        _Recipe("healthy"),
        _Recipe("healthy", vanished=generator.uniform(0.01, 0.03), dead=generator.uniform(0.4, 0.7)),
        _Recipe("underflow", vanished=generator.uniform(0.1, 0.3), dead=generator.uniform(0.2, 0.5)),
        _Recipe("underflow", vanished=1.0, dead=0.1),
        _Recipe("overflow", dead=0.1, planted=inf),
        _Recipe("overflow", vanished=generator.uniform(0.3, 0.9), dead=0.3, planted=nan),
        _Recipe("overflow", planted=-inf),
        _Recipe("healthy", vanished=0.3, dead=0.2, share=0.5),
        _Recipe("underflow", vanished=generator.uniform(0.02, 0.04), dead=0.2, share=0.005),
        _Recipe("healthy", dead=0.2, whole_bias=True),
        _Recipe("healthy", shrunk=generator.uniform(1e-4, 1e-3)),
        _Recipe("healthy", dead=1.0),
        _Recipe("healthy", exactly=0.25, share=0.25),
        _Recipe("underflow", vanished=generator.uniform(0.1, 0.3), dead=0.3, dtype="float16"),
        _Recipe("overflow", dead=0.3, dtype="bfloat16", planted=nan),
        # More than the share of those that live, and less than it of all.
        _Recipe("underflow", vanished=generator.uniform(0.08, 0.12), dead=generator.uniform(0.7, 0.8)),
        # The ends of what a share may be.
        _Recipe("underflow", vanished=generator.uniform(0.01, 0.03), dead=0.2, share=0.0),
        _Recipe("healthy", dead=0.2, share=0.0),
        _Recipe("healthy", vanished=1.0, dead=0.2, whole_bias=True, share=1.0),
    ]
    for row in generator.cases(CLASSIFIED.values(), 3):
        vanished = {"none": 0.0, "few": generator.uniform(0.01, 0.03), "many": generator.uniform(0.3, 0.9)}[
            row["vanished"]
        ]
        lost = row["vanished"] == "many" and row["dead"] != "all"
        planted = None if row["planted"] == "nothing" else float(row["planted"])
        recipes.append(
            _Recipe(
                "overflow" if planted is not None else "underflow" if lost else "healthy",
                vanished=vanished,
                dead={"none": 0.0, "some": generator.uniform(0.2, 0.7), "all": 1.0}[row["dead"]],
                planted=planted,
                dtype=row["dtype"],
                share=0.1 if row["share"] == "given" else None,
            )
        )
    recipes = generator.shuffled(recipes)
    return Classify([_made(generator, recipe) for recipe in recipes]), [recipe.expected for recipe in recipes]


def _made(generator: InputGenerator, recipe: _Recipe) -> ClassifyCase:
    # 16 bits hold these without a rounding to 0.
    size_of, least = (1e-6, 1e-9) if recipe.dtype == "float32" else (1e-2, 1e-4)
    sizes = {"weight": 40 * generator.integer(45, 55), "bias": 4 * generator.integer(3, 10)}
    gradients: dict[str, NDArray[np.float32]] = {}
    references: dict[str, NDArray[np.float32]] = {}
    for name, size in sizes.items():
        reference = generator.normal(size) * np.float32(size_of)
        reference[np.abs(reference) < least] = np.float32(least)
        reference[: int(recipe.dead * size)] = 0
        gradient = reference * np.float32(recipe.shrunk)
        live = size - int(recipe.dead * size)
        if name == "weight":
            exactly = recipe.exactly
            lost = round(recipe.vanished * live) if exactly is None else round(exactly * sum(sizes.values()))
            gradient[size - lost :] = 0
        elif recipe.whole_bias:
            gradient[:] = 0
        if recipe.planted is not None and name == "bias":
            gradient[-1] = recipe.planted
        gradients[name], references[name] = gradient, reference
    # In another order: their names say which is which.
    reversed_references = dict(reversed(references.items()))
    return ClassifyCase(
        gradients=dict(gradients), reference=reversed_references, dtype=recipe.dtype, share=recipe.share
    )


SPACES = (CLASSIFIED,)
