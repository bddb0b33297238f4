"""`python -m tests.cluster.faults.table`: goes through all faults and writes docs/acceptance-faults.md."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.cluster.faults import running
from tests.cluster.faults.measured import FAULTS, judged
from tests.cluster.sound import outcomes

PAGE = Path(__file__).parents[3] / "docs" / "acceptance-faults.md"
COMMAND = "python -m tests.cluster.faults.table"
HEAD = """# Faults that the acceptance test finds

Written by `{command}` on {date} with torch {torch}, Python {python}; do not edit it by hand. {count} faults, {found} of
them found and named rightly; verdicts: {verdicts}. `tests/cluster/test_faults.py` holds every one of them to what it says here.

## As workers would tell of them

The records of a sound machine (eight H100s in a node, or four nodes of two with InfiniBand) with one thing changed, through
the whole judge: no real GPU was broken for it. Seconds are the judge's.

| fault | the check that finds it | named | verdict | exit code | seconds |
|---|---|---|---|---:|---:|
"""
RUNNING = """
## In processes that run

Injected with `--inject` on two virtual T4s, on the CPU, or by taking processes, nodes (torchruns on one machine) and a disk
away. Seconds until the end, imports of PyTorch and the time before the fault included{load}; then how many processes were
left. An exit code of -9 is torchrun's, which was killed; torchrun itself makes 1 of every code but 0.

| fault | the check that finds it | named | verdict | exit code | seconds | left running |
|---|---|---|---|---:|---:|---:|
"""
LATER = " (thought of afterwards)"
MOST_NAMES = 2


def main() -> int:
    """Write the page; returns 1 where a fault was not found or not named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    out = parser.parse_args().out
    rows, wrong, verdicts = [], [], []
    for fault in FAULTS:
        began = time.perf_counter()
        report = judged(fault)
        seconds = time.perf_counter() - began
        verdict = report["acceptance"]["status"]
        checks = outcomes(report, "fail" if verdict == "FAIL" else "unverified")
        named = [subject for name, subject in checks if name == fault.check]
        verdicts.append(verdict)
        if (verdict, named) != (fault.verdict, list(fault.named)):
            wrong.append(fault.what)
        # The later ones say so in the column of the check, so that the fault itself stays what the test calls it.
        check = fault.check + (LATER if fault.later else "")
        code = report["acceptance"]["exit_code"]
        rows.append(f"| {fault.what} | {check} | {_shown(named)} | {verdict} | {code} | {seconds:.2f} |")
    ran = list(_ran(wrong, verdicts))
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    text = HEAD.format(
        command=COMMAND, date=datetime.now(UTC).date(), torch=torch.__version__, python=platform.python_version(),
        count=len(verdicts), found=len(verdicts) - len(wrong), verdicts=counts,
    )  # fmt: skip
    load = ", on a machine of two cores with other work"
    out.write_text(text + "\n".join(rows) + "\n" + RUNNING.format(load=load) + "\n".join(ran) + "\n", encoding="utf-8")
    print(f"wrote {out}: {counts}; not as they should be: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _ran(wrong: list[str], verdicts: list[str]) -> Iterator[str]:
    for case in running.CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = running.run(case, Path(folder))
            except AssertionError as error:
                print(f"{case.what}: {error}", file=sys.stderr, flush=True)
                wrong.append(case.what)
                continue
        print(f"{case.what}: {run.verdict}, {run.seconds:.0f} s", file=sys.stderr, flush=True)
        verdicts.append(run.verdict)
        if (run.verdict, run.exit_code, run.left) != (case.verdict, case.exit_code, 0) or not run.named(case):
            wrong.append(case.what)
        checks = outcomes(run.report, "fail") or outcomes(run.report, "unverified")
        named = [subject for name, subject in checks if name == case.check]
        shown = _shown(named) if case.check else f"says: {case.subject}"
        yield (
            f"| {case.what} | {case.check or 'before or after the judge'} | {shown} | {run.verdict} | {run.exit_code} "
            f"| {run.seconds:.0f} | {run.left} |"
        )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


if __name__ == "__main__":
    raise SystemExit(main())
