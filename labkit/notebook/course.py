"""`notebook.open`: one line about the device, the student's modules, and the grade of the lab at the end."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from labkit.device import Device, open_device
from labkit.notebook import errors, grading, kernel, notes
from labkit.notebook.modules import Modules, find_folder

_LABS: dict[int | str, str] = {
    1: "lab1_gpu_basics",
    2: "lab2_mixed_precision",
    3: "lab3_distributed",
    4: "lab4_memory",
    5: "lab5_production",
    "kernels": "kernels_exercise",
    "sharding": "sharding_exercise",
}
_SEED = 20


class Course:
    """A notebook's view of the course; made by `notebook.open`."""

    def __init__(self, lab: int | str | None, device: Device, folder: Path, labs: Path) -> None:
        self.lab = lab
        self.hardware = device
        """Name, peaks and bandwidth of the device, as `labkit.device` tells them."""
        self.device = torch.device(device.torch_device)
        self.simulated = device.simulated
        self.folder = folder
        """For what cells write; removed when the kernel ends."""
        self.labs = labs
        self.root = Path(__file__).resolve().parents[2]
        """The checkout of the course, with `examples/`."""

    @property
    def modules(self) -> Modules:
        """The lab's modules as the student wrote them: `modules.benchmark.benchmark_matmul`.

        Raises:
            ValueError: the notebook was opened without a lab.
        """
        if self.lab is None:
            raise ValueError("this notebook belongs to no lab: notebook.open(lab=1) has modules")
        return Modules(self.labs, _LABS[self.lab])

    @contextlib.contextmanager
    def times_only(self, gpus: int = 1) -> Iterator[Device]:
        """A fresh virtual GPU of the same model that computes no numbers, for work too large for a CPU.

        Times and memory are as always; `.item()` gives a placeholder and `.cpu()` zeros. Tensors made outside cannot be
        used inside. On a real GPU nothing changes.
        """
        if not self.simulated:
            yield self.hardware
            return
        import vgpu

        current = vgpu.current()
        assert current is not None
        with vgpu.attach(current.spec, values=False, gpus=gpus, force=True):
            yield self.hardware

    def grade(self) -> None:
        """Grade this lab as `make grade LAB=n` does, and show criteria, points and what to do next."""
        grading.grade_and_show(self.lab, self.labs, root=self.root, folder=self.folder)


def _register_magic(course: Course) -> None:
    """`%grade lab1.memory` in a notebook; nothing outside of one."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    asking = grading.Asking(course.root, course.labs)
    atexit.register(asking.close)

    def grade(line: str) -> None:
        if course.lab is None:
            notes.card("%grade needs a lab's notebook: this one was opened without any.")
            return
        asking.grade(course.lab, line)

    shell.register_magic_function(grade, "line", "grade")


_opened: Course | None = None
_held = contextlib.ExitStack()


def open_course(lab: int | str | None = None) -> Course:
    """Begin a notebook: choose the device, print which it is in one line, and find the student's modules.

    GPULABS_DEVICE chooses the device as `--device` of the programs does (default: auto); GPULABS_LABS the folder with
    the lab packages (default: labs). A virtual GPU stays attached until the kernel ends, so its clock goes on from cell
    to cell; calling this once more keeps it.

    Args:
        lab: 1 to 5, or "kernels" or "sharding" for that exercise; None for a notebook that belongs to no lab.

    Raises:
        ValueError: there is no such lab.
        DeviceError: the device asked for is not there.
        FileNotFoundError: the lab packages are not found.
    """
    global _opened
    if lab is not None and lab not in _LABS:
        raise ValueError(f"there is no lab {lab}: choose 1 to 5, 'kernels', 'sharding' or None")
    if _opened is None:
        folder = Path(tempfile.mkdtemp(prefix="gpulabs-notebook-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        kernel.start_threads()
        with contextlib.redirect_stdout(io.StringIO()):
            device = _held.enter_context(open_device(os.environ.get("GPULABS_DEVICE", "auto")))
        atexit.register(_held.close)
        _opened = Course(lab, device, folder, find_folder(folder))
        errors.install(_opened.labs)
        _register_magic(_opened)
        if device.simulated:
            kernel.keep_real_time()
    _opened.lab = lab
    torch.manual_seed(_SEED)
    print(_line(_opened.hardware))
    return _opened


def _line(device: Device) -> str:
    if device.torch_device == "cpu":
        return f"CPU {device.name}: no GPU, real times"
    if device.simulated:
        return f"virtual GPU: simulated {device.name}, times are modelled"
    return f"real GPU: {device.name}, times are measured"
