"""`python -m tests.requirements [--lab lab2] [--write]`: what `requirements.toml` of each lab lacks.

Not for judging whether a check really asks what an entry says: planted bugs do (`tests/scenarios/`).
"""

from __future__ import annotations

import argparse
import sys

import grader
from tests.requirements import entries


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description="What is required of a student.")
    parser.add_argument("--lab", help="one lab, for example lab2")
    parser.add_argument("--write", action="store_true", help="put them in order; new sentences have no check yet")
    options = parser.parse_args()
    problems = []
    for lab in [options.lab] if options.lab else [lab.id for lab in grader.course().all_labs]:
        if options.write:
            entries.file_of(lab).write_text(entries.text_of(lab), encoding="utf-8")
        problems += [f"{lab}: {problem}" for problem in entries.problems(lab)]
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
