"""Programs with `--device cuda`, on a virtual A100 that passes for a real one (`stand_in/sitecustomize.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
# What it takes to end on a CPU: the sizes of a real GPU's defaults would not.
PROGRAMS = {
    "lab1_gpu_basics.environment": (),
    "lab1_gpu_basics.profiler": ("--steps", "2"),
    "lab1_gpu_basics.benchmark": ("--sizes", "256,512", "--iterations", "5"),
    "lab2_mixed_precision.numerics": (),
    "lab2_mixed_precision.amp_training": ("--epochs", "1"),
    "lab3_distributed.ddp_training": ("--epochs", "1"),
    "lab5_production.train": ("--epochs", "1"),
}
# Those that open their device without values: work of an A100's size. Not Lab 5's tuning, which gives NVML three
# seconds to look at each of its stages: tens of thousands of steps, where they are virtual seconds.
WITHOUT_VALUES = {
    "lab2_mixed_precision.precision_comparison": (),
    "lab3_distributed.scaling_analysis": ("--world-sizes", "1,2"),
    "lab4_memory.gradient_checkpointing": (),
    "lab4_memory.flash_attention": (),
    "lab4_memory.oom_fixes": (),
    "lab4_memory.memory_analysis": (),
}
BY_DAY = ("lab1_gpu_basics.environment",)


def _run(arguments: list[str], *, gpus: int = 1, seconds: float = 420, values: bool = True) -> str:
    environment = {
        "PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT)]),
        "REHEARSED_GPUS": str(gpus),
        "REHEARSED_VALUES": str(int(values)),
    }
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.night) for name in (*PROGRAMS, *WITHOUT_VALUES)],
)
def test_a_labs_program_takes_it_for_a_real_gpu(name: str, tmp_path: Path) -> None:
    arguments = [f"solutions.{name}", "--device", "cuda", "--out", str(tmp_path), *(PROGRAMS | WITHOUT_VALUES)[name]]
    printed = _run(arguments, gpus=2, values=name in PROGRAMS)
    announced = next(line for line in printed.splitlines() if line.startswith("device: "))
    assert "NVIDIA A100-SXM4-80GB" in announced
    assert "simulated" not in announced
    assert name in PROGRAMS or list(tmp_path.glob("*.json"))
    for file in tmp_path.rglob("*.json"):
        report = json.loads(file.read_text())
        assert isinstance(report, dict)
        if "simulated" in (provenance := report.get("provenance", report)):
            assert (provenance["device"], provenance["simulated"]) == ("cuda", False), file


@pytest.mark.night
def test_the_acceptance_test_passes_two_gpus_that_it_takes_for_real(tmp_path: Path) -> None:
    printed = _run(["cluster.acceptance", "--device", "cuda", "--report", str(tmp_path)], gpus=2, seconds=900)
    assert "FINAL ACCEPTANCE: PASS" in printed
    assert "GPU Available: YES" in printed
    report = json.loads((tmp_path / "cluster_test_report.json").read_text())
    assert (report["simulated"], report["world_size"]) == (False, 2)
    undecided = {check["name"] for check in report["validation"]["checks"] if check["status"] != "pass"}
    # Whose events and counters the virtual NVML does not tell; and one pair, which has no other to be compared with.
    assert undecided <= {"health: XID errors", "board: NVLink errors", "pairs: NVLink"}
