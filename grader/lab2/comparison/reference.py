"""What follows from results of several precisions, by the rule in the docstring of `conclude`."""

from __future__ import annotations

import math

from grader.lab2.comparison.cases.conclusions import Case, Recommendation, Result

_PREFERRED = ("bfloat16", "float16", "float32")
_MAY_BE_LOST = 0.01
_MAY_BE_SLOWER = 1.05


def recommendation(case: Case, mistake: str = "") -> Recommendation:
    """The precision to train in, and the fastest one.

    With a mistake "accuracy_ignored", "seconds_ignored", "no_loss_is_the_default" or "fastest_only".
    """
    results = {result.dtype: result for result in case.results}
    may_be_lost = _MAY_BE_LOST if case.accuracy_loss is None else case.accuracy_loss
    if mistake == "no_loss_is_the_default" and case.accuracy_loss == 0:
        may_be_lost = _MAY_BE_LOST
    if mistake == "accuracy_ignored":
        may_be_lost = math.inf
    base = results["float32"].accuracy
    eligible = {name: result for name, result in results.items() if result.accuracy - base >= -may_be_lost}
    slower = {"seconds_ignored": math.inf, "fastest_only": 1.0}.get(mistake, _MAY_BE_SLOWER)
    limit = slower * min(result.step_seconds for result in eligible.values())
    recommended = next(name for name in _PREFERRED if name in eligible and eligible[name].step_seconds <= limit)
    return Recommendation(recommended, min(results, key=lambda name: results[name].step_seconds))


def figures(case: Case) -> dict[str, dict[str, float]]:
    """Each precision against float32, by field of `PrecisionConclusions`; no ratio of memory if a peak is unknown."""
    results = {result.dtype: result for result in case.results}
    base = results["float32"]
    return {
        "speedups": {name: base.step_seconds / result.step_seconds for name, result in results.items()},
        "memory_ratios": _memory_ratios(base, results),
        "accuracy_differences": {name: result.accuracy - base.accuracy for name, result in results.items()},
    }


def _memory_ratios(base: Result, results: dict[str, Result]) -> dict[str, float]:
    peaks = {name: result.peak_bytes for name, result in results.items()}
    known = {name: peak for name, peak in peaks.items() if peak is not None}
    if base.peak_bytes is None or len(known) < len(peaks):
        return {}
    return {name: peak / base.peak_bytes for name, peak in known.items()}
