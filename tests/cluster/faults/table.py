"""`python -m tests.cluster.faults.table`: goes through all faults and records `benchmarks/results/acceptance_faults.json`.

The site makes its page from that file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, save
from tests.cluster.faults import running
from tests.cluster.faults.measured import FAULTS, Fault, judged
from tests.cluster.sound import outcomes

COMMAND = "python -m tests.cluster.faults.table"


def main() -> int:
    """Record every fault; returns 1 if one was not found or not named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", action="store_true", help="of the runs, only those that are not recorded yet")
    recorded: dict[str, dict[str, object]] = {}
    if parser.parse_args().new:
        kept = json.loads((RESULTS / "acceptance_faults.json").read_text())
        recorded = {row["what"]: row for row in kept["runs"] if row["what"] not in kept["wrong"]}
    wrong: list[str] = []
    records = [_record(fault, wrong) for fault in FAULTS]
    made = {row["what"]: row for row in _runs([case for case in running.CASES if case.what not in recorded], wrong)}
    runs = [row for case in running.CASES if (row := made.get(case.what) or recorded.get(case.what)) is not None]
    verdicts = Counter(entry["verdict"] for entry in (*records, *runs))
    path = save("acceptance_faults", {"wrong": wrong, "records": records, "runs": runs})
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    print(f"wrote {path}: {counts}; not as they should be: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _record(fault: Fault, wrong: list[str]) -> dict[str, object]:
    began = time.perf_counter()
    report = judged(fault)
    seconds = time.perf_counter() - began
    verdict = report["acceptance"]["status"]
    named = _named(report, "fail" if verdict == "FAIL" else "unverified", fault.check)
    if (verdict, named) != (fault.verdict, list(fault.named)):
        wrong.append(fault.what)
    return {
        "what": fault.what, "check": fault.check, "later": fault.later, "named": named, "verdict": verdict,
        "exit_code": report["acceptance"]["exit_code"], "seconds": round(seconds, 2),
    }  # fmt: skip


def _runs(cases: Sequence[running.Case], wrong: list[str]) -> Iterator[dict[str, object]]:
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = running.run(case, Path(folder))
            except AssertionError as error:
                print(f"{case.what}: {error}", file=sys.stderr, flush=True)
                wrong.append(case.what)
                continue
        print(f"{case.what}: {run.verdict}, {run.seconds:.0f} s", file=sys.stderr, flush=True)
        if (run.verdict, run.exit_code, run.left) != (case.verdict, case.exit_code, 0) or not run.named(case):
            wrong.append(case.what)
        named = _named(run.report, "fail", case.check) or _named(run.report, "unverified", case.check)
        yield {
            "what": case.what, "check": case.check, "named": named if case.check else [f"says: {case.subject}"],
            "verdict": run.verdict, "exit_code": run.exit_code, "seconds": round(run.seconds), "left": run.left,
        }  # fmt: skip


def _named(report: Mapping[str, Any], outcome: str, check: str) -> list[str]:
    return [subject for name, subject in outcomes(report, outcome) if name == check]


if __name__ == "__main__":
    raise SystemExit(main())
