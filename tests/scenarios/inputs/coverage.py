"""What of an input space the requests of gradings have had (`grader/shared/dimensions.py` declares spaces)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from gradebox.sandbox import Request
from grader.shared.dimensions import Space


@dataclass
class Coverage:
    """What of a space has been asked."""

    space: Space
    values: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    cases: int = 0

    def add(self, request: Request) -> None:
        """Count a request, if it is one to this space's probes."""
        if request.probe not in self.space.probes or not request.student:
            return
        for case in self.space.seen(request):
            self.cases += 1
            self.values |= case
            ordered = [f"{dimension.name}={value}" for dimension in self.space.dimensions for value in dimension.values]
            self.pairs |= set(itertools.combinations([name for name in ordered if name in case], 2))

    def missing_values(self) -> list[str]:
        """Values that no case had."""
        names = [f"{dimension.name}={value}" for dimension in self.space.dimensions for value in dimension.values]
        return [name for name in names if name not in self.values]

    def missing_pairs(self) -> list[tuple[str, str]]:
        """Pairs that must occur and did not."""
        return [pair for pair in self.space.pairs() if pair not in self.pairs]

    def idle_excuses(self) -> list[tuple[str, str]]:
        """Entries of `apart` that name two values which did meet, or none that there is."""
        known = {
            f"{dimension.name}={value}" for dimension in self.space.dimensions for value in (*dimension.values, "*")
        }
        return [
            pair
            for pair in self.space.apart
            if not set(pair) <= known or ("*" not in "".join(pair) and {pair, pair[::-1]} & self.pairs)
        ]
