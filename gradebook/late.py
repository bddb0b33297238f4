"""What lateness costs: the rules of a class, and the points that one submission loses by them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
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

    @property
    def deducts(self) -> bool:
        """Whether lateness can cost anything."""
        rates = (self.percent_per_day, self.percent_per_hour, self.points_per_day)
        return any(rates) or self.no_credit_after is not None

    def penalty(
        self, submitted_at: datetime, deadline: datetime, score: Decimal, max_score: Decimal
    ) -> LatePenalty | None:
        """What a submission with this score loses; None where it is not late."""
        late = submitted_at - deadline
        if late <= self.grace or late <= timedelta(0):
            return None
        if self.no_credit_after is not None and late > self.no_credit_after:
            rule = f"no credit after {_duration(self.no_credit_after)}"
            return LatePenalty(seconds_late=late.total_seconds(), points=score, rule=rule)
        lost, rule = self._lost(late, max_score)
        most = max_score * self.at_most_percent / 100
        if lost > most:
            lost, rule = most, f"{rule}, at most {points(self.at_most_percent)} %"
        lost = min(lost.quantize(_CENT, ROUND_DOWN), score)
        return LatePenalty(seconds_late=late.total_seconds(), points=lost, rule=rule)

    def _lost(self, late: timedelta, max_score: Decimal) -> tuple[Decimal, str]:
        if self.percent_per_hour:
            count = math.ceil(late / _HOUR)
            rate = self.percent_per_hour
            rule = f"{points(rate)} % of {points(max_score)} points per hour, {_count(count, 'hour')}"
            return max_score * rate * count / 100, rule
        count = math.ceil(late / _DAY)
        if self.points_per_day:
            return self.points_per_day * count, f"{points(self.points_per_day)} points per day, {_count(count, 'day')}"
        if rate := self.percent_per_day:
            rule = f"{points(rate)} % of {points(max_score)} points per day, {_count(count, 'day')}"
            return max_score * rate * count / 100, rule
        return Decimal(0), "late work loses nothing"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _duration(value: timedelta) -> str:
    hours = value / _HOUR
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"
