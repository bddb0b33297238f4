"""Comments on lines of code stay with the line's text when a student hands in again, and reach the student."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from gradebook.export import everything
from gradebook.grading.manual_grading import ManualGradingError, code_files, line_comments
from gradebook.grading.manual_grading.line_comments import LineComment
from gradebook.grading.manual_grading.marks import ChangedMeanwhileError
from tests.gradebook.manual_grading.conftest import AT, ManualClass

CODE = ["def f(x):", "    total = 0", "    for v in x:", "        total += v", "    return total", ""]
FILE = "lab1_gpu_basics/benchmark.py"


def about(line: int, lines: list[str] = CODE, file: str = FILE) -> LineComment:
    return LineComment(
        id="l1", file=file, line=line, code=lines[line - 1], before=tuple(lines[max(0, line - 9) : line - 1]),
        after=tuple(lines[line : line + 8]), text="why?", by="Ana", at=AT,
    )  # fmt: skip


TWICE = ["a = 1", "x = 0", "b = 2", "c = 3", "x = 0", "d = 4"]


@pytest.mark.parametrize(
    ("comment", "now", "line"),
    [
        (about(4), CODE, 4),
        (about(4), ["# new", "", *CODE], 6),
        (about(4), [line.replace("    ", "\t") for line in CODE], 4),
        (about(4), [*CODE[:3], "        total = total + v", *CODE[4:]], None),
        (about(4), ["def g(x):", *CODE[1:], "", *CODE], 11),
        (about(4, ["def g(x):", *CODE[1:], *CODE]), [*CODE, "def g(x):", *CODE[1:]], 10),
        (about(5, TWICE), TWICE[3:] + TWICE[:3], 2),
        (about(2, TWICE), TWICE[3:] + TWICE[:3], 5),
        (about(2, ["p", "p", "p", "p"]), ["p", "p", "p", "p"], 2),
        (about(6), ["", "", "def g():"], None),
        (about(1), [], None),
    ],
)
def test_a_comment_goes_where_its_line_is(comment: LineComment, now: list[str], line: int | None) -> None:
    (place,) = line_comments.placed([comment], {FILE: now, "lab1_gpu_basics/other.py": CODE})
    assert (place.file, place.line) == (FILE, line)


def test_a_line_whose_file_was_renamed_is_found_if_it_is_in_one_place() -> None:
    assert line_comments.placed([about(4)], {"lab1_gpu_basics/renamed.py": CODE})[0].line == 4
    copies = {"lab1_gpu_basics/one.py": CODE, "lab1_gpu_basics/two.py": CODE}
    assert line_comments.placed([about(4)], copies)[0].line is None


def test_a_comment_is_kept_changed_and_removed_by_who_said_it(tmp_path: Path) -> None:
    odd = ["x = \"\\u202e \\\" '''\"", "\ty = 'é'\x7f"]
    made = line_comments.add(tmp_path, "student ada", FILE, 2, odd, ' "so"\n\nsecond ', "Ana")
    assert line_comments.load(tmp_path, "student ada") == (made,)
    assert (made.text, made.code, made.before) == ('"so"\n\nsecond', odd[1], (odd[0],))
    with pytest.raises(ChangedMeanwhileError, match="Ana said this"):
        line_comments.change(tmp_path, "student ada", made.id, "x", "Ben")
    changed = line_comments.change(tmp_path, "student ada", made.id, "other words", "Ana")
    assert changed is not None
    assert changed.text == "other words"
    assert line_comments.change(tmp_path, "student ada", made.id, " ", "Ana") is None
    assert line_comments.load(tmp_path, "student ada") == ()
    with pytest.raises(ChangedMeanwhileError, match="removed this comment"):
        line_comments.change(tmp_path, "student ada", made.id, "again", "Ana")


@pytest.mark.parametrize(("line", "text"), [(0, "x"), (7, "x"), (1, " "), (1, "x" * 4001)])
def test_what_is_no_comment_on_a_line_is_refused(tmp_path: Path, line: int, text: str) -> None:
    with pytest.raises(ManualGradingError):
        line_comments.add(tmp_path, "student ada", FILE, line, CODE, text, "Ana")
    assert not list(tmp_path.rglob("*.toml"))


def test_students_read_it_once_it_is_released_and_after_a_resubmission(manual: ManualClass) -> None:
    lab = manual.small.submissions / "ada" / "lab1_gpu_basics"
    (lab / "benchmark.py").write_text("\n".join(CODE))
    manual.small.grade(roster=manual.small.submissions.parent / "roster.csv")
    line_comments.add(manual.folder, "student ada", FILE, 4, CODE, "`sum` <b>does</b> this:\n    return sum(x)", "Ana")
    line_comments.add(manual.folder, "student ada", FILE, 5, CODE, "and this", "Ana")
    everything.write(manual.read(), manual.folder)
    feedback = manual.folder / "exports" / "feedback"
    assert "does" not in (feedback / "ada.md").read_text(), "not released"
    manual.write_rubric(released=True)
    (lab / "benchmark.py").write_text("\n".join(["# again", *CODE[:4], "    return sum(x)"]))
    manual.small.grade(roster=manual.small.submissions.parent / "roster.csv")
    page, text = (feedback / "ada.html").read_text(), (feedback / "ada.md").read_text()
    assert f"`{FILE}`, line 5:" in text
    assert f"`{FILE}`, a line that is not there any more:" in text
    assert "does" in text
    assert "<b>does</b>" not in page
    said = html.escape("`sum` <b>does</b> this:\n    return sum(x)")
    assert f'<p style="white-space:pre-wrap; overflow-wrap:anywhere">{said}</p>' in page  # code keeps its indentation
    assert "Comments on your code" not in (feedback / "eve.html").read_text()


def test_code_is_highlighted_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    lines = ['def f(x):  # "note"', '    """Doc', '    more."""', "    return 1.5 + x", "", "\tweird \\x00", "if"]
    rows = code_files.highlighted("a.py", lines)
    assert ["".join(text for _, text in row) for row in rows] == lines
    kinds = {(kind, text.strip()) for row in rows for kind, text in row if kind}
    assert {("keyword", "def"), ("name", "f"), ("comment", '# "note"'), ("number", "1.5")} <= kinds
    assert {"string"} <= {kind for kind, _ in rows[1]} | {kind for kind, _ in rows[2]}
    assert code_files.highlighted("a.unknown", lines) == [[("", line)] for line in lines]
    lab = tmp_path / "lab1_gpu_basics"
    lab.mkdir()
    (lab / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = '\x1b[2J\xe2\x80\xae'\r")
    (lab / "large.py").write_text("x\n" * code_files.MAX_BYTES)
    (lab / "long.py").write_text("x\n" * code_files.MAX_LINES)
    assert code_files.left_out(tmp_path) == [
        "lab1_gpu_basics/large.py (more than 256 KiB)",
        "lab1_gpu_basics/long.py, from line 3001 on",
    ]
    (lab / "long.py").unlink()
    assert code_files.read(tmp_path) == {"lab1_gpu_basics/a.py": ["x = 1", r"y = '\x1b[2J\u202e'", ""]}
