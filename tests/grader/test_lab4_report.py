"""What Lab 4's report is compared with, where the program has left lengths out."""

from __future__ import annotations

from typing import Any

import pytest

from gradebox.run.assertions import CheckFailed
from grader.lab4.analysis.checks.report import _judge_attention

Rows = list[dict[str, Any]]
CLAIMS: dict[str, Any] = {
    "attention_backend": "sdpa",
    "memory_ratio_4096": 8.0,
    "speedup_4096": 4.0,
    "longest_standard": 4096,
    "longest_flash": 8192,
}


def row(
    method: str, length: int, seconds: float | None, peak: int | None, left_out: str | None = None
) -> dict[str, Any]:
    backend = "sdpa" if method == "flash" else "torch"
    entry = {"method": method, "backend": backend, "length": length, "seconds": seconds, "peak_bytes": peak}
    return {**entry, "left_out": left_out}


def rows() -> Rows:
    measured = [row("standard", 4096, 4.0, 800), row("flash", 4096, 1.0, 100), row("tiled", 4096, 9.0, 200)]
    return [*measured, row("standard", 8192, None, None), row("flash", 8192, 4.0, 200)]


def test_a_length_that_was_left_out_is_none_that_was_measured() -> None:
    left_out = [row(method, 16384, None, None, "it would take 300 s") for method in ("standard", "flash", "tiled")]
    _judge_attention(CLAIMS, [*rows(), *left_out])
    with pytest.raises(CheckFailed, match="longest_flash"):
        _judge_attention({**CLAIMS, "longest_flash": 16384}, [*rows(), *left_out])


def test_results_from_before_lengths_could_be_left_out_are_judged_as_ever() -> None:
    old = [{name: value for name, value in each.items() if name != "left_out"} for each in rows()]
    _judge_attention(CLAIMS, old)
    with pytest.raises(CheckFailed, match="speedup_4096"):
        _judge_attention({**CLAIMS, "speedup_4096": 2.0}, old)


def test_what_the_report_is_about_cannot_be_left_out() -> None:
    results = [row("standard", 2048, 1.0, 200), row("standard", 4096, None, None, "it would take 300 s"), *rows()[1:]]
    with pytest.raises(CheckFailed, match="4096 tokens was left out"):
        _judge_attention({**CLAIMS, "longest_standard": 2048, "speedup_4096": 0.0}, results)


def test_a_ratio_of_what_is_not_there_for_no_reason_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        _judge_attention(CLAIMS, rows()[1:])
