"""A child with a real GPU reaches NVIDIA's device files, and no others; one without a real GPU sees none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.nvidia_devices import NAMES, THREAD_NAME

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.night
@pytest.mark.skipif(os.getuid() != 0, reason="device files are made by root")
def test_stand_ins_for_nvidias_devices(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sandbox.nvidia_devices", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine lets root make no device files, or no mount namespace")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    if report["cpu"]["isolation"] != "namespaces":
        pytest.skip("there are no namespaces here, so nothing is hidden")
    usual = {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"}
    assert set(report["cpu"]["seen"]) == usual
    assert report["cpu"]["written"] == []
    assert set(report["cuda"]["seen"]) == usual | {name.partition("/")[0] for name in NAMES}
    assert set(report["cuda"]["written"]) == {THREAD_NAME, *(f"/dev/{name}" for name in NAMES)}
