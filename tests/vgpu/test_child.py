"""Python programs that a program under `python -m vgpu` starts by `subprocess`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import subprocess, sys
code = "import sys, torch; print(torch.cuda.device_count(), torch.ones(2, device='cuda').sum().item(), sys.argv[1])"
print(subprocess.run([sys.executable, "-c", code, "word"], capture_output=True, text=True).stdout)
plain = "import sys; print('torch' in sys.modules, __name__)"
print(subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-m", "this_is_no_module"], capture_output=True).returncode)
"""


@pytest.mark.night
def test_it_has_the_gpus_too_and_imports_nothing_of_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "vgpu", "--gpu", "L4", "--gpus", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2.0", "word", "False", "__main__", "1"]
