"""Jobs for tests of the queue; what they do is in their names. Imported by the worker as well."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.on_a_gpu.job import Finding, Job

if TYPE_CHECKING:
    from benchmarks.on_a_gpu.worker import Tools

DEPENDS = ("benchmarks/on_a_gpu/job.py",)
CASES = 10


def note(tools: Tools, name: str) -> None:
    """Leave a trace of every run."""
    with Path(tools.folder, "runs.txt").open("a") as file:
        file.write(f"{name}\n")


def succeed(tools: Tools, *, name: str, seconds: float = 0.0) -> Finding:
    note(tools, name)
    time.sleep(seconds)
    return Finding(True, f"{name} done", {"value": 1})


def fail(tools: Tools) -> Finding:
    note(tools, "fails")
    return Finding(False, "19 of 20")


def raise_error(tools: Tools) -> Finding:
    note(tools, "raises")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def hang(tools: Tools) -> Finding:
    note(tools, "hangs")
    time.sleep(600)
    return Finding(True, "never")


def die(tools: Tools) -> Finding:
    note(tools, "dies")
    os.kill(os.getpid(), signal.SIGKILL)
    return Finding(True, "never")


def measure(tools: Tools) -> Finding:
    """Two cases a time of ten."""
    note(tools, "measures")
    numbers = range(len(tools.known), min(CASES, len(tools.known) + 2))
    entries = [{"id": f"case-{number}", "seconds": 1e-6} for number in numbers]
    done = len(tools.known) + len(entries)
    return Finding(True, f"{len(entries)} measured", {"entries": entries}, complete=done >= CASES)


def job(name: str, run: partial[Finding] | object, seconds: float = 0.1, **options: object) -> Job:
    return Job(name, name.capitalize(), "a", seconds, DEPENDS, run, **options)  # type: ignore[arg-type]


FIRST = job("first", partial(succeed, name="first"))
SECOND = job("second", partial(succeed, name="second"))
LONG = job("long", partial(succeed, name="long"), seconds=1000)
SLOW = job("slow", partial(succeed, name="slow", seconds=2.0), seconds=0.5)
FAILS = job("fails", fail)
RAISES = job("raises", raise_error)
HANGS = job("hangs", hang)
DIES = job("dies", die)
MEASURES = job("measures", measure, is_elastic=True, shortest=0.1, share=1.0)
JOBS = (FIRST, SECOND, LONG, SLOW, FAILS, RAISES, HANGS, DIES, MEASURES)
