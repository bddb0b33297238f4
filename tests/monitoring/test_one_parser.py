"""Prometheus' text format is read by `prometheus_client.parser` alone: what reads lines by hand rejects valid ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import exposition

ROOT = Path(__file__).parents[2]
FOLDERS = ("grader", "labkit", "cluster", "deploy", "solutions", "notebooks", "benchmarks", "gradebook", "tests")
MARKS = {f"# {word}{space}" for word in ("TYPE", "HELP") for space in ("", " ")}
"""What a line of the format's comments is compared with."""


def _hand_written(source: str) -> Iterator[int]:
    """The lines of a source that compare something with such a mark."""
    nodes = list(ast.walk(ast.parse(source)))
    written = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and node not in written and node.value in MARKS:
            yield node.lineno


def test_nobody_reads_the_format_by_hand() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    # Most files have neither mark, and need not be parsed.
    marked = {path: text for path, text in texts.items() if any(mark in text for mark in MARKS)}
    places = [f"{path}:{line}" for path, text in marked.items() for line in _hand_written(text)]
    assert places == []
    assert len(files) > 500


@pytest.mark.parametrize("source", ['line.startswith("# TYPE")', 'line[:7] == "# HELP "'])
def test_a_hand_written_parser_is_noticed(source: str) -> None:
    assert list(_hand_written(source)) == [1]


def test_samples_may_have_timestamps() -> None:
    text = '# TYPE a_total counter\na_total{b="c d"} 2 1732791234567\n# TYPE e gauge\ne NaN\n'
    assert exposition.names(text) == {"a_total", "e"}
    assert exposition.values(text)["a_total"] == [2.0]
