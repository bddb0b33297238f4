"""A class on a disk that fills up: one line, exit code 2, and the same command goes on where there is room again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gradebook.grading import class_summary
from gradebook.results import GradebookError
from tests.gradebook.conftest import SmallClass
from tests.small_disk import on_a_small_disk

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import gradebook.cli.classroom
from grader.cli import app
from tests.gradebook.fakes import fake_engine

gradebook.cli.classroom._local_engine = lambda: fake_engine
app(sys.argv[1:])
"""


def grade(small: SmallClass, size: str | None) -> subprocess.CompletedProcess[str]:
    command = ["class", str(small.submissions), "--out", str(small.out), "--lab=1", "--device=vgpu", "--seed=7"]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=on_a_small_disk(small.out, size) if size else None,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.night
@pytest.mark.parametrize("size", ["8k", "40k", "72k", "120k", "200k", "300k"])
def test_a_disk_that_is_full_is_one_line_and_exit_code_2(small_class: SmallClass, size: str) -> None:
    for number in range(8):
        small_class.hands_in(f"student{number}", text=f"{number} " + "x" * 20_000)
    small_class.out.mkdir()
    try:
        done = grade(small_class, size)
    except subprocess.SubprocessError:
        pytest.skip("this machine allows no mount namespaces")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("could not grade: ")]
    assert "Traceback" not in done.stdout + done.stderr, line
    assert any(word in line for word in ("No space left", "disk", "full")), line
    assert grade(small_class, None).returncode == 0


def test_a_damaged_gradebook_is_one_line(small_class: SmallClass) -> None:
    """Whatever is read of it, and its exports stay."""
    small_class.hands_in("ada")
    small_class.grade()
    path = small_class.out / "gradebook.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[100:] = bytes(byte ^ 0x5A for byte in data[100:])
    path.write_bytes(data)
    before = (small_class.out / "exports" / "grades.csv").read_bytes()
    for read in (lambda: class_summary.read(small_class.out), small_class.grade):
        with pytest.raises(
            GradebookError, match=r"gradebook\.sqlite (is damaged|cannot be opened): .*restore it"
        ) as error:
            read()
        assert "\n" not in str(error.value)
    assert (small_class.out / "exports" / "grades.csv").read_bytes() == before
