"""`class.toml`, rosters and late rules: what they say, and what is wrong in one line."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gradebook import settings
from gradebook.export import everything
from gradebook.intake import roster_files
from gradebook.lateness import LateRules
from gradebook.roster import Roster, RosterError

EVERYTHING = """\
title = "GPU computing"
labs = [3, 1]
device = "vgpu:T4"
deadline = 2026-03-01T23:59:00+01:00
submitted = "files"
roster = "roster.csv"
overrides = "given/overrides.toml"

[late]
grace_minutes = 15
percent_per_day = 12.5
at_most_percent = 50
no_credit_after_days = 7

[extensions]
ada = 2026-03-08T23:59:00+01:00

[git]
branch = "work"
commits = "latest"
protocols = ["https"]

[limits]
minutes_per_submission = 5
files = 100
mebibytes = 1

[exports]
anything = "goes to the exports"
"""


def parse(text: str) -> settings.Settings:
    return settings.parse(text, Path("/class/class.toml"))


def test_every_key_has_its_place() -> None:
    config = parse(EVERYTHING)
    assert (config.title, config.labs, config.device, config.times_of_files) == (
        "GPU computing",
        (1, 3),
        "vgpu:T4",
        True,
    )
    assert (config.roster, config.overrides) == (Path("/class/roster.csv"), Path("/class/given/overrides.toml"))
    assert config.late.grace == timedelta(minutes=15)
    assert (config.late.percent_per_day, config.late.no_credit_after) == (Decimal("12.5"), timedelta(days=7))
    assert config.deadline_of("ada") == datetime(2026, 3, 8, 22, 59, tzinfo=UTC)
    assert config.deadline_of("bob") == datetime(2026, 3, 1, 22, 59, tzinfo=UTC)
    assert (config.git.branch, config.git.only_in_time, config.git.protocols) == ("work", False, ("https",))
    assert config.limits == settings.IntakeLimits(files=100, bytes=2**20, seconds_per_submission=300)
    assert config.exports == {"anything": "goes to the exports"}


def test_the_documented_example_is_one() -> None:
    assert settings.__doc__ is not None
    example = textwrap.dedent(settings.__doc__.partition("\n")[2])
    assert parse(example).title == "GPU computing, autumn"


def test_nothing_needs_to_be_said() -> None:
    assert parse("") == settings.Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("titel = 'x'", "class.toml:1: unknown key 'titel'; did you mean 'title'"),
        ("title = 1", "title = 1 is not a text"),
        ("labs = 1", "labs = 1 is no list of numbers: write labs = .1.,"),
        ("labs = []", r"labs = \[\] is not a list of numbers"),
        ("deadline = 2026-03-01T23:59:00", "deadline 2026-03-01T23:59:00 has no time zone; add it"),
        ("deadline = 2026-03-01", ": write 2026-03-01T23:59:00"),
        ("deadline = '2026-03-01 23:59'", ": write 2026-03-01T23:59:00, without quotes"),
        ("deadline = '2026-03-01T23:59+01:00'", r"time: write 2026-03-01T23:59:00\+01:00, without quotes"),
        ("deadline = '2026-03-01'", ": write 2026-03-01T23:59:00, without quotes"),
        ("[late]\npercent_per_day = '10 %'", "percent_per_day = '10 %' is not a number: write 10, without quotes"),
        ("deadline = 23:59:00", "deadline = 23:59:00 is not a date with a time"),
        (
            'timezone = "Europe/Berlin"\ndeadline = 2026-03-29T02:30:00',
            "has no such time, because the clocks go forward; wr",
        ),
        (
            "late = 10",
            r"class.toml:1: late = 10 is no table: write \[late\] in a line, and its keys",
        ),
        (
            "[late]\npercent_per_day = 10\ndeadline = 2026-03-01T23:59:00Z",
            r":3: deadline is below \[late\]",
        ),
        ("[extensions]\nada = 2026-03-01T23:59:00Z\ntitle = 'x'", r"toml:3: title is below \[extensions\]"),
        ("[extensions]\nada = 2026-03-01T23:59:00Z\nada = 2026-03-02T23:59:00Z", ":3: a key stands twice in one table"),
        ("[deadlines]\nlab1 = 2026-03-01T23:59:00Z", "class.toml:1: deadlines: a class has one deadline. If each lab"),
        ("title = 'x'\ndeadline = [2026-03-01T23:59:00Z]", "class.toml:2: deadline: a class has one deadline"),
        ("deadline = { lab1 = 2026-03-01T23:59:00Z }", "class.toml:1: deadline: a class has one deadline"),
        ('overrides = "marks.csv"', "expected a .toml file, as review --override writes it"),
        ("submitted = 'guess'", "expected 'files', 'unknown' or a .csv file of times"),
        ("[late]\ngrace = 1", "class.toml:2: unknown key 'grace'; known are grace_minutes"),
        ("[late]\npercent_per_day = 1\npoints_per_day = 1", "set only one of"),
        ("[late]\ngrace_minutes = -1", "must be at least 0"),
        ("[late]\npercent_per_day = 150", "percent_per_day = 150 must be at least 0 and at most 100"),
        ("[late]\ngrace_minutes = nan", "grace_minutes = nan is not a number"),
        ("[late]\nat_most_percent = 101", "at most 100"),
        ("[extensions]\nada = 'tomorrow'", "class.toml:2: ada = 'tomorrow' is not a date with a time"),
        ("[git]\nprotocols = ['ext']", "protocols = 'ext': expected 'https'"),
        ("[limits]\nfiles = 0", "would refuse every submission"),
        ("[limits]\nfiles = 100000", "at most 4000"),
        ("title = ", "class.toml:1: not valid TOML: [^;]*$"),
        *(
            (f"deadline = {day}", "class.toml:1: not valid TOML: .*; there is no such day or time, or it is written in")
            for day in ("2026-02-29T23:59:00", "2026-13-01T23:59:00", "2026-03-01T23:60:00Z", "24.10.2026", "1/3/2026")
        ),
        ("title = \u201cGPU\u201d", "class.toml:1: not valid TOML: .*; write straight quotes"),
        ("labs\u00a0= [1]", r"class.toml:1: not valid TOML: .*; the line has a no-break space \(U\+00A0\)"),
        ('roster = "C:\\Users\\x\\roster.csv"', "in double quotes a backslash needs another one: write / in paths"),
        ("[extensions]\nada@x.edu = 2026-03-08T23:59:00Z", ':2: not valid .* needs quotes: "ada@x.edu" = ...'),
        ("[extensions]\nZoë Müller = 2026-03-08T23:59:00Z", 'needs quotes: "Zoë Müller" = ...'),
        ("[extensions]\nada.l = 2026-03-08T23:59:00Z", 'a name with a dot needs quotes: "ada.l" = ...'),
        (
            "labs = [1]\ndeadline = 2026-03-01T24:00:00",
            "class.toml:2: .* 24:00 in TOML: write 23:59:59, or 00:00",
        ),
        ("[extensions]\nada = 2026-03-01 24:00:00+01:00", "class.toml:2: no time is 24:00 in TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(text: str, message: str) -> None:
    with pytest.raises(settings.SettingsError, match=message) as error:
        parse(text)
    assert str(error.value).startswith("/class/class.toml")
    assert "\n" not in str(error.value)


def test_a_file_in_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    made = parse('roster = "~/roster.csv"\nsubmitted = "~/times.csv"\nteams = "~nobody-at-all/x.csv"')
    assert (str(made.roster), str(made.times)) == ("/home/ada/roster.csv", "/home/ada/times.csv")
    assert str(made.teams) == "/class/~nobody-at-all/x.csv"


@pytest.mark.parametrize("text", ["2026-03-01T23:59", "tomorrow"])
def test_a_deadline_on_the_command_line_needs_a_zone_as_well(text: str) -> None:
    with pytest.raises(settings.SettingsError, match="--deadline"):
        settings.parse_moment(text, "--deadline")


DEADLINE = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offset", "is_refused"), [("", False), ("+01:00", False), ("+02:00", True), ("Z", False), ("+05:30", False)]
)
@pytest.mark.parametrize("place", ["deadline", "[extensions]\nada"])
def test_an_offset_of_the_other_half_of_the_year_is_refused(place: str, offset: str, is_refused: bool) -> None:
    text = f'timezone = "Europe/Berlin"\n{place} = 2026-11-10T23:59:00{offset}'
    if not is_refused:
        parse(text)
        return
    with pytest.raises(settings.SettingsError, match=r"Berlin has \+01:00 on that day; write.*2026-11-10T23:59:00, or"):
        parse(text)


@pytest.mark.parametrize("offset", ["+01:00", "+02:00"])
def test_both_offsets_of_the_repeated_hour_are_right(offset: str) -> None:
    parse(f'timezone = "Europe/Berlin"\ndeadline = 2026-10-25T02:30:00{offset}')


@pytest.mark.parametrize("place", ["deadline", "[extensions]\nada"])
def test_a_deadline_in_the_repeated_hour_needs_an_offset(place: str) -> None:
    with pytest.raises(
        settings.SettingsError, match=r"twice.*write .*02:30:00\+02:00, or .*02:30:00\+01:00 for the sec"
    ):
        parse(f'timezone = "Europe/Berlin"\n{place} = 2026-10-25T02:30:00')


def test_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "class.toml"
    path.write_bytes('title = "Übung"\n'.encode("cp1252"))
    with pytest.raises(
        settings.SettingsError, match=r"class\.toml:1: it is not UTF-8\. If 'title = \"Übung\"' reads right"
    ):
        settings.load(path)
    path.write_text('title = "Übung"\n', encoding="utf-16")
    with pytest.raises(settings.SettingsError, match=r"class\.toml:1: it is UTF-16, not UTF-8: save"):
        settings.load(path)


def lost(rules: LateRules, hours: float, score: int = 80) -> tuple[Decimal, str] | None:
    penalty = rules.penalty(DEADLINE + timedelta(hours=hours), DEADLINE, Decimal(score), Decimal(100))
    return None if penalty is None else (penalty.points, penalty.rule)


def test_who_is_in_time_or_within_the_grace_loses_nothing() -> None:
    rules = LateRules(grace=timedelta(minutes=30), percent_per_day=Decimal(10))
    assert lost(rules, -1) is None
    assert lost(rules, 0) is None
    assert lost(rules, 0.5) is None
    over = "from the deadline on, because the grace of 30 minutes is over"
    assert lost(rules, 0.52) == (10, f"10 % of 100 points per day, 1 day; {over}")


@pytest.mark.parametrize(
    ("rules", "hours", "expected"),
    [
        (LateRules(percent_per_day=Decimal(10)), 24.1, (20, "10 % of 100 points per day, 2 days")),
        (LateRules(percent_per_hour=Decimal("0.5")), 3, (Decimal("1.5"), "0.5 % of 100 points per hour, 3 hours")),
        (LateRules(points_per_day=Decimal(3)), 1, (3, "3 points per day, 1 day")),
        (
            LateRules(points_per_day=Decimal(9), at_most_percent=Decimal(25)),
            99,
            (25, "9 points per day, 5 days, at most 25 %"),
        ),
        (LateRules(no_credit_after=timedelta(days=2)), 48.1, (80, "no credit after 2 days")),
        (LateRules(percent_per_day=Decimal(50)), 99, (80, "50 % of 100 points per day, 5 days, at most 100 %")),
        (LateRules(), 99, (0, "late work loses nothing")),
        (LateRules(percent_per_hour=Decimal("0.333")), 1, (Decimal("0.33"), "0.333 % of 100 points per hour, 1 hour")),
    ],
)  # fmt: skip
def test_each_rule_takes_what_it_says(rules: LateRules, hours: float, expected: tuple[Decimal, str]) -> None:
    assert lost(rules, hours) == expected


def test_the_documentation_shows_settings_that_are_accepted_and_describes_the_column_of_times() -> None:
    text = (Path(__file__).parents[2] / "docs" / "class-grading.md").read_text()
    shown = re.search(r"## class.toml\n\n```toml\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    config = settings.parse(shown[1], Path("class.toml"))
    assert everything.options(config.exports).canvas_course == "42"
    times = (Path(__file__).parents[2] / "docs" / "class-times.md").read_text()
    assert "`submitted_at`" in times  # which a notice tells to add


def load(tmp_path: Path, text: str) -> Roster:
    (tmp_path / "roster.csv").write_text(text)
    return roster_files.load(tmp_path / "roster.csv")


def test_canvas_students_are_found_by_each_of_their_numbers(tmp_path: Path) -> None:
    head = "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Lab (99)\n    Points Possible,,,,,100\n"
    people = load(tmp_path, f'{head}"Lovelace, Ada",17,S1,ada,A,\n')
    (ada,) = people.entries
    assert (ada.student, ada.name, ada.columns["Section"]) == ("ada", "Lovelace, Ada", "A")
    assert all(people.find([handle]) is ada for handle in ("17", "S1", "ADA"))
    assert people.find(["18"]) is None


@pytest.mark.parametrize("title", ["submitted_at", "Submitted_At", " SUBMITTED_AT "])
def test_the_time_in_a_roster_is_read_whatever_the_case_of_its_column(tmp_path: Path, title: str) -> None:
    path = tmp_path / "roster.csv"
    path.write_text(f"student,{title}\nada,2026-03-01T23:00:00+01:00\n")
    (entry,) = roster_files.load(path).entries
    assert entry.submitted_at == datetime(2026, 3, 1, 22, tzinfo=UTC)


def test_moodle_students_are_found_by_the_number_in_their_archives(tmp_path: Path) -> None:
    people = load(tmp_path, "Identifier;Full name;Email address\nParticipant 17;Ada Lovelace;ada@example.org\n")
    (ada,) = people.entries
    assert (ada.student, ada.name) == ("Participant 17", "Ada Lovelace")
    assert people.find(["17"]) is ada
    assert people.find(["ada@example.org"]) is ada


def test_a_name_in_two_columns_is_put_together(tmp_path: Path) -> None:
    assert load(tmp_path, "Username,First name,Last name\nada,Ada,Lovelace\n").entries[0].name == "Ada Lovelace"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("who,name\nada,Ada\n", "has no column that names students"),
        ("", "is empty"),
        ("student\n\n", "has no row below its titles"),
        ("student\nada\nada\n", "lines 2 and 3: student 'ada' stands twice"),
        ("student,submitted_at\nada,yesterday\n", "line 2: submitted_at 'yesterday' cannot be read as a day"),
    ],
)
def test_a_roster_that_makes_no_sense_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RosterError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("EST", "is EST in summer as well, an hour off; write the course's city, America/New_York"),
        ("MST", "America/Denver (or America/Phoenix, which has no summer time)"),
        ("Etc/GMT+5", "means UTC-5, with the other sign, all year; write the course's city"),
        ("GMT-1", "means UTC+1"),
    ],
)
def test_a_zone_that_means_something_else_than_people_think_is_refused(name: str, words: str) -> None:
    with pytest.raises(settings.SettingsError, match=re.escape(words)):
        parse(f'timezone = "{name}"\n')


@pytest.mark.parametrize("name", ["UTC", "CET", "America/Phoenix", "Asia/Tokyo", "Etc/UTC", "EST5EDT"])
def test_a_zone_without_summer_time_is_one(name: str) -> None:
    assert str(parse(f'timezone = "{name}"\n').timezone) == name


@pytest.mark.parametrize("text", ["[extensions]\nzoe = {lab1 = 2026-03-08T23:59:00}\n", "[extensions.zoe]\nlab1 = 1\n"])
def test_an_extension_of_one_lab_is_refused_for_what_it_is(text: str, tmp_path: Path) -> None:
    with pytest.raises(
        settings.SettingsError, match=r"zoe has an extension for a lab, but all labs of a class have one deadline"
    ):
        settings.parse(text, tmp_path / "class.toml")
