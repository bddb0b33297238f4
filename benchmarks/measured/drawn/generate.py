"""`python -m benchmarks.measured.drawn.generate` writes `cases.jsonl`, always the same.

A case keeps its id only if nothing before it in its family changes. So append new cases to a family, or add a family:
results of earlier visits to a GPU name cases by id.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from benchmarks.measured.drawn.case import Case
from benchmarks.measured.drawn.cases import FILE
from benchmarks.measured.drawn.families import FAMILIES

_SEED = 2026


def cases() -> Iterator[Case]:
    """All cases, drawn."""
    for family in FAMILIES.values():
        rng = random.Random(f"{_SEED} {family.name}")
        for number, (precision, parameters) in enumerate(family.draw(rng)):
            yield Case(f"{family.name}-{number:04}", family.name, precision, parameters)


def text() -> str:
    """What `cases.jsonl` must hold."""
    return "".join(json.dumps(case.document(), separators=(",", ":")) + "\n" for case in cases())


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
