"""`excused.toml`: mutants that nobody need notice, because nothing changes or nothing was promised, with the reason.

[[excuse]]
file = "lab1_gpu_basics/.*"        # regular expressions, each of the whole; what is left out is anything
function = "plot_.*"
kind = "argument not given"
change = ".*color=.* -> "
reason = "looks of a plot: nothing is promised"
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutators import Mutant

FILE = Path(__file__).parent / "excused.toml"
_KEYS = ("file", "function", "kind", "change")


@dataclass(frozen=True)
class Excuse:
    """A reason, and the mutants that have it."""

    reason: str
    patterns: tuple[tuple[str, re.Pattern[str]], ...]

    def holds_for(self, mutant: Mutant) -> bool:
        values = {
            "file": mutant.file, "function": mutant.function, "kind": mutant.kind,
            "change": mutant.key.partition(": ")[2],
        }  # fmt: skip
        return all(pattern.fullmatch(values[name]) for name, pattern in self.patterns)


def load(file: Path = FILE) -> list[Excuse]:
    """The excuses of a file.

    Raises:
        ValueError: an entry has an unknown key, no reason, or nothing that it is for.
    """
    excuses = []
    for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("excuse", []):
        patterns = tuple((name, re.compile(entry[name])) for name in _KEYS if name in entry)
        if set(entry) - {*_KEYS, "reason"} or len(entry.get("reason", "")) < 8 or not patterns:
            raise ValueError(f"{file}: an excuse has a reason and some of {', '.join(_KEYS)}; got {entry}")
        excuses.append(Excuse(entry["reason"], patterns))
    return excuses
