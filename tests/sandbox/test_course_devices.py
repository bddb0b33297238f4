"""A course may bring a simulator that the engine has never heard of, and it is guarded as the virtual GPU is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradebox.sandbox import Reply, Request, Sandbox, templates
from gradebox.sandbox.types import Environment
from tests.sandbox.sandbox_runs import templates_of

FILES = {
    "abacus/__init__.py": '''"""A simulated abacus."""

import sys


class TooLarge(Exception):
    pass


class Abacus:
    def __init__(self):
        self.moves = 0

    def add(self, left, right):
        if left + right > 100:
            raise TooLarge("this abacus ends at 100")
        self.moves += 1
        return left + right

    def counted(self):
        sys.audit("abacus.record", "its moves")
        return self.moves


attached = None
''',
    "arithmetic/__init__.py": "",
    "arithmetic/devices.py": '''"""What submissions of this course run on."""

import contextlib
import sys

from gradebox.sandbox.devices import *  # what the CPU needs
from gradebox.sandbox.devices import Device, Simulator

SIMULATOR = Simulator(
    package="abacus", title="the abacus", unsupported="TooLarge", record_event="abacus.record",
    launch_event="abacus.launch", asked=frozenset({"counted"}), instruments={}, entries={}, engine=(),
    recorder="abacus", broken_event="abacus.broken", generators={},
)
CLASSES = {}
EXCHANGED = frozenset()
INSTRUMENTS = {"math": ("gcd",)}


def parse(option):
    return Device("abacus", "an abacus", simulated=True)


def prepares(device):
    return device if device.startswith("abacus") else ""


def serves(device):
    return False


def prepare(what):
    import abacus

    return abacus.Abacus()


@contextlib.contextmanager
def attach(device, *, values, ranks, prepared, line):
    import abacus

    abacus.attached = prepared
    yield prepared


def parts(gpu):
    return {"the abacus itself": (sys.modules["abacus"].attached,)}
''',
    "arithmetic/lab1/__init__.py": "",
    "arithmetic/lab1/sums/__init__.py": "",
    "arithmetic/lab1/sums/probes.py": '''"""Asks for a sum."""


def total(student, *, function, left, right):
    value = getattr(student.module("lab1_sums.sums"), function)(left, right)
    return {"sum": value, "moves": student.gpu.counted(), "device": student.device}
''',
    "ada/lab1_sums/sums.py": '''"""Sums."""

import math

import abacus


def honest(left, right):
    return abacus.attached.add(left, right)


def peeking(left, right):
    honest(left, right)
    return left + right + 0 * abacus.attached.counted()


def replacing(left, right):
    abacus.attached = abacus.Abacus()
    return honest(left, right)


def patching(left, right):
    abacus.Abacus.add = lambda self, left, right: left + right
    return honest(left, right)


def patching_the_library(left, right):
    math.gcd = lambda *numbers: 1
    return honest(left, right)


def pretending(left, right):
    raise abacus.TooLarge("so I say")
''',
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Ada's sums, on the abacus."""
    folder = tmp_path_factory.mktemp("course")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    course = Environment(
        labs=("lab1",),
        preload=("numpy", "math", "abacus", "arithmetic.lab1.sums.probes"),
        importable=("abacus",),
        course="arithmetic",
        course_parent=str(folder),
        devices="arithmetic.devices",
    )
    sys.path.append(str(folder))
    with Sandbox(Path(folder, "ada"), course) as entered:
        yield entered
    sys.path.remove(str(folder))


def _asked(sandbox: Sandbox, function: str, left: int = 3, right: int = 4, device: str = "abacus") -> Reply:
    params = {"function": function, "left": left, "right": right}
    return sandbox.run(Request("lab1.sums.total", params=params, device=device))


def test_a_probe_may_read_the_record_and_every_request_has_a_fresh_device(sandbox: Sandbox) -> None:
    for _ in range(2):
        reply = _asked(sandbox, "honest")
        assert reply.value == {"sum": 7, "moves": 1, "device": "cpu"}, reply.first.traceback
        assert reply.notes == ()


def test_of_many_that_are_prepared_a_few_are_kept_and_the_least_used_ends(sandbox: Sandbox) -> None:
    _asked(sandbox, "honest")
    _asked(sandbox, "honest")
    for number in range(templates.KEPT + 2):
        assert _asked(sandbox, "honest", device=f"abacus-{number}").value["moves"] == 1
        assert len(templates_of(sandbox)) <= templates.KEPT
    kept = templates_of(sandbox)
    assert len(kept) == templates.KEPT
    assert _asked(sandbox, "honest").value["moves"] == 1
    assert templates_of(sandbox) == kept, "the one that was used twice is among them"


def test_a_submission_may_not(sandbox: Sandbox) -> None:
    reply = _asked(sandbox, "peeking")
    assert (reply.kind, reply.message) == ("tampered", "the abacus's record of its moves")
    assert [note.where for note in reply.notes if note.kind == "tampering"]


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("replacing", "the abacus itself"),
        ("patching", "abacus.Abacus.add"),
        ("patching_the_library", "math.gcd"),
    ],
)
def test_what_it_measures_with_stays(sandbox: Sandbox, function: str, named: str) -> None:
    reply = _asked(sandbox, function)
    assert reply.kind == "tampered"
    assert named in reply.message


def test_what_the_simulator_cannot_do_is_nobodys_fault_unless_somebody_says_so_himself(sandbox: Sandbox) -> None:
    assert _asked(sandbox, "honest", 60, 70).kind == "unsupported"
    assert _asked(sandbox, "pretending").kind == "error"
