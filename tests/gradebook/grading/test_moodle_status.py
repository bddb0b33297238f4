"""Extensions and drafts that Moodle's worksheet names, in the languages of its translations."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebook import settings as class_settings
from gradebook.grading import moodle_status
from gradebook.results import Student

CLASS = 'timezone = "Europe/Berlin"\ndeadline = 2026-03-01T23:59:00\n[late]\npercent_per_day = 10\n'


def student(status: str, key: str = "Participant 17") -> Student:
    columns = {"Identifier": key, "Full name": "Ada Lovelace", "Status": status, "Maximum Grade": "20.00"}
    return Student(student=key, name="Ada Lovelace", columns=columns, status="taken", content="c")


def notices(status: str, text: str = CLASS) -> tuple[str, ...]:
    return moodle_status.notices(class_settings.parse(text, Path("class.toml")), [student(status)])


@pytest.mark.parametrize(
    "status",
    [
        "Submitted for grading - Extension granted until: Sunday, 8 March 2026, 11:59 PM",
        "Extension granted until: Sunday, 8 March 2026, 11:59 PM - 2 days late",
        "Zur Bewertung abgegeben - Erweiterung der Abgabe möglich bis: Sonntag, 8. März 2026, 23:59",
        "Enviado - Plazo ampliado hasta: domingo, 8 de marzo de 2026, 23:59",
        "Extra tijd gegeven tot: zondag, 8 maart 2026, 23:59",
        "次の日時まで延長が許可されました: 2026年 03月 8日 23:59",
    ],
)
def test_an_extension_that_only_moodle_knows_is_named(status: str) -> None:
    (notice,) = notices(status)
    assert (
        "Moodle's worksheet grants extensions that class.toml does not have: Participant 17 (Ada Lovelace) (2026-03-08 "
        "23:59)" in notice
    )


@pytest.mark.parametrize("status", ["Submitted for grading - 1 day 2 hours late", "No submission", "Graded: 23:59", ""])
def test_other_words_of_moodle_are_no_extension(status: str) -> None:
    assert notices(status) == ()


def test_an_extension_that_the_class_has_or_that_costs_nothing_is_no_news() -> None:
    granted = "Extension granted until: Sunday, 8 March 2026, 11:59 PM"
    assert notices(granted, f'{CLASS}[extensions]\n"Participant 17" = 2026-03-08T23:59:00\n') == ()
    assert notices(granted, CLASS.partition("[late]")[0]) == ()
    assert notices(granted.replace("8 March", "1 March"), CLASS) == ()


@pytest.mark.parametrize("status", ["Draft (not submitted)", "Entwurf (nicht abgegeben) - 1 Tag verspätet"])
def test_a_draft_that_is_graded_is_named(status: str) -> None:
    (notice,) = notices(status)
    assert "not handed in yet, and which are graded: Participant 17 (Ada Lovelace)." in notice
