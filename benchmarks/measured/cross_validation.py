"""How good the times of single kernels are where nothing was fitted to them: halves, shapes and groups left out.

`python -m benchmarks.measured.cross_validation` fits the constants again without some kernels, predicts these, compares
with two baselines that know no physics, and counts how often the faster of two variants is the faster one here. It
takes some minutes and writes `benchmarks/results/h100_kernels.json`, the tables of the pages, and the picture. What it
cannot leave out is the form of the cost model, which was chosen with all kernels in sight.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from benchmarks import leave_out
from benchmarks.measure import RESULTS, save
from benchmarks.measured import fitting, kernel_pages
from benchmarks.measured.baselines import BASELINES, Baseline, features
from benchmarks.measured.captured import Kernel, capture

Array = NDArray[numpy.float64]
_DIFFERENT = 1.15
_FACTOR = math.log(2)
# Of a name or group: what tells variants of one operation apart.
_VARIANT = re.compile(
    r",? ?\b(float32|float16|fp32|tf32|fp16|bf16|FP32|TF32|AMP|NHWC|channels_last|flash|cudnn|eager)\b"
)


def main() -> Path:
    """Fit, leave out, compare, write."""
    spec, kernels = capture()
    fit = fitting.of_card(spec, kernels)
    everything = range(len(kernels))
    errors = {
        "as it is": fit.errors(fit.values, everything),
        "nothing fitted": fit.errors(fit.priors, everything),
    }
    splits = {
        "half left out": list(leave_out.halves([[index] for index in everything])),
        "shape left out": leave_out.folds(leave_out.by(map(_shape, kernels))),
        "group left out": leave_out.by(kernel.group for kernel in kernels),
    }
    for name, parts in splits.items():
        errors[name] = leave_out.errors(
            parts, len(kernels), lambda known, asked: fit.errors(fit.fitted_to(known), asked)
        )
        print(name, _summary(errors[name]), flush=True)
    table, logarithms = features(kernels), numpy.log([kernel.measured for kernel in kernels])
    for title, baseline in BASELINES.items():
        for name, parts in splits.items():
            errors[f"{title}, {name}"] = leave_out.errors(
                parts,
                len(kernels),
                _predictor(baseline, table, logarithms),
            )
    result = {
        "kernels": len(kernels),
        "errors": {name: _summary(values) for name, values in errors.items()},
        "groups": {
            group: {
                "values": len(places),
                **{name: leave_out.median(values[places]) for name, values in errors.items()},
            }
            for group, places in _groups(kernels).items()
        },
        "order": {name: _order(kernels, values) for name, values in errors.items()}
        | {"programs": _order_of_programs()},
        "rows": [
            {
                "group": kernel.group,
                "name": kernel.name,
                "as_it_is": round(float(now), 4),
                "half_left_out": round(float(error), 4),
            }
            for kernel, now, error in zip(kernels, errors["as it is"], errors["half left out"], strict=True)
        ],
    }
    path = save("h100_kernels", result)
    kernel_pages.write(result)
    return path


def _predictor(baseline: Baseline, table: Array, logarithms: Array) -> Callable[[list[int], list[int]], Array]:
    def errors(known: list[int], asked: list[int]) -> Array:
        return logarithms[asked] - baseline(table[known], logarithms[known], table[asked])

    return errors


def _shape(kernel: Kernel) -> str:
    """The operation's sizes, without type, layout or direction."""
    return _VARIANT.sub("", kernel.name)


def _groups(kernels: Sequence[Kernel]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, kernel in enumerate(kernels):
        groups.setdefault(kernel.group, []).append(index)
    return groups


def _summary(errors: Array) -> dict[str, float]:
    size = numpy.abs(errors)
    return {
        "median_error": leave_out.median(errors),
        "nine_tenths": round(math.expm1(float(numpy.quantile(size, 0.9))), 4),
        "largest_factor": round(math.exp(float(size.max())), 3),
        "beyond_a_factor_of_two": int((size > _FACTOR).sum()),
    }


def _order(kernels: Sequence[Kernel], errors: Array) -> dict[str, float]:
    """Of variants of one operation that differ by 15 % on the card: how many are in the same order here."""
    named = [
        (_VARIANT.sub("", f"{kernel.group}: {kernel.name}"), kernel.measured, kernel.measured / math.exp(error))
        for kernel, error in zip(kernels, errors, strict=True)
    ]
    return _ordered(named)


def _order_of_programs() -> dict[str, float]:
    """The same of training steps, and of attention by different kernels, as the committed comparison has them."""
    rows = json.loads((RESULTS / "h100_compared.json").read_text(encoding="utf-8"))["rows"]
    chosen = [row for row in rows if row["group"] == "training step, seconds" or ": attention" in row["group"]]
    named = []
    for row in chosen:
        slower = row["unit"] == "seconds"
        values = [row[key] if slower else 1 / row[key] for key in ("measured", "simulated")]
        name = row["name"].partition(": ")[2] if "attention" in row["group"] else row["name"]
        named.append((_VARIANT.sub("", name), values[0], values[1]))
    return _ordered(named)


def _ordered(named: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    families: dict[str, list[tuple[float, float]]] = {}
    for name, measured, simulated in named:
        families.setdefault(name, []).append((measured, simulated))
    pairs = right = 0
    for members in families.values():
        for (one, here), (other, there) in itertools.combinations(members, 2):
            if max(one / other, other / one) >= _DIFFERENT:
                pairs += 1
                right += (one > other) == (here > there)
    return {"pairs": pairs, "right": right, "share": round(right / pairs, 4) if pairs else 1.0}


def read() -> Mapping[str, Any]:
    """The committed result."""
    return dict(json.loads((RESULTS / "h100_kernels.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
