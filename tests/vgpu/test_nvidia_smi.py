"""`nvidia-smi` as a program that a program starts: the common queries, and PyTorch's own `collect_env`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vgpu
from vgpu.runtime import smi
from vgpu.tools import nvidia_smi

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import json, os, subprocess, torch
from torch.utils import collect_env

begin = __import__("vgpu").current().now()
x = torch.ones(64 << 20, device="cuda:1")


def ask(*words, shell=False):
    return subprocess.run(words[0] if shell else words, shell=shell, capture_output=True, text=True).stdout


fields = "index,name,memory.total,memory.used,memory.free,compute_cap"
print(json.dumps({
    "list": ask("nvidia-smi", "-L"),
    "gpus": ask("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"),
    "apps": ask("nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv,noheader", shell=True),
    "pid": os.getpid(),
    "table": ask("nvidia-smi"),
    "status": os.system("nvidia-smi > /dev/null"),
    "models": collect_env.get_gpu_info(collect_env.run),
    "driver": collect_env.get_nvidia_driver_version(collect_env.run),
    "free": torch.cuda.mem_get_info(1)[0] >> 20,
    "begin": begin,
}))
"""


@pytest.mark.night
def test_programs_find_the_virtual_gpus(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "vgpu", "--gpu", "A100-80GB", "--gpus", "2", "program.py"]
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    spec = vgpu.get_spec("A100-80GB")
    assert [line.partition(" (UUID")[0] for line in seen["list"].splitlines()] == [
        f"GPU {index}: {spec.title} (simulated)" for index in range(2)
    ]
    first, second = (line.split(", ") for line in seen["gpus"].splitlines())
    assert second[:2] == ["1", f"{spec.title} (simulated)"]
    total, used, free = map(int, second[2:5])
    assert (total, total - used) == (spec.memory_bytes >> 20, free)
    assert free == pytest.approx(seen["free"], abs=1)
    assert used >= 256
    assert (first[3], second[5]) == ("0", "8.0")
    assert seen["apps"].split(", ")[0] == str(seen["pid"])
    assert (seen["driver"], seen["status"], seen["begin"]) == (spec.driver_version, 0, 0.0)
    assert f"{used}MiB / " in seen["table"]
    assert seen["models"].splitlines()[0] == f"GPU 0: {spec.title} (simulated)"


def _asked(gpu: vgpu.VirtualGPU, tmp_path: Path, capsys: Any, *words: str) -> tuple[int, str]:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(smi.described(gpu.machine)))  # type: ignore[arg-type]
    status = nvidia_smi.main(str(state), words)
    return status, capsys.readouterr().out


def test_formats_and_refusals(gpu: vgpu.VirtualGPU, tmp_path: Path, capsys: Any) -> None:
    status, text = _asked(gpu, tmp_path, capsys, "--query-gpu=memory.used,gpu_name,fan.speed", "--format=csv")
    assert (status, text.splitlines()) == (
        0, ["memory.used [MiB], gpu_name, fan.speed", "0 MiB, Tesla T4 (simulated), [N/A]"],
    )  # fmt: skip
    assert _asked(gpu, tmp_path, capsys, "--query-gpu=index", "--format=csv,noheader", "-i", "0") == (0, "0\n")
    assert _asked(gpu, tmp_path, capsys, "-i", "3", "-L") == (6, "No devices were found\n")
    status, text = _asked(gpu, tmp_path, capsys, "--query-gpu=colour", "--format=csv")
    assert status == 2
    assert text.startswith('Field "colour" is not a valid field to query.')
    assert "No running processes found" in _asked(gpu, tmp_path, capsys)[1]
    widths = {len(line) for line in _asked(gpu, tmp_path, capsys)[1].splitlines()[1:] if line}
    assert widths == {91}
