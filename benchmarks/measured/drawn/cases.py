"""The list of all drawn cases, which `generate` writes."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measured.drawn.case import Case

FILE = Path(__file__).with_name("cases.jsonl")


def load() -> list[Case]:
    """All cases of the file, in its order."""
    return [Case(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]
