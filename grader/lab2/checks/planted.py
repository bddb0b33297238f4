"""What Lab 2's checks of numerical tools plant: gradients that vanished or overflowed, and networks of named layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.run.input_generator import InputGenerator

_PLANTED = {
    "vanished": ("none", "few", "many"),
    "dead": ("none", "some", "all"),
    "planted": (None, float("inf"), float("-inf"), float("nan")),
    "dtype": ("float32", "float16", "bfloat16"),
    "share": (False, True),
}


def planted_gradients(generator: InputGenerator) -> tuple[list[dict[str, Any]], list[str], dict[str, Any]]:
    """Cases for `classify_gradients`, what to answer, and their tensors by name."""
    tensors: dict[str, Any] = {}
    cases: list[dict[str, Any]] = []
    answers: list[str] = []

    def add(
        answer: str,
        *,
        vanished: float,
        dead: float,
        planted: float | None = None,
        whole_bias: bool = False,
        shrunk: float = 1.0,
        exactly: float | None = None,
        dtype: str = "float32",
        **options: float,
    ) -> None:
        """A case of two parameters: of the live gradients `vanished` are 0, and `dead` of all are 0 in both.

        `exactly`: this share of both together, to the last one. `whole_bias`: all of the small one are. `shrunk`: what
        is not 0 is smaller than in the reference.
        """
        case: dict[str, Any] = {"gradients": {}, "reference": {}, "dtype": dtype, **options}
        # 16 bits hold these without a rounding to 0.
        size_of, least = (1e-6, 1e-9) if dtype == "float32" else (1e-2, 1e-4)
        sizes = {"weight": 40 * generator.integer(45, 55), "bias": 4 * generator.integer(3, 10)}
        for name, size in sizes.items():
            reference = generator.normal(size) * np.float32(size_of)
            reference[np.abs(reference) < least] = np.float32(least)
            reference[: int(dead * size)] = 0
            gradient = reference * np.float32(shrunk)
            live = size - int(dead * size)
            if name == "weight":
                lost = round(vanished * live) if exactly is None else round(exactly * sum(sizes.values()))
                gradient[size - lost :] = 0
            elif whole_bias:
                gradient[:] = 0
            if planted is not None and name == "bias":
                gradient[-1] = planted
            for part, values in (("gradients", gradient), ("reference", reference)):
                key = f"{part[0]}{len(cases)}{name}"
                tensors[key] = values
                case[part][name] = key
        case["reference"] = dict(reversed(case["reference"].items()))
        cases.append(case)
        answers.append(answer)

    kinds: list[tuple[str, dict[str, Any]]] = [
        ("healthy", {"vanished": 0.0, "dead": 0.0}),
        ("healthy", {"vanished": generator.uniform(0.01, 0.03), "dead": generator.uniform(0.4, 0.7)}),
        ("underflow", {"vanished": generator.uniform(0.1, 0.3), "dead": generator.uniform(0.2, 0.5)}),
        ("underflow", {"vanished": 1.0, "dead": 0.1}),
        ("overflow", {"vanished": 0.0, "dead": 0.1, "planted": float("inf")}),
        ("overflow", {"vanished": generator.uniform(0.3, 0.9), "dead": 0.3, "planted": float("nan")}),
        ("overflow", {"vanished": 0.0, "dead": 0.0, "planted": float("-inf")}),
        ("healthy", {"vanished": 0.3, "dead": 0.2, "share": 0.5}),
        ("underflow", {"vanished": generator.uniform(0.02, 0.04), "dead": 0.2, "share": 0.005}),
        ("healthy", {"vanished": 0.0, "dead": 0.2, "whole_bias": True}),
        ("healthy", {"vanished": 0.0, "dead": 0.0, "shrunk": generator.uniform(1e-4, 1e-3)}),
        ("healthy", {"vanished": 0.0, "dead": 1.0}),
        ("healthy", {"vanished": 0.0, "dead": 0.0, "exactly": 0.25, "share": 0.25}),
        ("underflow", {"vanished": generator.uniform(0.1, 0.3), "dead": 0.3, "dtype": "float16"}),
        ("overflow", {"vanished": 0.0, "dead": 0.3, "dtype": "bfloat16", "planted": float("nan")}),
        # More than the share of those that live, and less than it of all.
        ("underflow", {"vanished": generator.uniform(0.08, 0.12), "dead": generator.uniform(0.7, 0.8)}),
        # The ends of what a share may be.
        ("underflow", {"vanished": generator.uniform(0.01, 0.03), "dead": 0.2, "share": 0.0}),
        ("healthy", {"vanished": 0.0, "dead": 0.2, "share": 0.0}),
        ("healthy", {"vanished": 1.0, "dead": 0.2, "whole_bias": True, "share": 1.0}),
    ]
    for row in generator.cases(_PLANTED, 3):
        vanished = {"none": 0.0, "few": generator.uniform(0.01, 0.03), "many": generator.uniform(0.3, 0.9)}[
            row["vanished"]
        ]
        how = {
            "vanished": vanished,
            "dead": {"none": 0.0, "some": generator.uniform(0.2, 0.7), "all": 1.0}[row["dead"]],
            "planted": row["planted"],
            "dtype": row["dtype"],
        } | ({"share": 0.1} if row["share"] else {})
        lost = row["vanished"] == "many" and row["dead"] != "all"
        kinds.append(("overflow" if row["planted"] is not None else "underflow" if lost else "healthy", how))
    for answer, how in generator.shuffled(kinds):
        add(answer, **how)
    return cases, answers, tensors


def named_blocks(generator: InputGenerator) -> dict[str, list[str]]:
    """Names of blocks and of the layers in each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        f"block_{letters[generator.integer(0, 25)]}{index}": [
            f"layer_{letters[generator.integer(0, 25)]}{place}" for place in range(generator.integer(2, 3))
        ]
        for index in range(3)
    }


def layers(blocks: dict[str, list[str]]) -> list[str]:
    """Full names of the layers, in the order in which they run."""
    return [f"{block}.{layer}" for block, layers in blocks.items() for layer in layers]


def to_bfloat16(x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rounded to the 8 significant bits of bfloat16, to even as hardware does."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
