"""What only a real GPU can show: the reference's grade, the conformance programs, a record of times, the calibration.

    python -m benchmarks.on_a_gpu

Writes JSON into `benchmarks/results/`. Returns 2 without a GPU, 1 where a part failed. Not here: what it means, see
docs/on-a-gpu.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from gradebox.devices import DeviceError, parse

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REPORT = ROOT / "build" / "on_a_gpu"


def parts(results: Path) -> dict[str, list[str]]:
    """The commands, by what they show."""
    return {
        "grade": [
            "-m", "pytest", "--grade", "--submission=solutions", "--device", "cuda",
            f"--grade-report={REPORT}",
        ],
        "conformance": [
            "-m", "pytest", "tests/conformance", "-q", "--conformance-device", "cuda",
            f"--conformance-json={results / 'conformance_on_a_gpu.json'}",
        ],
        "record": ["-m", "benchmarks.measured", "record", str(results / "record_on_a_gpu.json")],
        "calibration": ["-m", "vgpu", "calibrate", "--suggest", "--json", str(results / "calibration_on_a_gpu.json")],
    }  # fmt: skip


def main() -> int:
    """Run them all, one after the other."""
    try:
        device = parse("cuda", "grader.shared.devices")
    except DeviceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"on {device.label}\n")
    failed = []
    for name, command in parts(RESULTS).items():
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        if subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode:
            failed.append(name)
    grade = REPORT / "grade.json"
    if "grade" not in failed and grade.is_file():  # of a failed grading there may be an older one
        shutil.copyfile(grade, RESULTS / "grade_on_a_gpu.json")
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
