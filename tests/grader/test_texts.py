"""Text of a submission cannot take over a terminal."""

from grader.texts import printable


def test_escapes_of_terminals_are_written_out() -> None:
    assert printable("\x1b[2Jpassed\x07\x9b2J") == "\\x1b[2Jpassed\\x07\\x9b2J"


def test_marks_that_reverse_the_direction_are_written_out() -> None:
    assert printable("a\u202eb\u2028c") == "a\\u202eb\\u2028c"


def test_words_lines_and_units_stay_as_they_are() -> None:
    text = "saw 3.2 µs,\n\texpected 4 · 5 ² ñ 漢"
    assert printable(text) == text
