"""Text of a submission cannot take over a terminal, and what people write stays as they wrote it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradebox.common.texts import is_printable, printable, printable_document


def test_escapes_of_terminals_are_written_out() -> None:
    assert printable("\x1b[2Jpassed\x07\x9b2J") == "\\x1b[2Jpassed\\x07\\x9b2J"


def test_marks_that_reverse_the_direction_are_written_out() -> None:
    assert printable("a\u202eb\u2028c") == "a\\u202eb\\u2028c"


def test_letters_that_nobody_sees_are_written_out() -> None:
    assert printable("a\u200b\u3164\uffa0b\ufeff") == "a\\u200b\\u3164\\uffa0b\\ufeff"
    assert printable("\U000e0041\udcff\0") == "\\U000e0041\\udcff\\x00"


def test_words_lines_and_units_stay_as_they_are() -> None:
    text = "saw 3.2 µs,\n\texpected 4 · 5 ² ñ 漢"
    assert printable(text) == text


def test_part_of_a_line_has_no_line_ends() -> None:
    assert printable("ada\nbob:\t20", lines=False) == "ada\\nbob:\\t20"
    assert not is_printable("ada\nbob")


@pytest.mark.parametrize("text", ["👩🏽‍💻", "🏳️‍🌈", "👨‍👩‍👧‍👦", "❤️‍🔥", "می‌خواهم", "क्‍ष", "Zoë", "中文", "e\u0301"])
def test_joiners_stay_where_people_write_them(text: str) -> None:
    assert printable(text, lines=False) == text


@pytest.mark.parametrize("joiner", ["\u200c", "\u200d"])
@pytest.mark.parametrize("around", ["{}", "a{}b", "{}👩", "👩{}", "👩{}b", "中{}文", "a{}م", "👩{0}{0}💻"])
def test_joiners_that_join_nothing_are_written_out(around: str, joiner: str) -> None:
    assert joiner not in printable(around.format(joiner))


def test_a_document_has_printable_keys_and_values() -> None:
    document = {"\x1b": ["\u202e", ("\0", 1, None)], "deep": {"\ufeff": 0.5}}
    assert printable_document(document) == {"\\x1b": ["\\u202e", ["\\x00", 1, None]], "deep": {"\\ufeff": 0.5}}


def test_what_is_printable_stays_so() -> None:
    once = printable("a\x1b\u202e👩\u200db\ud800")
    assert printable(once) == once
    assert json.loads(json.dumps(once)) == once


def test_it_needs_no_other_library() -> None:
    folder = str(Path(__file__).parents[2])
    text = f"import sys; sys.path.insert(0, {folder!r}); import gradebox.common.texts"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", text], check=False).returncode == 0
