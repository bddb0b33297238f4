"""What NVML tells of a GPU while something is measured on it; NVML is a stand-in."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from grader.shared import devices
from grader.shared.disturbance import watched

OTHERS_PID = 4711


class Nvml:
    """One GPU. What a test leaves as None NVML does not support."""

    def __init__(self) -> None:
        self.reasons: int | None = 0
        self.others: list[int] | None = []
        self.percent: dict[int, int] | None = {}
        self.memory: int | None = 80 << 30
        self.mode = pynvml.NVML_COMPUTEMODE_DEFAULT
        self.asked: list[Any] = []
        self._clock = 0

    def get(self, value: Any) -> Any:
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def samples(_: object, since: int) -> list[Any]:
            self._clock += 1000
            return [
                SimpleNamespace(pid=pid, smUtil=percent, timeStamp=self._clock)
                for pid, percent in self.get(self.percent).items()
                if since < self._clock
            ]

        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: self.asked.append(index) or "handle",
            "nvmlDeviceGetHandleByUUID": lambda uuid: self.asked.append(uuid) or "handle",
            "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUUID": lambda _: "GPU-7",
            "nvmlDeviceGetComputeMode": lambda _: self.mode,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=self.get(self.memory)),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid) for pid in self.get(self.others)
            ],
            "nvmlDeviceGetProcessUtilization": samples,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.get(self.reasons),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer, raising=False)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    made.install(monkeypatch)
    return made


def _watch(seconds: float = 0.2) -> list[str]:
    with watched(lambda: "handle") as disturbances:
        time.sleep(seconds)
    return disturbances


def test_a_quiet_gpu_says_nothing(nvml: Nvml) -> None:
    assert _watch() == []


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (0x01, []),  # idle
        (0x04, []),  # a power cap: products of large matrices reach it on a healthy card
        (0x20, ["the GPU's clock was lowered: too hot, by software"]),
        (0x48, ["the GPU's clock was lowered: hardware slowdown", "the GPU's clock was lowered: too hot, by hardware"]),
    ],
)
def test_a_clock_that_was_lowered_is_reported_but_for_ordinary_reasons(
    nvml: Nvml, reasons: int, said: list[str]
) -> None:
    nvml.reasons = reasons
    assert _watch() == said


def test_another_process_that_works_is_reported(nvml: Nvml) -> None:
    nvml.others, nvml.percent = [OTHERS_PID], {OTHERS_PID: 80, 99: 90}  # 99 came later: a process of the submission
    assert _watch() == [f"another process ({OTHERS_PID}) used 80 % of the GPU"]


def test_another_process_that_only_holds_a_context_is_not(nvml: Nvml) -> None:
    nvml.others, nvml.percent = [OTHERS_PID], {OTHERS_PID: 0}
    assert _watch() == []


def test_a_gpu_without_counters_says_nothing(nvml: Nvml) -> None:
    nvml.reasons = nvml.others = nvml.percent = None
    assert _watch() == []


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", none)
    assert _watch(0) == []


@pytest.mark.parametrize(("visible", "identifier"), [("", 0), ("1,0", 1), ("GPU-7", "GPU-7"), ("MIG-3", "MIG-3")])
def test_the_device_is_the_first_that_cuda_sees(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, visible: str, identifier: object
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device = devices.parse("cuda")
    assert (device.label, device.hardware, device.memory_bytes) == ("NVIDIA H100 80GB HBM3", "GPU-7", 80 << 30)
    assert nvml.asked == [identifier]


def test_a_device_that_does_not_tell_its_memory_is_one_all_the_same(nvml: Nvml) -> None:
    nvml.memory = None
    assert devices.parse("cuda").memory_bytes is None


@pytest.mark.parametrize(
    ("mode", "alone"), [(pynvml.NVML_COMPUTEMODE_DEFAULT, False), (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, True)]
)
def test_a_gpu_for_one_process_at_a_time_is_known_by_its_mode(nvml: Nvml, mode: int, alone: bool) -> None:
    nvml.mode = mode
    assert devices.parse("cuda").one_process is alone
