"""Files that follow from others are as they follow from them; one command writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grimp", reason="import-linter, of the extra dev, is not installed")
from grader import generated


@pytest.mark.parametrize("part", generated.PARTS, ids=lambda part: part.name)
def test_nothing_is_stale(part: generated.Part) -> None:
    assert part.stale() == [], f"run {generated.COMMAND}"


def test_what_is_stale_is_named_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    (tmp_path / "right.txt").write_text("a")
    (tmp_path / "old.txt").write_text("b")
    texts = {tmp_path / "right.txt": "a", tmp_path / "old.txt": "c", tmp_path / "missing.txt": "d"}
    part = generated._texts("texts", lambda: texts)
    assert part.stale() == ["old.txt", "missing.txt"]
    part.write()
    assert part.stale() == []
    assert {path: path.read_text() for path in tmp_path.iterdir()} == texts
