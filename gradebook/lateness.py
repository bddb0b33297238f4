"""What lateness costs: by how much a submission is late, by the course's clock, and what that takes away.

Not for when something was handed in (`intake/times.py`), nor for whose deadline is which (`settings.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_DOWN, Decimal

from gradebox.report.document import points
from gradebox.run.grade import LatePenalty

_CENT = Decimal("0.01")
_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class LateRules:
    """Percentages are of the points that can be earned, as in Canvas, and each begun day or hour counts whole.

    At most one of the three rates is set. Without any, lateness is shown and costs nothing.
    """

    grace: timedelta = timedelta(0)
    """So late is not late; whoever is later counts from the deadline."""
    percent_per_day: Decimal = Decimal(0)
    percent_per_hour: Decimal = Decimal(0)
    points_per_day: Decimal = Decimal(0)
    at_most_percent: Decimal = Decimal(100)
    """No penalty takes more than this."""
    no_credit_after: timedelta | None = None
    """From then on everything is lost, whatever `at_most_percent` says."""
    zone: tzinfo | None = None
    """Whose clock counts days: one has 25 hours when summer time ends. None: that of deadline and submission."""

    @property
    def deducts(self) -> bool:
        """Whether lateness can cost anything."""
        rates = (self.percent_per_day, self.percent_per_hour, self.points_per_day)
        return any(rates) or self.no_credit_after is not None

    def penalty(
        self, submitted_at: datetime, deadline: datetime, score: Decimal, max_score: Decimal
    ) -> LatePenalty | None:
        """What a submission with this score loses; None where it is not late."""
        late = submitted_at.astimezone(UTC) - deadline.astimezone(UTC)
        if submitted_at <= end_of_minute(deadline) + self.grace:
            return None
        by_clock = self._by_clock(submitted_at, deadline)
        if self.no_credit_after is not None and by_clock > self.no_credit_after:
            rule = f"no credit after {_duration(self.no_credit_after)}"
            return LatePenalty(seconds_late=late.total_seconds(), points=score, rule=rule)
        lost, rule = self._lost(late, by_clock, max_score)
        most = max_score * self.at_most_percent / 100
        if lost > most:
            lost, rule = most, f"{rule}, at most {points(self.at_most_percent)} %"
        if self.grace and lost:
            rule = f"{rule}; from the deadline on, because the grace of {_duration(self.grace)} is over"
        lost = min(lost.quantize(_CENT, ROUND_DOWN), score)
        return LatePenalty(seconds_late=late.total_seconds(), points=lost, rule=rule)

    def _by_clock(self, submitted_at: datetime, deadline: datetime) -> timedelta:
        """How late it is by the course's wall clock."""
        if self.zone is not None:  # in one zone Python subtracts wall clocks
            return submitted_at.astimezone(self.zone) - deadline.astimezone(self.zone)
        late = submitted_at.astimezone(UTC) - deadline.astimezone(UTC)
        own, other = submitted_at.utcoffset() or timedelta(0), deadline.utcoffset() or timedelta(0)
        # One clock, before and after it changed; UTC, as platforms say it, is no clock.
        return late + (own - other) if own and abs(own - other) == _HOUR else late

    def _lost(self, late: timedelta, by_clock: timedelta, max_score: Decimal) -> tuple[Decimal, str]:
        if self.percent_per_hour:
            count = math.ceil(late / _HOUR)
            rate = self.percent_per_hour
            rule = f"{points(rate)} % of {points(max_score)} points per hour, {_count(count, 'hour')}"
            return max_score * rate * count / 100, rule
        count = max(1, math.ceil(by_clock / _DAY))
        days = f"{_count(count, 'day')}{' by the clock' if count != math.ceil(late / _DAY) else ''}"
        if self.points_per_day:
            return self.points_per_day * count, f"{points(self.points_per_day)} points per day, {days}"
        if rate := self.percent_per_day:
            rule = f"{points(rate)} % of {points(max_score)} points per day, {days}"
            return max_score * rate * count / 100, rule
        return Decimal(0), "late work loses nothing"


def end_of_minute(deadline: datetime) -> datetime:
    """The last moment in time, in UTC: a deadline of 23:59 ends with its minute, as everybody reads it.

    One that names seconds ends with that second.
    """
    rest = timedelta(seconds=60 if not deadline.second else 1) - timedelta(microseconds=deadline.microsecond + 1)
    return deadline.astimezone(UTC) + rest


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _duration(value: timedelta) -> str:
    if value < _HOUR:
        return _count(round(value.total_seconds() / 60), "minute")
    hours = value / _HOUR
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"


def deduction(lost: Decimal) -> str:
    """What a penalty takes away, for people: `1 point deducted`."""
    return f"{points(lost)} point{'' if lost == 1 else 's'} deducted"
