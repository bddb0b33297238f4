"""A grade.json that is damaged, or none, is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook.cli.exporting import export_app
from gradebook.export import grade_file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no whole JSON file, so it is damaged or was cut off: grade again"),
        (b'{"schema_version": "3.0", "labs": [{"id"', "is no whole JSON file"),
        (b"\xff\xfe\x00", "is no whole JSON file"),
        (b"[" * 100_000, "is no whole JSON file"),
        (b"{}", "no grade.json that can be read: its schema_version is none"),
        (b"[]", "no grade.json that can be read: its schema_version is none"),
        (b"7", "no grade.json that can be read: its schema_version is none"),
    ],
)
def test_what_is_no_grade_is_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "grade.json"
    path.write_bytes(content)
    with pytest.raises(grade_file.GradeFileError, match=words) as refusal:
        grade_file.load(path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


def test_what_a_failed_grading_said_has_to_be_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(export_app, ["gradescope-results", "--failed", str(tmp_path / "said.txt")])
    assert done.exit_code == 2
    assert "said.txt cannot be read: No such file or directory" in done.output
