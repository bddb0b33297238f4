"""Judges what `conclude` says of results, against the rule in its docstring."""

from __future__ import annotations

from collections.abc import Mapping

from gradebox.run.assertions import CheckFailed, require_between, require_equal, seconds, shown
from grader.lab2.comparison import reference
from grader.lab2.comparison.cases.conclusions import Case, Conclusions, Recommendation


def require_conclusions(case: Case, expected: Recommendation, answer: Conclusions) -> None:
    """Fail unless `answer` is what follows from the case."""
    results = ", ".join(
        f"{result.dtype} {seconds(result.step_seconds)} at {result.accuracy:.3f}"
        for result in sorted(case.results, key=lambda result: result.dtype)
    )
    option = "" if case.accuracy_loss is None else f", accuracy_loss={case.accuracy_loss:g}"
    what = f"conclude() for {results}{option}"
    for field, expected_values in reference.figures(case).items():
        values = _by_precision(dict(answer)[field], f"{what}: {field}")
        require_equal(sorted(values), sorted(expected_values), what=f"{what}: precisions in {field}")
        for name, value in expected_values.items():
            require_between(
                values[name],
                value - 1e-9 * max(1, abs(value)),
                value + 1e-9 * max(1, abs(value)),
                what=f"{what}: {field}[{name!r}]",
                show=lambda number: f"{number:.6g}",
                expected=f"{value:.6g}",
                hint="each one against float32, as the docstring says",
            )
    require_equal(answer["fastest"], expected.fastest, what=f"{what}: fastest")
    require_equal(
        answer["recommended"],
        expected.recommended,
        what=f"{what}: recommended",
        hint="first who may lose so much accuracy, then who is at most 5 % slower than the fastest of them, then the "
        "docstring's order; what other GPUs do is no argument",
    )
    needs_scaling = expected.recommended == "float16"
    require_equal(answer["needs_loss_scaling"], needs_scaling, what=f"{what}: needs_loss_scaling")


def _by_precision(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise CheckFailed(f"{what}: saw {shown(value, 80)}, expected a dict")
    return value
