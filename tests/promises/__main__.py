"""`python -m tests.promises [--lab lab2] [--write]`: what the ledgers of promises lack, and their new sentences.

Not for judging whether a check really asks what the ledger says: planted bugs do (`tests/scenarios/`).
"""

from __future__ import annotations

import argparse
import sys

import grader
from tests.promises import ledger


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description="The ledgers of promises.")
    parser.add_argument("--lab", help="one lab, for example lab2")
    parser.add_argument("--write", action="store_true", help="put the ledger in order; new sentences have no check yet")
    options = parser.parse_args()
    found = 0
    for lab in [options.lab] if options.lab else [lab.id for lab in grader.course().all_labs]:
        if options.write:
            ledger.file_of(lab).write_text(ledger.text_of(lab), encoding="utf-8")
        for problem in ledger.problems(lab):
            found += 1
            print(f"{lab}: {problem}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
