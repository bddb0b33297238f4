"""Runs a lab's program; the same for all labs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grader.shared.probes.support import run_program


def run(student: Any, *, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run `module` ("lab1_gpu_basics.benchmark") with these arguments and describe what it wrote."""
    torch.set_num_threads(1)  # small work: a second thread would only wait for a core that others use
    with tempfile.TemporaryDirectory() as folder:
        return run_program(student, module, arguments, Path(folder, "results"))
