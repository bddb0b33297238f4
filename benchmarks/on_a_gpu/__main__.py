"""`python3 -m benchmarks.on_a_gpu --minutes 12 --out DIR`, on a machine with an NVIDIA GPU."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import grader
from benchmarks.on_a_gpu import results, table
from benchmarks.on_a_gpu.job import ROOT, Job
from benchmarks.on_a_gpu.jobs import JOBS
from benchmarks.on_a_gpu.results import Results, ResultsError
from benchmarks.on_a_gpu.schedule import Visit
from gradebox.sandbox.devices import Device, DeviceError, parse

COULD_NOT_RUN, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the queue, or take results over; the exit code: 0, 1 (a verdict is not good), 2 (could not run), 130."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.take is not None:
            return _take(chosen.take, chosen.results)
        jobs = _chosen(chosen.only)
        device = parse("cuda", grader.course().devices)
        known = Results(chosen.results, results.card_of(device.label))
        if chosen.list:
            return _list(jobs, known)
        return _visit(chosen, jobs, device, known)
    except (DeviceError, ResultsError, ValueError) as error:
        sys.stderr.write(f"could not run: {error}\n")
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was finished is written. The same command goes on from there\n")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.on_a_gpu",
        description="What only a real GPU can show: jobs in the order of their value, as many as there is time for. "
        "Exit codes: 0 all verdicts of this run are good, 1 one is not, 2 could not run, 130 stopped.",
    )
    parser.add_argument("--minutes", type=float, default=12.0, help="when it must be over (default: 12)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the results there as well, after every job")
    parser.add_argument("--only", metavar="NAME,...", help="only these jobs; * stands for anything: bug-lab1.*")
    parser.add_argument("--list", action="store_true", help="show the jobs and what is known of them, run nothing")
    parser.add_argument("--take", type=Path, metavar="DIR", help="take the results of another machine over from DIR")
    parser.add_argument(
        "--results", type=Path, default=results.FOLDER, metavar="DIR", help="where results are kept (default: here)"
    )
    # Of a rehearsal: where the stand-in for CUDA is, and how much slower a CPU may be.
    parser.add_argument("--program-path", default="", help=argparse.SUPPRESS)
    parser.add_argument("--slowness", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser


def _chosen(only: str | None) -> list[Job]:
    """The jobs of these names.

    Raises:
        ValueError: a name fits none.
    """
    if only is None:
        return list(JOBS)
    matching = []
    for pattern in only.split(","):
        fitting = [job for job in JOBS if fnmatch.fnmatchcase(job.name, pattern.strip())]
        if not fitting:
            raise ValueError(f"--only {pattern}: no job has this name; --list shows them")
        matching += fitting
    return [job for job in JOBS if job in matching]


def _visit(chosen: argparse.Namespace, jobs: Sequence[Job], device: Device, known: Results) -> int:
    if not chosen.minutes > 0:
        raise ValueError(f"--minutes {chosen.minutes:g}: expected more than 0")
    signal.signal(signal.SIGTERM, _interrupt)
    print(f"on {device.label}: {len(jobs)} jobs, {chosen.minutes:g} minutes", flush=True)
    visit = Visit(
        results=known,
        jobs=jobs,
        ends=time.monotonic() + 60 * chosen.minutes,
        folder=ROOT / "build" / "on_a_gpu",
        out=chosen.out,
        program_path=chosen.program_path,
        slowness=chosen.slowness,
        say=lambda text: print(text, flush=True),
    )
    good = visit.run()
    return 0 if good else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _list(jobs: Sequence[Job], known: Results) -> int:
    for job in jobs:
        entry = known.jobs.get(job.name)
        state = "open" if entry is None else f"{entry['outcome']}: {entry['summary']}"
        if entry is not None and not known.is_known(job):
            state += " (to be done again or to go on)"
        print(f"{job.group}  {job.name:55} {known.seconds_of(job):5.0f} s  {state}")
    return 0


def _take(source: Path, folder: Path) -> int:
    for card, count in results.merge(source, folder).items():
        print(f"{card}: {count} new")
    if folder == results.FOLDER:
        print(f"wrote {table.write().relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
