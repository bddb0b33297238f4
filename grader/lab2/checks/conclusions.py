"""Cases for `conclude`, what follows from each, and whether that was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.run.assertions import require_between, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from grader.shared.cases import every_value

PRECISIONS = ("float32", "float16", "bfloat16")

Case = dict[str, Any]
Profile = tuple[str, str, dict[str, float], dict[str, float], dict[str, float]]


def profiles(generator: InputGenerator) -> list[Profile]:
    """Made-up cases: recommended, fastest, seconds and lost accuracy against float32, and options of `conclude`."""

    def profile(
        recommended: str,
        fastest: str,
        half: float,
        brain: float,
        *,
        lost_half: float = 0.001,
        lost_brain: float = 0.001,
        **options: float,
    ) -> Profile:
        times = {"float32": 1.0, "float16": half, "bfloat16": brain}
        losses = {"float32": 0.0, "float16": lost_half, "bfloat16": lost_brain}
        return recommended, fastest, times, losses, options

    quick = generator.uniform(0.15, 0.5)
    return [
        # A GPU with fast float16 only: bfloat16 brings nothing.
        profile("float16", "float16", quick, generator.uniform(0.95, 1.1)),
        # Equally fast to within 5 %: the one without a scaler.
        profile("bfloat16", "float16", quick, quick * generator.uniform(1.01, 1.04)),
        profile("bfloat16", "bfloat16", quick * generator.uniform(1.01, 1.04), quick),
        profile("bfloat16", "bfloat16", quick * generator.uniform(1.1, 1.5), quick),
        profile("float16", "float16", quick, quick * generator.uniform(1.07, 1.3)),
        # A launch-bound model: casts cost more than they save.
        profile("float32", "float32", generator.uniform(1.1, 1.6), generator.uniform(1.1, 1.6)),
        # The fastest one loses too much.
        profile("float16", "bfloat16", quick * 1.5, quick, lost_brain=generator.uniform(0.012, 0.1)),
        profile("bfloat16", "float16", quick, quick * 1.5, lost_half=generator.uniform(0.02, 0.5)),
        profile("float32", "bfloat16", quick * 1.2, quick, lost_half=0.3, lost_brain=0.02),
        # Better than float32 is no loss; and a stricter limit.
        profile("bfloat16", "bfloat16", quick * 1.3, quick, lost_brain=-0.02),
        profile("float16", "bfloat16", quick * 1.3, quick, lost_brain=0.006, lost_half=0.002, loss=0.004),
        # Nothing may be lost, and something is that might by default.
        profile("float16", "bfloat16", quick * 1.3, quick, lost_brain=0.006, lost_half=-0.001, loss=0.0),
    ]


def edges(generator: InputGenerator) -> list[tuple[Case, tuple[str, str]]]:
    """Cases with what is recommended and fastest: ties, limits that are just reached, and fewer rows."""
    took, peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
    tie = generator.shuffled(["float16", "bfloat16", "float32"])
    rows = {name: [name, took, peak, 0.75] for name in PRECISIONS}
    return [
        # Equally fast: the first of the results, and the first by preference.
        ({"rows": [rows[name] for name in tie]}, ("bfloat16", tie[0])),
        # As much is lost as may be lost; and these numbers have no rounding.
        (
            {"rows": [["bfloat16", took / 2, peak, 0.5], rows["float32"]], "loss": 0.25},
            ("bfloat16", "bfloat16"),
        ),
        # One peak is not known.
        (
            {"rows": [["float16", took / 2, None, 0.75], rows["float32"], ["bfloat16", took * 2, peak, 0.75]]},
            ("float16", "float16"),
        ),
        ({"rows": [rows["float32"]]}, ("float32", "float32")),
    ]


_CROSSED: dict[str, tuple[Any, ...]] = {
    "rows": ("float32", "float16, float32", "bfloat16, float32", "all"),
    "float32": ("first", "last"),
    "fastest": PRECISIONS,
    "others": ("within 5 %", "slower"),
    "lossy": ("none", "float16", "bfloat16", "both"),
    "loss": (None, 0.0, 0.05),
    "peaks": ("known", "none", "float32's unknown", "another unknown"),
}


def _allowed(row: Mapping[str, Any]) -> bool:
    there = PRECISIONS if row["rows"] == "all" else row["rows"].split(", ")
    lossy = {"none": [], "both": ["float16", "bfloat16"]}.get(row["lossy"], [row["lossy"]])
    alone = row["rows"] == "float32" and (row["others"], row["float32"]) != ("slower", "first")
    unknown = row["peaks"] in ("float32's unknown", "another unknown") and row["rows"] == "float32"
    return row["fastest"] in there and {*lossy} <= {*there} and not alone and not unknown


def crossed(generator: InputGenerator) -> list[Case]:
    """Cases in which whatever results may be meets everything else; no two steps are near the limit of 5 %."""
    return [_case(generator, row) for row in every_value(generator, _CROSSED, 4, _allowed)]


def _case(generator: InputGenerator, row: Mapping[str, Any]) -> Case:
    names = list(PRECISIONS) if row["rows"] == "all" else row["rows"].split(", ")
    took, peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
    near = row["others"] == "within 5 %"
    slower = generator.shuffled(
        [
            generator.uniform(1.01, 1.04) if near else generator.uniform(1.1, 1.4),
            1.045 if near else generator.uniform(1.8, 3),
        ]
    )
    times = {name: took * (1.0 if name == row["fastest"] else slower.pop()) for name in names}
    may = 0.01 if row["loss"] is None else row["loss"]
    rows = []
    for name in generator.shuffled([name for name in names if name != "float32"]):
        lost = (
            may + generator.log_uniform(0.002, 0.1) if row["lossy"] in (name, "both") else -generator.uniform(0.0, 0.02)
        )
        rows.append([name, times[name], generator.integer(10**7, 10**10), 0.875 - lost])
    place = 0 if row["float32"] == "first" else len(rows)
    rows.insert(place, ["float32", times["float32"], peak, 0.875])
    unknown = {"none": range(len(rows)), "float32's unknown": [place], "another unknown": [int(place == 0)]}
    for index in unknown.get(row["peaks"], []):
        rows[index][2] = None
    return {"rows": rows} | ({} if row["loss"] is None else {"loss": row["loss"]})


def follows(case: Case) -> tuple[str, str]:
    """What the docstring's rule recommends, and the fastest."""
    times = {name: took for name, took, _, _ in case["rows"]}
    right = {name: share for name, _, _, share in case["rows"]}
    eligible = [name for name in times if right[name] - right["float32"] >= -case.get("loss", 0.01)]
    limit = 1.05 * min(times[name] for name in eligible)
    preferred = ("bfloat16", "float16", "float32")
    return next(name for name in preferred if name in eligible and times[name] <= limit), min(
        times, key=times.__getitem__
    )


def require_conclusions(case: Case, recommended: str, fastest: str, told: dict[str, Any]) -> None:
    """Fail unless `told` is what follows from the case."""
    rows = {name: (took, peak, right) for name, took, peak, right in case["rows"]}
    shown = ", ".join(f"{name} {seconds(took)} at {right:.3f}" for name, (took, _, right) in sorted(rows.items()))
    option = f", accuracy_loss={case['loss']:g}" if "loss" in case else ""
    what = f"conclude() for {shown}{option}"
    base_took, base_peak, base_right = rows["float32"]
    known = all(peak is not None for _, peak, _ in rows.values())
    wanted: dict[str, dict[str, float]] = {
        "speedups": {name: base_took / took for name, (took, _, _) in rows.items()},
        "memory_ratios": {name: peak / base_peak for name, (_, peak, _) in rows.items()} if known else {},
        "accuracy_differences": {name: right - base_right for name, (_, _, right) in rows.items()},
    }
    for field, values in wanted.items():
        require_equal(sorted(told[field]), sorted(values), what=f"{what}: precisions in {field}")
        for name, value in values.items():
            require_between(
                told[field][name],
                value - 1e-9 * max(1, abs(value)),
                value + 1e-9 * max(1, abs(value)),
                what=f"{what}: {field}[{name!r}]",
                show=lambda number: f"{number:.6g}",
                expected=f"{value:.6g}",
                hint="each one against float32, as the docstring says",
            )
    require_equal(told["fastest"], fastest, what=f"{what}: fastest")
    require_equal(
        told["recommended"],
        recommended,
        what=f"{what}: recommended",
        hint="first who may lose so much accuracy, then who is at most 5 % slower than the fastest of them, then the "
        "docstring's order; what other GPUs do is no argument",
    )
    require_equal(told["needs_loss_scaling"], recommended == "float16", what=f"{what}: needs_loss_scaling")
