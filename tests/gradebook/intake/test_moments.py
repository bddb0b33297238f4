"""Moments as platforms, spreadsheets and people write them are read for certain, or not at all."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gradebook.intake import moments

BERLIN = ZoneInfo("Europe/Berlin")
EVENING = datetime(2026, 3, 5, 23, 59)
WEST = timezone(timedelta(hours=-8))

READ = (
    # Moodle's `strftimedaydatetime` in each of its languages
    "Thursday, 5 March 2026, 11:59 PM", "dijous, 5 de març 2026, 23:59", "Donnerstag, 5. März 2026, 23:59",
    "Πέμπτη, 5 Μαρτίου 2026, 11:59 PM", "jueves, 5 de marzo de 2026, 23:59", "xoves, 5 de marzo de 2026, 11:59 PM",
    "osteguna, 2026(e)ko martxoaren 5(e)an, 23:59(e)tan", "jeudi 5 mars 2026, 23:59", "giovedì, 5 marzo 2026, 23:59",
    "2026年 03月 5日(木曜日) 23:59", "2026年03月5日 星期四 23:59", "donderdag, 5 maart 2026, 23:59",
    "quinta, 5 de março de 2026 às 23:59", "joi, 5 martie 2026, 23:59", "четверг, 5 марта 2026, 23:59",
    "torsdag, 5 mars 2026, 23:59", "Perşembe, 5 Mart 2026, 11:59 PM", "четвер 5 березня 2026 23:59 ",
    "quinta, 5 mar. 2026, 23:59", "czwartek, 5 marca 2026, 23:59",
    # other platforms, Git, spreadsheets
    "Mar 5, 2026 11:59 PM", "March 5, 2026 at 11:59:00 p.m.", "5.3.2026 23:59", "05.03.2026, 23:59:00",
    "2026/03/05 23:59",
    "2026-03-05 23.59", "5 Mar 2026 11.59 PM", "Thursday, March 5, 2026 11:59:00 PM CET", "2026-03-05T23:59",
    "2026-03-05T22:59:00.250Z", "2026-03-05 22:59:00 UTC", "Thu Mar 5 23:59:00 2026 +0100", "2026-03-05 14:59 -0800",
    "1772751540", "5 Mar 2026, 11:59 p. m.", "2026-03-05 11:59 (PM)", "2026-03-05 14:59 GMT-8",
    "2026-03-05T14:59:00-08", "1772751540000", "Thu Mar 05 2026 23:59:00 GMT+0100 (Central European Standard Time)",
    "\uff12\uff10\uff12\uff16\uff0d\uff10\uff13\uff0d\uff10\uff15 \uff12\uff13\uff1a\uff15\uff19",
)  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_one_moment_in_many_spellings(text: str) -> None:
    assert moments.parse(text, BERLIN) == EVENING.replace(tzinfo=BERLIN)


@pytest.mark.parametrize(
    "text",
    [
        *("5/3/2026 23:59", "3/5/2026, 11:59 PM", "31 February 2026, 10:00", "31.2.2026 10:00", "2026-03-05", "23:59"),
        *("5/3/26 23:59", "March 2026, 23:59", "5 March 2026, 24:00", "5 March 6 April 2026, 10:00", "soon", ""),
        *("5 March 2026, 10:00 until 11:00", "Thu, 5 March 2026 23:59 PST", "1 2 March 2026 10:00", "2026-02-30T10:00"),
        # other zones, and words that may say which half of the day it is
        *(
            "2026-03-05 23:59 HST",
            "2026-03-05 23:59 America/New_York",
            "Mar 5, 2026 11:59 PM Eastern Time",
            "5.3.2026 23:59 -5",
        ),
        *("Thu Mar 5 23:59:00 EST 2026", "Mar 5, 2026 11:59 PM PT", "5 Mar 2026 11:59 CH", "5.3.2026 11.59 ip."),
    ],
)
def test_what_is_not_certain_is_not_guessed(text: str) -> None:
    assert moments.parse(text, BERLIN) is None


def test_a_day_of_which_nobody_knows_the_month_is_told_apart() -> None:
    assert [moments.is_ambiguous(f"{day}/2026 10:00") for day in ("5/3", "3/5", "5/5", "13/3", "3/13")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert moments.parse("3/13/2026 11:59 PM", BERLIN) == datetime(2026, 3, 13, 23, 59, tzinfo=BERLIN)


def test_a_moment_without_a_zone_needs_the_courses() -> None:
    assert moments.parse("5 March 2026 23:59", None) is None
    assert moments.parse("5 March 2026 23:59 -0800", None) == EVENING.replace(tzinfo=WEST)
    assert moments.parse("12 March 2026 12:05 AM", WEST) == datetime(2026, 3, 12, 0, 5, tzinfo=WEST)
