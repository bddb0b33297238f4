"""Faults of processes that run: injected on virtual GPUs and the CPU; nodes, processes and disks taken away."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.processes import Launcher, Started
from tests.cluster.sound import failures, outcomes

VIRTUAL = ("--device", "vgpu:T4", "--validation-only")
TRAINED = ("--device", "vgpu:T4", "--steps", "4")
CPU = ("--device", "cpu", "--validation-only")
NAMESPACE = ("unshare", "--map-root-user", "--user", "--mount", "sh", "-c")
NO_NAMESPACE = shutil.which("unshare") is None or bool(
    subprocess.run([*NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True).returncode
)
"""Whether no disk can be mounted here."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run with something broken."""

    what: str
    start: Callable[[Launcher], list[Started]]
    check: str
    """That has to fail, or where none can to be unverified; empty where there is nothing to judge."""
    subject: str
    """How the subject begins that it has to name; or what the output has to say."""
    verdict: str = "FAIL"
    exit_code: int = 1


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of it."""

    report: dict[str, Any]
    exit_code: int
    seconds: float
    left: int
    """Processes that still ran."""
    output: str

    @property
    def verdict(self) -> str:
        """Of the report."""
        return str(self.report["acceptance"]["status"])

    def named(self, case: Case) -> bool:
        """Whether the right one was named, and in that check no other one."""
        if not case.check:
            return case.subject in self.output
        checks = failures(self.report) or outcomes(self.report, "unverified")
        subjects = [subject for name, subject in checks if name == case.check]
        return bool(subjects) and all(subject.startswith(case.subject) for subject in subjects)


def run(case: Case, folder: Path) -> Seen:
    """Run it, wait for its end, count what is left."""
    launcher = Launcher(folder)
    try:
        began = time.monotonic()
        started = case.start(launcher)
        codes = [command.ended() for command in started]
        seconds = time.monotonic() - began
        time.sleep(0.5)  # for the kernel to take away whose parent has ended
        left = sum(len(command.alive()) for command in started)
        (path,) = list(folder.rglob("cluster_test_report.json"))
        return Seen(
            report=json.loads(path.read_text()), exit_code=codes[0], seconds=seconds, left=left,
            output="".join(command.output for command in started),
        )  # fmt: skip
    finally:
        launcher.end()


def injected(*words: str, device: tuple[str, ...] = VIRTUAL) -> Callable[[Launcher], list[Started]]:
    faults = [word for fault in words for word in ("--inject", fault)]
    return lambda launcher: [launcher.plain(*device, *faults)]


def signalled(number: signal.Signals, at: str) -> Callable[[Launcher], list[Started]]:
    def start(launcher: Launcher) -> list[Started]:
        started = launcher.plain(*CPU)
        started.wait_for(at)
        started.process.send_signal(number)
        return [started]

    return start


def node_gone(number: signal.Signals) -> Callable[[Launcher], list[Started]]:
    def start(launcher: Launcher) -> list[Started]:
        first, *others = launcher.nodes(3, *CPU)
        first.wait_for("... collectives")
        first.kill(number)
        return others

    return start


def torchrun_killed(launcher: Launcher) -> list[Started]:
    (node,) = launcher.nodes(1, *CPU)
    node.wait_for("... presence")
    node.process.kill()
    while node.alive():
        time.sleep(0.1)
    return [node]


def disk_full(launcher: Launcher) -> list[Started]:
    disk, other = launcher.folder / "disk", launcher.folder / "other"
    disk.mkdir()
    other.mkdir()
    script = f'mount -t tmpfs -o size=4k none {disk} && mkdir {disk}/reports && exec "$0" "$@"'
    words = (*CPU, "--report", f"{disk}/reports")
    return [launcher.plain(*words, before=(*NAMESPACE, script), TMPDIR=str(other))]


def refused(name: str, text: str, option: str) -> Callable[[Launcher], list[Started]]:
    def start(launcher: Launcher) -> list[Started]:
        path = launcher.folder / name
        path.write_text(text)
        return [launcher.plain(*CPU, option, str(path))]

    return start


CASES: tuple[Case, ...] = (
    Case(what="one wrong element of a product (virtual)", start=injected("wrong-result:1"), check="product float16: result", subject="GPU 1 "),
    Case(what="four times as slow (virtual)", start=injected("slow:1"), check="product float16: time against peers", subject="GPU 1 "),
    Case(what="slow in the backward pass only (virtual)", start=injected("slow-backward:1", device=TRAINED), check="training: pace of forward and backward", subject="GPU 1 "),
    Case(what="every third product takes four times as long (virtual)", start=injected("unsteady:1"), check="steadiness: products", subject="GPU 1 "),
    Case(what="a bit of memory and a gradient are wrong (virtual)", start=injected("bad-memory:0", "wrong-gradient:0"), check="gradient: before the all-reduce", subject="GPU 0 "),
    Case(what="a loss of NaN (virtual)", start=injected("nan:1", device=TRAINED), check="training: losses are numbers", subject="GPU 1 "),
    Case(what="out of memory (virtual)", start=injected("oom:1", device=TRAINED), check="training: runs", subject="GPU 1 "),
    Case(what="a dead rank and a lost GPU (virtual)", start=injected("dead:0", "lost:1", device=VIRTUAL), check="run: process", subject="GPU 0 "),
    Case(what="a rank that hangs (CPU)", start=injected("hung:1", device=(*CPU, "--ranks", "3", "--stage-seconds", "120")), check="run: process", subject="rank 1,"),
    Case(what="a rank that leaves a collective out (CPU)", start=injected("skips:1", device=(*CPU, "--ranks", "3", "--stage-seconds", "120")), check="run: process", subject="rank 1,"),
    Case(what="the node of the store is killed (three torchruns)", start=node_gone(signal.SIGKILL), check="run: node", subject="node node0"),
    Case(what="the node of the store goes silent (three torchruns)", start=node_gone(signal.SIGSTOP), check="run: node", subject="node node0"),
    Case(what="torchrun is killed", start=torchrun_killed, check="run: process", subject="rank 0,", verdict="INCOMPLETE", exit_code=-9),
    Case(what="SIGTERM, as from Slurm or Kubernetes", start=signalled(signal.SIGTERM, "... compute"), check="run: process", subject="rank ", verdict="INCOMPLETE", exit_code=3),
    *((Case(what="the disk is full", start=disk_full, check="", subject="No space left on device", verdict="INCOMPLETE", exit_code=4),) if not NO_NAMESPACE else ()),
    Case(what="a baseline without figures", start=refused("then.json", '{"performance": {"collectives": []}, "device_name": null, "simulated": false, "world_size": 2}', "--baseline"), check="", subject="it is damaged", verdict="COULD NOT RUN", exit_code=2),
    Case(what="a mistake in the file of --expect", start=refused("x.toml", "[gpu]\nmemroy_gib = 80", "--expect"), check="", subject="did you mean 'memory_gib'", verdict="COULD NOT RUN", exit_code=2),
)  # fmt: skip
