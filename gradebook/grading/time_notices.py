"""What an instructor should know about deadlines, times of submission and rules for late work that may be mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gradebook.intake.doubtful_rows import OF_OURS, says_nothing
from gradebook.results import Student
from gradebook.settings import RATES, Settings
from gradebook.text_files import some, with_name

_MODIFIED = "Last modified (submission)"
"""In Moodle's worksheet."""
_TERM = timedelta(days=183)
_MANY = 3
"""Fewer students who are late are no news."""


def notices(settings: Settings, students: Sequence[Student]) -> tuple[str, ...]:
    """All of it, without empty ones."""
    said = (
        _unknown_times(settings, students),
        _changing_clocks(settings, students),
        _without_deadline(settings),
        _odd_rates(settings),
        _deadline_ahead(settings, students),
        _no_extension(settings),
        _all_late(settings, students),
        _in_the_future(settings, students),
        _of_another_term(settings, students),
        _shorter(settings, students),
    )
    return tuple(filter(None, said))


def _shorter(settings: Settings, students: Sequence[Student]) -> str:
    """Whose extension ends before the deadline of all, perhaps because that was moved later."""
    deadline = settings.deadline
    names = [
        student.student
        for student in students
        if deadline is not None and settings.extensions.get(student.student, deadline) < deadline
    ]
    if not names:
        return ""
    ends = "ends before the deadline of the class, and counts as it stands: remove it"
    end = "end before the deadline of the class, and count as they stand: remove them"
    what = ends if len(names) == 1 else end
    return f"class.toml: [extensions] of {', '.join(names)} {what} if the deadline was moved later"


def _no_extension(settings: Settings) -> str:
    """Whose extension is the deadline of all, and so changes nothing."""
    names = [name for name, moment in settings.extensions.items() if moment == settings.deadline]
    return (
        f"class.toml: [extensions] of {some(names)}: the same as the deadline of the class, so without effect"
        if names
        else ""
    )


def _deadline_ahead(settings: Settings, students: Sequence[Student]) -> str:
    """What to say of zeros that are given while students can still hand in."""
    deadline, now = settings.deadline, datetime.now(UTC)
    missing = [student for student in students if student.status == "missing" and student.columns]
    missing = [student for student in missing if student.student not in settings.extensions]
    if deadline is None or deadline <= now or not missing:
        return ""
    return (
        f"the deadline, {settings.local(deadline):%Y-%m-%d %H:%M %Z}, is still to come, and {len(missing)} without a "
        "submission have 0 already: send no grades before it"
    )


def _changing_clocks(settings: Settings, students: Sequence[Student]) -> str:
    """What to say of a course whose moments have several offsets, and which names no time zone."""
    handed_in = [student.submitted_at for student in students if student.submitted_at and not student.commit]
    deadlines = [moment for moment in (settings.deadline, *settings.extensions.values()) if moment]
    offsets = {moment.utcoffset() for moment in (*handed_in, *deadlines)} - {timedelta(0)}  # platforms say UTC
    if settings.timezone or len(offsets) < 2 or settings.deadline is None or not settings.late.deducts:
        return ""
    return (
        "times have different offsets, and class.toml has no timezone: offsets that differ by an hour are taken for "
        'one clock before and after it changed. Set timezone, such as "Europe/Berlin", so that this is certain'
    )


def _odd_rates(settings: Settings) -> str:
    """Late rules that a person hardly means."""
    late = settings.late
    keys = [
        key
        for key, is_set in (("at_most_percent", late.at_most_percent < 100), ("grace_minutes", late.grace))
        if is_set
    ]
    if keys and not late.deducts:
        rates = "percent_per_day, percent_per_hour or points_per_day"
        return f"[late] has {' and '.join(keys)} and no rate, so lateness costs nothing: set {rates}"
    rate = next((name for name in RATES if getattr(late, name)), "")
    if rate and not late.at_most_percent:
        return f"[late] has at_most_percent = 0, so {rate} deducts nothing: remove it, or set the most that is deducted"
    if late.no_credit_after is not None and late.no_credit_after <= late.grace:
        return (
            "[late] has no_credit_after_days within grace_minutes: what is late has 0 from the end of the grace on"
            + (f", and {rate} has no effect" if rate else "")
        )
    if 0 < late.percent_per_day < 1:
        return f"percent_per_day = {late.percent_per_day} deducts {late.percent_per_day} % a day: write 10 for 10 %"
    return ""


def _without_deadline(settings: Settings) -> str:
    if settings.deadline is not None or not (settings.late.deducts or settings.extensions):
        return ""
    if settings.extensions:
        names = some(list(settings.extensions))
        return f"class.toml has no deadline, so nobody is late but by their own in [extensions] ({names}): set deadline"
    return "[late] has no effect, because there is no deadline: set deadline in class.toml"


def _all_late(settings: Settings, students: Sequence[Student]) -> str:
    """What to say if nobody was in time, which is rather a mistake of the deadline."""
    times = [
        (student.submitted_at, until)
        for student in students
        if student.submitted_at is not None and (until := settings.in_time_until(student.student)) is not None
    ]
    if len(times) < _MANY or settings.deadline is None or not all(at > until for at, until in times):
        return ""
    first = settings.local(min(at for at, _ in times))
    return (
        f"all {len(times)} submissions are late, the first at {first:%Y-%m-%d %H:%M %Z}: look at the deadline, "
        f"{settings.local(settings.deadline):%Y-%m-%d %H:%M %Z}"
    )


def _in_the_future(settings: Settings, students: Sequence[Student]) -> str:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    texts = [
        f"{student.student} ({settings.local(student.submitted_at):%Y-%m-%d})"
        for student in students
        if student.submitted_at is not None and student.submitted_at > tomorrow
    ]
    if not texts:
        return ""
    return f"times of submission are in the future, so somebody's clock or table is wrong: {some(texts)}"


def _of_another_term(settings: Settings, students: Sequence[Student]) -> str:
    """What to say of times that are so early that they are those of another year."""
    if settings.deadline is None:
        return ""
    early = [
        f"{student.student} ({settings.local(student.submitted_at):%Y-%m-%d})"
        for student in students
        if student.submitted_at is not None and settings.deadline - student.submitted_at > _TERM
    ]
    if not early:
        return ""
    day = f"{settings.local(settings.deadline):%Y-%m-%d}"
    return (
        f"times of submission are more than half a year before the deadline ({day}): {some(early)}. Look at the table "
        "of times, and at the deadline"
    )


def _unknown_times(settings: Settings, students: Sequence[Student]) -> str | None:
    if not settings.late.deducts or (settings.deadline is None and not settings.extensions):
        return None
    handed_in = [student for student in students if student.content is not None]
    unknown = [
        with_name(student.student, student.name)
        for student in handed_in
        if student.submitted_at is None and settings.deadline_of(student.student) is not None
    ]
    if not unknown:
        return None
    plural = "" if len(unknown) == 1 else "s"
    names = "" if len(unknown) == len(handed_in) else f" ({some(unknown)})"
    return (
        f"no submission time is known for {len(unknown)} submission{plural}{names}, so no penalty was applied: "
        'name a table of times in class.toml, submitted = "times.csv", or give the roster a column submitted_at'
        f"{_unread(handed_in)}"
    )


def _unread(students: Sequence[Student]) -> str:
    """What a roster says about when somebody handed in, if nobody can read it; empty if it says nothing."""
    for student in students:
        if student.submitted_at is None and student.columns.keys() >= OF_OURS:
            return (
                ". The roster is a table of grades, whose times may be those of another assignment: if they are of "
                "this one, name that file as the table of times"
            )
        cell = student.columns.get(_MODIFIED, "")
        if student.submitted_at is None and not says_nothing(cell):
            who = with_name(student.student, student.name)
            return f". The roster's column {_MODIFIED!r} has {cell!r} for {who}, which cannot be read as a moment"
    return ""
