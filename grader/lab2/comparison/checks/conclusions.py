"""Judges what `conclude` says of results, against the rule in its docstring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, CheckFailed, require_between, require_equal, seconds, shown
from grader.lab2.comparison import reference
from grader.lab2.comparison.cases.conclusions import Case, Conclusions, Recommendation

_ROUNDING = 1e-9
_FOLLOW = "lab2.comparison.conclusions_follow"
_RECOMMENDED: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "accuracy_ignored",
            "Leave out precisions that lose more than `accuracy_loss` before you look at seconds.",
            _FOLLOW,
            mistake="The fastest precision is recommended, however much accuracy it loses",
        ),
        Cause(
            "seconds_ignored",
            "Of the precisions that are accurate enough, recommend one that is at most 5 % slower than the fastest.",
            _FOLLOW,
            mistake="A precision is recommended for its name, bfloat16 first, whatever the seconds say",
        ),
        Cause(
            "no_loss_is_the_default",
            "Take an `accuracy_loss` of 0 as it is: nothing may be lost.",
            _FOLLOW,
            mistake="An accuracy_loss of 0 is taken for one that was not given",
        ),
        Cause(
            "fastest_only",
            "Prefer bfloat16, then float16, among precisions that are at most 5 % slower than the fastest.",
            _FOLLOW,
            mistake="The fastest precision is recommended, though another one is nearly as fast and comes first",
        ),
    )
}


SPEEDUPS_INVERTED = Cause(
    "speedups_inverted",
    "Divide float32's step_seconds by the other's. A speedup above 1 is faster.",
    _FOLLOW,
    mistake="Speedups are upside down: the time of each precision by float32's, instead of the reverse",
)


def cause_of_speedups(cases: Sequence[tuple[Case, Recommendation]], answers: Sequence[Conclusions]) -> Cause | None:
    """Whether all speedups are turned over, and some are not 1."""
    right = [reference.figures(case)["speedups"] for case, _ in cases]
    for expected, answer in zip(right, answers, strict=True):
        speedups = answer["speedups"]
        if not isinstance(speedups, dict) or sorted(speedups) != sorted(expected):
            return None
        for name, value in expected.items():
            if not isinstance(speedups[name], float) or abs(speedups[name] * value - 1) > _ROUNDING:
                return None
    is_told = any(abs(value - 1) > _ROUNDING for expected in right for value in expected.values())
    return SPEEDUPS_INVERTED if is_told else None


def cause_of_recommendations(cases: Sequence[tuple[Case, Recommendation]], answers: Sequence[Conclusions]) -> str:
    """The mistake that leads to all recommendations, or what to do if none is known."""

    def is_seen(mistake: str) -> bool:
        return all(
            answer["recommended"] == reference.recommendation(case, mistake).recommended
            for (case, _), answer in zip(cases, answers, strict=True)
        )

    return next((cause for mistake, cause in _RECOMMENDED.items() if is_seen(mistake)), _RULE)


_RULE = (
    "Leave out precisions that lose too much accuracy. Of the others, those count that are at most 5 % slower than the "
    "fastest, and the first in the docstring's order is recommended."
)


def require_conclusions(case: Case, expected: Recommendation, answer: Conclusions, hint: str) -> None:
    """Fail unless `answer` is what follows from the case; `hint` is about what is recommended."""
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
                hint="Compare each one with float32, as the docstring says.",
            )
    require_equal(answer["fastest"], expected.fastest, what=f"{what}: fastest")
    require_equal(
        answer["recommended"],
        expected.recommended,
        what=f"{what}: recommended",
        hint=hint,
    )
    needs_scaling = expected.recommended == "float16"
    require_equal(answer["needs_loss_scaling"], needs_scaling, what=f"{what}: needs_loss_scaling")


def _by_precision(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise CheckFailed(f"{what}: saw {shown(value, 80)}, expected a dict")
    return value
