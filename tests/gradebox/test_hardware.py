"""A real device: who measures has it alone, nobody loses points for what others did to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradebox.run.device_lock import DeviceLock
from gradebox.run.device_steadiness import problem
from gradebox.run.device_use import DeviceUse
from gradebox.run.grade import Grade, Outcome
from gradebox.run.grading import run
from gradebox.sandbox import RankReply, Reply, Request, devices
from gradebox.sandbox.devices import CPU, Device
from gradebox.sandbox.measuring import measured_by, measures
from tests.gradebox.small_course import NUMBERS, NUMBERS_PROBES, SUMS_PROBES, write_course, write_submission
from tests.gradebox.test_run import order, outcomes

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

MEASURING = '@measures("time")\ndef product('
HOLDER = """
import sys, time
from gradebox.run.device_lock import DeviceLock
with DeviceLock(sys.argv[1]).held(alone=True):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A piece of hardware that no other test uses; its lock goes with the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return f"test-{os.getpid()}-{time.monotonic_ns()}"


def _get(hardware: str, *, alone: bool) -> bool:
    """Whether the lock can be had at once."""
    turn = DeviceLock(hardware).held(alone=alone, abandoned=lambda: True)
    try:
        with turn:
            return True
    except InterruptedError:
        return False


def test_requests_that_measure_nothing_share_a_device(hardware: str) -> None:
    with DeviceLock(hardware).held(alone=False):
        assert _get(hardware, alone=False)
        assert not _get(hardware, alone=True)


def test_who_measures_has_it_alone(hardware: str) -> None:
    with DeviceLock(hardware).held(alone=True):
        assert not _get(hardware, alone=False)
        assert not _get(hardware, alone=True)
    assert _get(hardware, alone=True)


def test_who_waits_to_measure_goes_before_those_who_come_later(hardware: str) -> None:
    order: list[str] = []

    def measure() -> None:
        with DeviceLock(hardware).held(alone=True):
            order.append("alone")

    with DeviceLock(hardware).held(alone=False):
        thread = threading.Thread(target=measure)
        thread.start()
        ends = time.monotonic() + 10
        while _get(hardware, alone=False):  # until it is at the door
            assert time.monotonic() < ends
        order.append("shared")
    thread.join()
    with DeviceLock(hardware).held(alone=False):
        order.append("later")
    assert order == ["shared", "alone", "later"]


def test_another_device_is_another_lock(hardware: str) -> None:
    with DeviceLock(hardware).held(alone=True):
        assert _get(f"{hardware}-other", alone=True)


def test_the_lock_holds_between_processes_and_ends_with_a_killed_one(hardware: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, hardware], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        assert not _get(hardware, alone=False)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert _get(hardware, alone=True)


def test_without_hardware_nothing_is_locked() -> None:
    with DeviceLock("").held(alone=True):
        assert _get("", alone=True)


# --- what probes declare ----------------------------------------------------------------------------------------------


def test_a_declaration_is_read_without_importing_the_probe(tmp_path: Path) -> None:
    criterion = tmp_path / "lab1" / "basics"
    criterion.mkdir(parents=True)
    (criterion / "probes.py").write_text(
        'import nothing_of_this_name\n\n@measures("time", "device memory")\ndef product(student): ...\n\n'
        "def power(student): ...\n"
    )
    assert measured_by(tmp_path, "lab1.basics.product") == {"time", "device memory"}
    assert measured_by(tmp_path, "lab1.basics.power") == frozenset()
    assert measured_by(tmp_path, "lab1.absent.product") == frozenset()


def test_a_declaration_names_what_is_measured() -> None:
    with pytest.raises(ValueError, match="names what is measured"):
        measures()


# --- gradings ---------------------------------------------------------------------------------------------------------


TIMED = """\
import functools
import time

from gradebox.sandbox.measuring import measures


def timed(probe):
    @functools.wraps(probe)
    def run(student, **inputs):
        begin = time.monotonic()
        time.sleep(0.15)
        return {**probe(student, **inputs), "begin": begin, "end": time.monotonic()}

    return run


"""


def _timed_course(tmp_path: Path) -> Path:
    """A course whose product measures, and whose other probes do not; each takes at least 0.15 s."""
    basics = TIMED + NUMBERS_PROBES.replace("def ", "@timed\ndef ").replace(
        "@timed\ndef product(", '@measures("time")\n@timed\ndef product('
    )
    further = TIMED + SUMS_PROBES.replace("def ", "@timed\ndef ")
    return write_course(
        tmp_path,
        ("basics/numbers/probes.py", NUMBERS_PROBES, basics),
        ("further/sums/probes.py", SUMS_PROBES, further),
    )


class Intervals(DeviceUse):
    """Keeps when each request ran, by its probe."""

    kept: list[tuple[str, float, float]]

    def run(self, request: Request, sandbox: Any) -> Any:
        answer = super().run(request, sandbox)
        value = answer.reply.ranks[0].value
        self.kept.append((request.probe, value["begin"], value["end"]))
        return answer


def test_nothing_overlaps_a_request_that_measures_and_all_others_do(
    tmp_path: Path, hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Intervals.kept = []
    monkeypatch.setattr("gradebox.run.grading.DeviceUse", Intervals)
    request = order(_timed_course(tmp_path), write_submission(tmp_path), jobs=3)
    grade = run(replace(request, device=Device(CPU, "CPU", hardware=hardware)))
    assert set(outcomes(grade).values()) == {"passed"}
    measured = [interval for interval in Intervals.kept if interval[0] == "basics.numbers.product"]
    others = [interval for interval in Intervals.kept if interval not in measured]
    assert len(measured) == 1
    assert len(others) >= 3
    for _, begin, end in measured:
        assert all(until <= begin or end <= since for _, since, until in others)
    assert any(a[1] < b[2] and b[1] < a[2] for a in others for b in others if a is not b)


def _failing(tmp_path: Path, hardware: str) -> tuple[Any, Path]:
    """An order to grade a submission whose product, which is measured, is wrong at first, and right the second time."""
    course = write_course(
        tmp_path,
        (
            "basics/numbers/probes.py",
            "def product(",
            f"from gradebox.sandbox.measuring import measures\n\n\n{MEASURING}",
        ),
    )
    submission = write_submission(tmp_path, numbers=NUMBERS.replace("left * right", "left * right + 1"))
    request = order(course, submission, criterion="basics.numbers")
    return replace(request, device=Device(CPU, "CPU", hardware=hardware)), submission


class Runs(DeviceUse):
    """Counts what is run; may make the first measured answer right."""

    count = 0
    mended = False

    def run(self, request: Request, sandbox: Any) -> Any:
        answer = super().run(request, sandbox)
        if request.probe == "basics.numbers.product":
            type(self).count += 1
            if self.mended and self.count == 2:
                rank = replace(
                    answer.reply.ranks[0], value={"result": request.params["left"] * request.params["right"]}
                )
                answer = replace(answer, reply=replace(answer.reply, ranks=(rank,)))
        return answer


def _product(grade: Grade) -> Any:
    return grade.labs[0].criteria[0].checks[0]


def test_a_wrong_measurement_is_taken_twice_and_then_costs_points(
    tmp_path: Path, hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "count", 0)
    monkeypatch.setattr("gradebox.run.grading.DeviceUse", Runs)
    request, _ = _failing(tmp_path, hardware)
    assert _product(run(request)).outcome is Outcome.FAILED
    assert Runs.count == 2


def test_a_measurement_that_is_right_the_second_time_earns_its_points(
    tmp_path: Path, hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "count", 0)
    monkeypatch.setattr(Runs, "mended", True)
    monkeypatch.setattr("gradebox.run.grading.DeviceUse", Runs)
    request, _ = _failing(tmp_path, hardware)
    assert _product(run(request)).outcome is Outcome.PASSED
    assert Runs.count == 2


def test_a_disturbed_measurement_is_for_a_person_to_decide(
    tmp_path: Path, hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def watch(device: str) -> Iterator[list[str]]:
        yield ["another process (17) used 80 % of the GPU"]

    monkeypatch.setattr(devices, "watch", watch)
    request, _ = _failing(tmp_path, hardware)
    check = _product(run(request))
    assert check.outcome is Outcome.NEEDS_REVIEW
    assert "another process (17) used 80 % of the GPU" in check.message
    assert "product()" in check.message
    assert "nothing else uses the device" in check.hint


def test_a_simulated_device_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runs, "count", 0)
    monkeypatch.setattr("gradebox.run.grading.DeviceUse", Runs)
    request, _ = _failing(tmp_path, "")
    assert _product(run(request)).outcome is Outcome.FAILED
    assert Runs.count == 1


# --- neighbours -------------------------------------------------------------------------------------------------------


class Box:
    """A sandbox with prepared answers, which notes whether the device was held alone."""

    abandoned = False

    def __init__(self, hardware: str, *answers: RankReply) -> None:
        self._hardware, self._answers = hardware, list(answers)
        self.alone: list[bool] = []

    def run(self, request: Request) -> Reply:
        self.alone.append(not _get(self._hardware, alone=False))
        answer = self._answers.pop(0)
        return Reply(answer.kind, (answer,), 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        RankReply("error", error="OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.00 GiB."),
        RankReply("timeout", message="no result within 60 s"),
        RankReply("crashed", message="signal 9"),
    ],
)
def test_what_neighbours_may_have_caused_is_asked_again_alone(hardware: str, answer: RankReply) -> None:
    box: Any = Box(hardware, answer, RankReply("ok", value={}))
    use = DeviceUse(Device(CPU, "CPU", hardware=hardware))
    assert use.run(Request("lab1.basics.product"), box).reply.kind == "ok"
    assert box.alone == [False, True]


def test_a_gpu_for_one_process_is_never_shared(hardware: str) -> None:
    box: Any = Box(hardware, RankReply("ok", value={}), RankReply("ok", value={}))
    use = DeviceUse(Device("cuda", "a GPU", hardware=hardware, one_process=True))
    use.run(Request("lab1.basics.product", device="cuda"), box)
    use.run(Request("lab1.basics.product", device="cpu"), box)
    assert box.alone == [True, False]


def test_a_students_error_is_not_asked_again(hardware: str) -> None:
    box: Any = Box(hardware, RankReply("error", error="ValueError", message="no such size"))
    use = DeviceUse(Device(CPU, "CPU", hardware=hardware))
    assert use.run(Request("lab1.basics.product"), box).reply.kind == "error"
    assert box.alone == [False]


def test_an_abandoned_sandbox_waits_for_nobody(hardware: str) -> None:
    box: Any = Box(hardware, RankReply("ok"))
    use = DeviceUse(Device(CPU, "CPU", hardware=hardware))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            use.run(Request("lab1.basics.product"), box)
        except Exception as error:
            ended.append(error)

    with DeviceLock(hardware).held(alone=True):
        thread = threading.Thread(target=wait)
        thread.start()
        box.abandoned = True
        thread.join(10)
        assert not thread.is_alive()
    assert "the grading ended" in str(ended[0])


# --- pace -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"device_seconds": [1e-3] * 40, "host_seconds": [5e-4] * 40}, ""),
        ({"device_seconds": [1e-3] * 20 + [2.1e-3] * 20, "host_seconds": [5e-4] * 40}, "of the device took between"),
        ({"device_seconds": [1e-3] * 40, "host_seconds": [5e-4] * 20 + [9e-4] * 20}, "of the host took between"),
        ({"device_seconds": [1e-3] * 3}, ""),
    ],
)
def test_a_device_whose_pace_is_uneven_is_no_ground_for_a_loss(
    hardware: str, seconds: dict[str, list[float]], said: str
) -> None:
    box: Any = Box(hardware, RankReply("ok", value=seconds))
    message = problem(DeviceUse(Device(CPU, "CPU", hardware=hardware)), box, "shared.pace.repeated")
    assert said in message
    assert bool(said) == bool(message)
