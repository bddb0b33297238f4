"""When something was handed in: tables say it, files only where they can be believed, and clocks change."""

from __future__ import annotations

import io
import os
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from gradebook import settings
from gradebook.intake import roster_files, times
from gradebook.intake.times import TimesError
from gradebook.results import ClassResult
from gradebook.settings import Settings, SettingsError
from tests.gradebook.conftest import SmallClass

BERLIN = ZoneInfo("Europe/Berlin")
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
"Lovelace, Ada",101,S1,ada,A
"Ross, Bob",102,S2,bob,A
"Müller, Zoë",103,S3,zoe,A
"""
LATE = "[late]\npercent_per_day = 10\n"
ZIPPED = (2026, 3, 29, 9, 0, 0)


def download(folder: Path, stamps: dict[str, tuple[int, ...]]) -> Path:
    """What Canvas's Download Submissions gives: a zip of zips, stamped with the moment of zipping."""
    target = folder / "submissions.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for name, when in stamps.items():
            inner = io.BytesIO()
            with zipfile.ZipFile(inner, "w") as one:
                one.writestr(zipfile.ZipInfo("lab1_gpu_basics/benchmark.py", when), f"# {name}\n")  # type: ignore[arg-type]
            archive.writestr(zipfile.ZipInfo(name, when), inner.getvalue())  # type: ignore[arg-type]
    return target


def grade(small: SmallClass, source: Path, text: str, roster: str = CANVAS) -> tuple[ClassResult, str]:
    folder = small.submissions.parent
    (folder / "roster.csv").write_text(roster)
    (folder / "class.toml").write_text('roster = "roster.csv"\n' + text)
    said = io.StringIO()
    result = small.grade(
        submissions=source, configuration=folder / "class.toml", console=Console(file=said, width=1000)
    )
    return result, said.getvalue()


ADA, BOB, BOB_LATE, ZOE = (
    *("lovelaceada_101_9001_lab1.zip", "rossbob_102_9002_lab1.zip", "rossbob_LATE_102_9002_lab1.zip"),
    "mullerzoe_103_9003_lab1.zip",
)
MARCH = 'submitted = "files"\ntimezone = "Europe/Berlin"\ndeadline = 2026-03-28T23:59:00\n'


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("Europe/Berlin", ""),
        ("Asia/Tokyo", "not marked as late: zoe, who are late by the table. Check timezone and deadline"),
        ("America/New_York", "marked as late: bob, who are in time by the table. Check timezone"),
    ],
)
def test_a_table_in_another_time_zone_than_canvas_marks_is_named(
    small_class: SmallClass, tmp_path: Path, zone: str, words: str
) -> None:
    (tmp_path / "times.csv").write_text(
        "student,submitted_at\nada,2026-03-27T09:00:00Z\nbob,2026-03-29T01:00:00Z\nzoe,2026-03-28T20:00:00Z\n"
    )
    text = f'submitted = "times.csv"\ntimezone = "{zone}"\ndeadline = 2026-03-28T23:59:00\n{LATE}grace_minutes = 600\n'
    _, said = grade(small_class, download(tmp_path, dict.fromkeys((ADA, BOB_LATE, ZOE), ZIPPED)), text)
    assert ("Canvas does not agree on who is late" in said) == bool(words)
    assert words in said


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        ({ADA: ZIPPED, BOB: ZIPPED}, "all 2 files have the time 2026-03-29 09:00 CEST, when they were packed"),
        (
            {ADA: ZIPPED, BOB: (2026, 3, 29, 9, 1, 30), ZOE: (2026, 3, 29, 9, 6, 2)},
            "all 3 files have the time 2026-03-29 09:00 CEST",
        ),
        (
            {ADA: (2026, 3, 27, 9, 0, 0), BOB_LATE: (2026, 3, 28, 23, 0, 0)},
            "rossbob_LATE_102_9002_lab1.zip is marked as late by Canvas, but its time is 2026-03-28 23:00 CET",
        ),
        (
            {ADA: (2026, 3, 27, 9, 0, 0), BOB: (2026, 3, 29, 3, 30, 0)},
            "rossbob_102_9002_lab1.zip is not marked as late by Canvas, but its time is 2026-03-29 03:30 CEST",
        ),
    ],
)
def test_times_of_a_download_make_nobody_late(
    small_class: SmallClass, stamps: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(TimesError, match=message) as info:
        grade(small_class, download(small_class.submissions.parent, stamps), MARCH + LATE)
    assert 'submitted = "times.csv"' in str(info.value)
    assert small_class.graded == []


def test_an_extension_of_ours_may_contradict_canvas(small_class: SmallClass) -> None:
    source = download(small_class.submissions.parent, {ADA: (2026, 3, 27, 9, 0, 0), BOB_LATE: (2026, 3, 29, 9, 0, 0)})
    result, said = grade(small_class, source, MARCH + LATE + "[extensions]\nbob = 2026-04-05T23:59:00\n")
    assert [row.late for row in result.students] == [None, None, None]
    assert "zip files' are taken as Europe/Berlin" in said
    ada = result.students[0].submitted_at
    assert ada is not None
    assert ada.isoformat() == "2026-03-27T09:00:00+01:00"


CASES = [
    ("ID,submitted_at\n101,2026-03-28T22:58:00Z\n102,2026-03-30T20:00:00Z\n", "Canvas's API"),
    ("login_id,Submitted At\nada,2026-03-28 23:58\nbob,2026-03-30 22:00\n", "the course's clock"),
    ("Name,SID,Submission Time\nAda,S1,2026-03-28 15:58:00 -0700\nBob,S2,2026-03-30 22:00:00 +0200\n", "Gradescope"),
    (
        'Full name,ID number,Last modified (submission)\nAda,S1,"Saturday, 28 March 2026, 11:58 PM"\n'
        'Bob,S2,"Monday, 30 March 2026, 10:00 PM"\nZoë,S3,-\n',
        "Moodle",
    ),
    ("ID;Zuletzt geändert (Abgabe)\n101;Samstag, 28. März 2026, 23:58\n102;Montag, 30. März 2026, 22:00\n", "de"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "what"), CASES, ids=[what for _, what in CASES])
def test_a_table_says_who_handed_in_when(small_class: SmallClass, table: str, what: str) -> None:
    (small_class.submissions.parent / "times.csv").write_text(table)
    source = download(small_class.submissions.parent, {ADA: ZIPPED, BOB_LATE: ZIPPED})
    text = 'submitted = "times.csv"\ntimezone = "Europe/Berlin"\ndeadline = 2026-03-28T23:59:00\n'
    result, _ = grade(small_class, source, text + LATE)
    ada, bob, _ = result.students
    assert ada.late is None
    assert bob.late is not None
    assert bob.late.rule.endswith("2 days")
    assert (ada.submitted_at, bob.submitted_at) == (
        datetime(2026, 3, 28, 23, 58, tzinfo=BERLIN), datetime(2026, 3, 30, 22, 0, tzinfo=BERLIN),
    )  # fmt: skip


def test_a_row_in_time_and_a_late_one_of_a_student_are_named(small_class: SmallClass) -> None:
    rows = "ada,2026-03-28T20:00Z\nbob,2026-03-30T20:00Z\nbob,2026-03-28T20:00Z\n"
    (small_class.submissions.parent / "times.csv").write_text(f"student,submitted_at\n{rows}")
    source = download(small_class.submissions.parent, {ADA: ZIPPED, BOB_LATE: ZIPPED})
    text = 'submitted = "times.csv"\ntimezone = "Europe/Berlin"\ndeadline = 2026-03-28T23:59:00\n'
    result, said = grade(small_class, source, text + LATE)
    assert result.students[1].late is not None
    assert "times.csv has of bob a row in time and a late one, which counts" in said
    later = f"{text}{LATE}\n[extensions]\nbob = 2026-03-30T23:59:00\n"
    result, said = grade(small_class, source, later)
    assert result.students[1].late is None
    assert "a row in time" not in said


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("student,Lab 1 - Submission Time\nada,1\n", r"call it submitted_at \(perhaps 'Lab 1 - Submission Time'\)"),
        ("student,score\nada,1\n", "has no column that says when; call it submitted_at"),
        ("when,submitted_at\nada,2026-03-28T20:00Z\n", "has no column that identifies students"),
        ("student,submitted_at\nada,soon\n", "line 2: submitted_at 'soon' cannot be read as a day and a time of day"),
        (
            "student,submitted_at\nada,11/10/2026 11:59 PM\n",
            "may be two days, because it does not say which number is the",
        ),
        ("student,submitted_at\n\n", "has no row below its titles"),
        ("", "times.csv is empty"),
        ("student,submitted_at\nada,\nbob,-\n", "says of nobody when they handed in: nobody's row has a moment in its"),
        (
            "student,submitted_at\nada,2026-03-28T20:00Z\n,2026-03-28T20:00Z\n",
            "line 3: it has a time and names no stud",
        ),
        ("student,submitted_at\nada,2026-03-28 20:00\n", "has no time zone: set timezone in class.toml"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "times.csv").write_text(table)
    with pytest.raises(TimesError, match=message):
        times.load(tmp_path / "times.csv", None, None)


@pytest.mark.parametrize("word", ["null", "NaT", "nil", "Invalid Date", "0000-00-00 00:00:00", "Not submitted", "NULL"])
def test_programs_write_words_for_no_time(tmp_path: Path, word: str) -> None:
    (tmp_path / "times.csv").write_text(f"student,submitted_at\nada,2026-03-28T20:00Z\nida,{word}\n")
    assert times.load(tmp_path / "times.csv", None, None).of.keys() == {"ada"}


@pytest.mark.parametrize(
    "title", ["Submitted At (UTC)", "submitted_at_utc", "Submission Time (GMT)", "Submitted At [UTC]"]
)
def test_a_title_may_say_that_times_are_in_utc(tmp_path: Path, title: str) -> None:
    (tmp_path / "times.csv").write_text(f"student,{title}\nada,2026-10-24 22:30\nbob,2026-10-24 22:30+02:00\n")
    said = {key: at.astimezone(UTC).hour for key, at in times.load(tmp_path / "times.csv", None, BERLIN).of.items()}
    assert said == {"ada": 22, "bob": 20}, "a cell's own zone counts"
    if "ubmitted" in title:
        people = roster_files.load(tmp_path / "times.csv", zone=BERLIN).entries
        assert [entry.submitted_at and entry.submitted_at.astimezone(UTC).hour for entry in people] == [22, 20]


def test_a_table_of_our_grades_says_when_also_where_nobody_has_a_commit(tmp_path: Path) -> None:
    (tmp_path / "grades.csv").write_text("student,submitted_at,commit\nada,2026-03-01T10:00Z,\nbob,,\n")
    read = times.load(tmp_path / "grades.csv", None, None)
    assert (read.of, read.pushes) == ({"ada": datetime(2026, 3, 1, 10, tzinfo=UTC)}, {})


def test_moodles_worksheet_as_the_roster_says_when(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text(
        "Identifier,Full name,Email address,Grade,Last modified (submission),Last modified (grade)\n"
        'Participant 7,Ada,ada@x.edu,,"Sunday, 1 March 2026, 11:59 PM",-\nParticipant 8,Bob,bob@x.edu,,-,-\n'
    )
    ada, bob = roster_files.load(tmp_path / "roster.csv", zone=BERLIN).entries
    assert (ada.submitted_at, bob.submitted_at) == (datetime(2026, 3, 1, 23, 59, tzinfo=BERLIN), None)


@pytest.mark.parametrize(
    ("submitted", "days"),
    [
        (datetime(2026, 10, 25, 22, 30, tzinfo=UTC), 1),  # 23 h 31 min by the clock, an hour more by the sun
        (datetime(2026, 10, 25, 22, 59, tzinfo=UTC), 1),
        (datetime(2026, 10, 25, 23, 0, tzinfo=UTC), 2),
        (datetime(2026, 10, 24, 22, 0, tzinfo=UTC), 1),
    ],
)
def test_a_day_of_25_hours_is_a_day(submitted: datetime, days: int) -> None:
    text = 'timezone = "Europe/Berlin"\ndeadline = 2026-10-24T23:59:00\n' + LATE
    config = settings.parse(text, Path("class.toml"))
    assert config.deadline is not None
    penalty = config.late.penalty(submitted, config.deadline, Decimal(20), Decimal(20))
    assert penalty is not None
    assert penalty.points == 2 * days
    assert penalty.seconds_late == (submitted - config.deadline.astimezone(UTC)).total_seconds()


def test_a_class_whose_times_have_two_offsets_and_no_zone_is_told(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    roster = "student,submitted_at\nada,2026-10-25T23:30+01:00\n"
    text = "deadline = 2026-10-24T23:59:00+02:00\n" + LATE
    result, said = grade(small_class, small_class.submissions, text, roster)
    assert "offsets that differ by an hour are taken for one clock before and after it changed. Set timezone" in said
    assert result.students[0].late is not None
    assert result.students[0].late.rule.endswith("1 day by the clock")
    result, said = grade(small_class, small_class.submissions, text, roster.replace("23:30+01:00", "22:30Z"))
    assert result.students[0].late is not None
    assert result.students[0].late.rule.endswith("2 days"), "UTC is nobody's clock"
    assert "Set timezone" not in said
    result, said = grade(small_class, small_class.submissions, 'timezone = "Europe/Berlin"\n' + text, roster)
    assert result.students[0].late is not None
    assert result.students[0].late.rule.endswith("1 day by the clock")
    assert "Set timezone" not in said


def test_a_time_that_is_two_moments_counts_as_the_first_and_is_named(small_class: SmallClass) -> None:
    """At 02:30 without a zone in the night of 25 hours: in time by the first, late by the second."""
    for name in ("ada", "bob"):
        small_class.hands_in(name)
    text = 'timezone = "Europe/Berlin"\ndeadline = 2026-10-25T02:45:00+02:00\n' + LATE
    roster = "student,submitted_at\nada,2026-10-25 02:30\nbob,2026-10-25T02:30+01:00\n"
    result, said = grade(small_class, small_class.submissions, text, roster)
    assert {row.student: row.late is not None for row in result.students} == {"ada": False, "bob": True}
    assert "are two moments, and the first counts, in their favour: ada. " in said
    assert "two moments" not in grade(small_class, small_class.submissions, text, roster.replace(" 02:30", " 04:30"))[1]


def test_a_time_that_the_clocks_skip_shows_another_zone(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("student,submitted_at\nada,2026-03-29 02:30\n")
    with pytest.raises(TimesError, match=r"line 2: .* is no time in Europe/Berlin, whose clocks went forward"):
        times.load(table, None, BERLIN)
    assert times.load(table, None, UTC).of == {"ada": datetime(2026, 3, 29, 2, 30, tzinfo=UTC)}


@pytest.mark.parametrize("zone", ["Europe/Brelin", "../etc/passwd", "+01:00"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(SettingsError, match=r"class.toml:1: timezone = .* knows no such zone"):
        settings.parse(f'timezone = "{zone}"\n', Path("class.toml"))


def test_settings_name_the_table_beside_them() -> None:
    config = settings.parse('submitted = "times.csv"\n', Path("/c/class.toml"))
    assert (config.times, config.times_of_files) == (Path("/c/times.csv"), False)
    assert Settings().zone is None


@pytest.mark.parametrize(
    ("deadline", "submitted", "is_late"),
    [
        ("23:59:00", "23:59:59.999", False),
        ("23:59:00", "00:00:00", True),
        ("23:59:59", "23:59:59.5", False),
        ("23:59:59", "00:00:00", True),
        ("23:58:30", "23:58:31", True),
    ],
)
def test_a_deadline_ends_with_its_minute(deadline: str, submitted: str, is_late: bool) -> None:
    """As everybody reads it; one that names seconds ends with that second. So it is with grace, and for commits."""
    day = 2 if submitted.startswith("00") else 1
    moment = datetime.fromisoformat(f"2026-03-0{day}T{submitted}").replace(tzinfo=BERLIN)
    for grace in ("", "grace_minutes = 15\n"):
        text = f'timezone = "Europe/Berlin"\ndeadline = 2026-03-01T{deadline}\n{LATE}{grace}'
        config = settings.parse(text, Path("class.toml"))
        assert config.deadline is not None
        at = moment + config.late.grace
        penalty = config.late.penalty(at, config.deadline, Decimal(20), Decimal(20))
        until = config.in_time_until("ada")
        assert until is not None
        assert ((penalty is not None), at > until) == (is_late, is_late)


def test_the_same_files_again_after_the_deadline_are_named(small_class: SmallClass) -> None:
    for name in ("ada", "bob"):
        small_class.hands_in(name)
    text = "deadline = 2026-03-01T23:59:00Z\n" + LATE
    roster = "student,submitted_at\nada,2026-03-01T12:00Z\nbob,2026-03-01T12:00Z\n"
    assert "the same files" not in grade(small_class, small_class.submissions, text, roster)[1]
    small_class.hands_in("bob", "other files")
    _, said = grade(small_class, small_class.submissions, text, roster.replace("03-01T", "03-03T"))
    named = "the same files as in the run before, which were in time, are late now: ada (2026-03-01 12:00 UTC). If the"
    assert named in said


def test_a_deadline_or_a_time_of_another_year_is_named(small_class: SmallClass) -> None:
    for name in ("ada", "bob", "cleo"):
        small_class.hands_in(name)
    roster = "student,submitted_at\n" + "".join(f"{name},2026-03-01T12:00Z\n" for name in ("ada", "bob", "cleo"))
    for deadline, submitted, late, future, without in (
        ("deadline = 2025-03-01T23:59:00Z\n", roster, True, False, False),
        ("deadline = 2026-03-01T23:59:00Z\n", roster, False, False, False),
        ("deadline = 2026-03-01T23:59:00Z\n", roster.replace("2026", "2062", 1), False, True, False),
        ("", roster, False, False, True),
    ):
        _, said = grade(small_class, small_class.submissions, deadline + LATE, submitted)
        assert ("all 3 submissions are late, the first at 2026-03-01 12:00 UTC: look at the deadline" in said) == late
        assert ("times of submission are in the future" in said and "ada (2062-03-01)" in said) == future
        assert ("[late] has no effect, because there is no deadline" in said) == without
        assert "half a year before" not in said
        assert "[late] has at_most_percent" not in said
    _, said = grade(small_class, small_class.submissions, "deadline = 2027-03-01T23:59:00Z\n" + LATE, roster)
    assert "half a year before the deadline (2027-03-01): ada (2026-03-01), bob (2026-03-01), cleo" in said
    for rules, words in (
        (
            "at_most_percent = 50",
            "note: [late] has at_most_percent and no rate, so lateness costs nothing: set percent_",
        ),
        ("grace_minutes = 15", "note: [late] has grace_minutes and no rate, so lateness costs nothing: set percent_"),
        ("percent_per_day = 10\nat_most_percent = 0", "at_most_percent = 0, so percent_per_day deducts nothing"),
        (
            "points_per_day = 1\nno_credit_after_days = 1\ngrace_minutes = 1440",
            "what is late has 0 from the end of the grace on, and points_per_day has no effect",
        ),
        ("percent_per_day = 0.1", "note: percent_per_day = 0.1 deducts 0.1 % a day: write 10 for 10 %"),
    ):
        text = f"deadline = 2026-03-01T23:59:00Z\n[late]\n{rules}\n"
        assert words in grade(small_class, small_class.submissions, text, roster)[1]


def test_extensions_that_change_nothing_are_named(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    roster = "student,submitted_at\nada,2026-03-01T12:00Z\n"
    extension = "[extensions]\nada = 2026-03-01T23:59:00Z\n"
    _, said = grade(small_class, small_class.submissions, LATE + extension, roster)
    assert "class.toml has no deadline, so nobody is late but by their own in [extensions] (ada): set deadline" in said
    deadline = "deadline = 2026-03-01T23:59:00Z\n"
    _, said = grade(small_class, small_class.submissions, deadline + LATE + extension, roster)
    assert "class.toml: [extensions] of ada: the same as the deadline of the class, so without effect" in said


def test_nobody_has_0_before_their_own_deadline(small_class: SmallClass) -> None:
    """The deadline of all may be left to come by an instructor who tries the class out; the zeros are named."""
    small_class.hands_in("ada")
    text = "deadline = 20{}-03-01T23:59:00Z\n[extensions]\nbob = 20{}-03-05T23:59:00Z\n"
    roster = "student\nada\nbob\ncleo\n"
    for of_class, own, score, ahead in ((25, 62, None, False), (25, 25, 0, False), (62, 62, None, True)):
        result, said = grade(small_class, small_class.submissions, text.format(of_class, own), roster)
        by_key = {student.student: student for student in result.students}
        assert (by_key["bob"].score, by_key["cleo"].score) == (score, 0)
        reason = "nothing was handed in so far, and the extension until 2062-03-05 23:59 UTC runs"
        assert by_key["bob"].reason == ("" if score == 0 else reason)
        assert ("2062-03-01 23:59 UTC, is still to come, and 1 without a submission have 0" in said) == ahead


def test_who_handed_in_and_is_not_in_the_download_has_no_0(small_class: SmallClass) -> None:
    """By the roster's time, or by that of a table."""
    small_class.hands_in("ada")
    reason = "the roster or a table has a time of submission, and the work is not in these submissions"
    roster = "student,submitted_at\nada,2026-03-01T12:00Z\nbob,2026-03-01T12:00Z\ncleo,-\n"
    result, _ = grade(small_class, small_class.submissions, 'timezone = "UTC"\n', roster)
    assert [(row.score is None, row.reason) for row in result.students[1:]] == [(True, reason), (False, "")]
    (small_class.submissions.parent / "times.csv").write_text("student,submitted_at\ncleo,2026-03-01T12:00Z\n")
    text = 'timezone = "UTC"\nsubmitted = "times.csv"\n'
    result, _ = grade(small_class, small_class.submissions, text, "student\nada\nbob\ncleo\n")
    assert [(row.score is None, row.reason) for row in result.students[1:]] == [(False, ""), (True, reason)]


def test_a_table_and_a_roster_that_do_not_agree_on_who_is_late_are_named(small_class: SmallClass) -> None:
    roster = "student,submitted_at\n" + "".join(f"{name},2026-03-01T12:00Z\n" for name in ("ada", "bob", "cleo"))
    for name in ("ada", "bob", "cleo"):
        small_class.hands_in(name)
    table = "student,submitted_at\nada,2026-03-03T12:00Z\nbob,2026-03-01T11:00Z\n"
    (small_class.submissions.parent / "times.csv").write_text(table)
    text = 'timezone = "UTC"\nsubmitted = "times.csv"\ndeadline = 2026-03-02T00:00:00\n' + LATE
    result, said = grade(small_class, small_class.submissions, text, roster)
    assert [row.late is not None for row in result.students] == [True, False, False]
    assert "table counts: ada (2026-03-03 12:00, and 2026-03-01 12:00 in the roster). Remove submitted from" in said
    _, said = grade(small_class, small_class.submissions, text.replace("03-02", "03-04"), roster)
    assert "do not agree" not in said


def test_files_without_a_real_time_have_none(small_class: SmallClass) -> None:
    """1970, 1980 and 2107 are what programs write that know no time."""
    moments = {"ada": 315532800, "bob": 0, "cleo": 4354819200, "dan": 1772452800}
    for name, moment in moments.items():
        for path in sorted(small_class.hands_in(name).rglob("*"), reverse=True):
            os.utime(path, (moment, moment))
    text = 'submitted = "files"\ndeadline = 2026-03-01T12:00:00Z\n[late]\npercent_per_day = 10\n'
    result, said = grade(small_class, small_class.submissions, text, "student\nada\nbob\ncleo\ndan\n")
    assert [row.student for row in result.students if row.late] == ["dan"]
    assert "no submission time is known for 3 submissions (ada, bob, cleo), so no penalty was applied" in said


def test_files_most_of_which_were_packed_at_once_say_nothing(small_class: SmallClass) -> None:
    for number, name in enumerate(("ada", "bob", "cleo", "dan", "eve")):
        for path in small_class.hands_in(name).rglob("*"):
            moment = 1772366400 + (0 if number < 3 else 10_000 * number)
            os.utime(path, (moment, moment))
    text = 'submitted = "files"\ndeadline = 2026-03-01T12:00:00Z\n[late]\npercent_per_day = 10\n'
    with pytest.raises(TimesError, match="3 of 5 files have the time 2026-03-01 12:00 UTC, when they were packed"):
        grade(small_class, small_class.submissions, text)
