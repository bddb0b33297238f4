"""The reading of GPUs through the real nvidia-ml-py, down to a library that gcc builds from nvml_stub.c.

Each test runs in a process of its own: nvidia-ml-py loads a library once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
ROOT = Path(__file__).parents[2]
DRIVER_NOT_LOADED, NO_PERMISSION = 9, 4

READ = """
import ctypes, json
from dataclasses import asdict
from labkit.monitoring.gpus import GpuReader

def stub(name, value=None):
    variable = ctypes.c_int.in_dll(ctypes.CDLL("libnvidia-ml.so.1"), name)
    if value is not None:
        variable.value = value
    return variable.value

def show(reader):
    return [asdict(gpu) for gpu in reader.read()]

"""
MONITOR = """
import json, sys
from solutions.lab5_production.monitor import GPUMonitor

with GPUMonitor(port=0, interval=0.01, rank=0) as monitor:
    for step in range(3):
        monitor.sample()
        monitor.log_metrics(step, {"loss": 1.0})
    from tests.monitoring.conftest import read
    told = read(f"{monitor.url}/metrics")
print(json.dumps({"told": told, "message": monitor.message}))
"""


@pytest.fixture(scope="module")
def library(gcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    folder = tmp_path_factory.mktemp("nvml")
    command = [gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, script: str, *, init: int = 0) -> tuple[Any, str]:
    """What the script printed, as JSON, and what it said on standard error."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_STUB_INIT": str(init)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_every_sensor_arrives_in_base_units(library: Path) -> None:
    script = (
        "stub('stub_xids', 3); reader = GpuReader(); print(json.dumps([reader.message, show(reader), show(reader)]))"
    )
    (message, (first, second), later), _ = run(library, READ + script)
    assert message is None
    assert first == {
        "index": 0,
        "uuid": "GPU-0",
        "name": "Stub GPU",
        "up": True,
        "utilization_ratio": pytest.approx(0.93),
        "memory_busy_ratio": pytest.approx(0.41),
        "memory_used_bytes": 4 * 2**30,
        "memory_total_bytes": 16 * 2**30,
        "temperature_celsius": 71,
        "power_watts": pytest.approx(218.375),
        "power_limit_watts": None,  # a function that this driver does not know
        "energy_joules": pytest.approx(9876543.21),
        "sm_clock_hertz": 1.41e9,
        "memory_clock_hertz": 5.001e9,
        "pcie_sent_bytes_per_second": 2.5e6,
        "pcie_received_bytes_per_second": 7.5e5,
        "throttle_reasons": ["power_cap", "hardware_thermal_slowdown"],
        "ecc_errors": 2,
        "xid_errors": 3,
    }
    assert (second["index"], second["uuid"], second["temperature_celsius"], second["xid_errors"]) == (1, "GPU-1", 72, 0)
    assert later[0]["xid_errors"] == 3


def test_what_is_not_supported_is_absent(library: Path) -> None:
    (first, _), _ = run(library, READ + "stub('stub_unsupported', 1); print(json.dumps(show(GpuReader())))")
    known = {name for name, value in first.items() if value is not None}
    assert known == {"index", "uuid", "name", "up", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"}


def test_a_gpu_that_is_lost_is_not_up_and_the_other_one_goes_on(library: Path) -> None:
    script = (
        "reader = GpuReader(); before = show(reader); stub('stub_lost', 1); print(json.dumps([before, show(reader)]))"
    )
    (before, after), _ = run(library, READ + script)
    assert [gpu["up"] for gpu in before] == [True, True]
    assert [gpu["up"] for gpu in after] == [True, False]
    assert {name for name, value in after[1].items() if value is not None} == {"index", "up"}
    assert after[0]["power_watts"] == before[0]["power_watts"]


def test_a_gpu_without_a_handle_is_not_up_and_the_other_one_is_read(library: Path) -> None:
    script = "stub('stub_no_handle', 0); reader = GpuReader(); print(json.dumps([reader.message, show(reader)]))"
    (message, gpus), _ = run(library, READ + script)
    assert message is None
    assert [(gpu["index"], gpu["up"], gpu["temperature_celsius"]) for gpu in gpus] == [(0, False, None), (1, True, 72)]


def test_everything_is_given_back(library: Path) -> None:
    script = """
reader = GpuReader()
during = [stub("stub_users"), stub("stub_sets")]
reader.close(); reader.close()
print(json.dumps([during, [stub("stub_users"), stub("stub_sets")], show(reader)]))
"""
    (during, after, gpus), _ = run(library, READ + script)
    assert (during, after, gpus) == ([1, 2], [0, 0], [])


@pytest.mark.parametrize(("init", "reason"), [(DRIVER_NOT_LOADED, "Driver Not Loaded"), (NO_PERMISSION, "Permission")])
def test_an_nvml_that_does_not_start_is_one_line_and_training_metrics_go_on(
    library: Path, init: int, reason: str
) -> None:
    output, said = run(library, MONITOR, init=init)
    assert said.count("\n") == 1
    assert reason in said
    assert output["message"] in said
    assert "training_loss 1.0" in output["told"]
    assert "gpu_" not in output["told"]


def test_a_machine_without_the_library_is_one_line_and_training_metrics_go_on(tmp_path: Path) -> None:
    # A library that cannot be loaded, so that this is tested where there is a real one, too.
    (tmp_path / "libnvidia-ml.so.1").touch()
    output, said = run(tmp_path, MONITOR)
    assert said.count("\n") == 1
    assert "Shared Library Not Found" in said
    assert "training_loss 1.0" in output["told"]
    assert "gpu_" not in output["told"]
