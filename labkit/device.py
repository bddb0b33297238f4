"""Choose the device of a program: a real GPU, else the virtual one, else what `--device` says.

Not for library functions: those take a device as an argument and choose nothing.
"""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import LabError
from labkit.results import Provenance

if TYPE_CHECKING:
    from vgpu import Spec, VirtualGPU

CHOICES = "auto, cpu, cuda, vgpu or vgpu:MODEL"
DEFAULT_MODEL = "T4"
"""The GPU of free cloud notebooks, so that a student can compare."""
GPU_24_GB = Path(__file__).parent / "gpus" / "RTX-3090.toml"
"""The data sheet of a GPU with 24 GB, which is opened as "vgpu:" and this path."""


class DeviceError(LabError):
    """The device asked for is unknown or not there."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What a GPU can do at best, by its data sheet."""

    tflops: dict[str, float]
    """By dtype, for example {"float32": 8.1}: 1e12 operations per second, without sparsity."""
    held_ratio: dict[str, float]
    """By dtype: the share of it that the best published products reach."""
    bandwidth_bytes_per_second: float
    """Of the device's own memory."""
    launch_seconds: float
    """Host time of putting one matrix product into the queue (typical: no data sheet has it)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device a program runs on."""

    torch_device: str
    """For PyTorch: "cuda" or "cpu"."""
    name: str
    """For people, as CUDA reports it: "Tesla T4"."""
    simulated: bool
    """Whether times and memory are those of a virtual GPU and its virtual host."""
    peaks: Peaks | None
    """None on a CPU, and on a GPU whose data sheet is not known here."""

    def provenance(self) -> Provenance:
        """What `labkit.results.save_json` writes next to the results."""
        import torch

        return Provenance(
            device=self.torch_device,
            device_name=self.name,
            simulated=self.simulated,
            torch=torch.__version__,
            python=platform.python_version(),
            peak_tflops=self.peaks.tflops if self.peaks else None,
            bandwidth_bytes_per_second=self.peaks.bandwidth_bytes_per_second if self.peaks else None,
            launch_seconds=self.peaks.launch_seconds if self.peaks else None,
        )


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Something that a virtual GPU did. Times in seconds of its own clock."""

    name: str
    """The kernel's, as a profiler shows it."""
    start: float
    end: float
    bytes: int
    """That it moved: through memory, or of a collective all that goes around."""


def record_of(index: int) -> list[Ran] | None:
    """Everything that the virtual GPU of this number has done so far; None where there is no virtual GPU.

    Not on a real GPU: there `torch.profiler` knows kernels and their times, and nobody counts their bytes.
    """
    gpu = _attached()
    if gpu is None:
        return None
    return [
        Ran(name=kernel.name, start=kernel.start, end=kernel.end, bytes=kernel.bytes)
        for kernel in gpu.machine.gpus[index].timeline
    ]


def is_simulated() -> bool:
    """Whether a virtual GPU is attached, so that every time and every byte count is simulated."""
    return _attached() is not None


@contextmanager
def open_device(name: str = "auto", *, values: bool = True, gpus: int = 1) -> Iterator[Device]:
    """Open a device for the block and print in one line which it is; of ranks under torchrun only rank 0 prints.

    Args:
        name: "auto" takes a GPU that is there, real or already attached, else the virtual T4; "cpu"; "cuda"; "vgpu" or
            "vgpu:MODEL" for the virtual GPU, also where there is a real one.
        values: whether a virtual GPU computes real numbers. False keeps shapes, times and memory only, for work that a
            CPU would take minutes for. A virtual GPU that is attached already stays as it is.
        gpus: how many virtual GPUs of that model there are, for programs with several processes. Processes that
            `torch.multiprocessing` starts inside the block have the same ones.

    Yields:
        The `Device`. A virtual GPU attached here is detached when the block ends.

    Raises:
        DeviceError: `name` is unknown, there is no such GPU or model, or another model is attached already.
    """
    import torch

    kind, _, model = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "vgpu") or (model and kind != "vgpu"):
        raise DeviceError(f"there is no device {name!r}: choose {CHOICES}. Pick among GPUs with CUDA_VISIBLE_DEVICES.")
    attached = _attached()
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "--device cuda: PyTorch finds no NVIDIA GPU (does nvidia-smi list one, and is torch.version.cuda set?). "
            "Use --device vgpu for the virtual GPU or --device cpu."
        )
    if kind == "cpu":
        yield _announced(_cpu())
    elif attached is not None:
        if model and attached.spec.name.lower() != model.lower():
            raise DeviceError(f"the virtual {attached.spec.name} is attached already; {name} cannot be opened as well")
        yield _announced(_virtual(attached.spec), "attached already")
    elif kind == "vgpu" or not torch.cuda.is_available():
        with _attach(model or DEFAULT_MODEL, values=values, gpus=gpus) as gpu:
            yield _announced(_virtual(gpu.spec), "" if values else "shapes only: times and memory, no numbers")
    else:
        yield _announced(_real())


def _cpu() -> Device:
    name = platform.processor() or platform.machine()
    return Device(torch_device="cpu", name=name, simulated=is_simulated(), peaks=None)


def _virtual(spec: "Spec") -> Device:
    return Device(torch_device="cuda", name=spec.title, simulated=True, peaks=_peaks(spec))


def _real() -> Device:
    import torch

    name = torch.cuda.get_device_name(0)
    return Device(torch_device="cuda", name=name, simulated=False, peaks=known_peaks(name))


def known_peaks(name: str) -> Peaks | None:
    """By the data sheet of the GPU that CUDA reports by this name; None if it is not known here."""
    import vgpu  # for its data sheets only

    specs = (vgpu.get_spec(model) for model in vgpu.list_specs())
    return next((_peaks(spec) for spec in specs if spec.title == name), None)


def _peaks(spec: "Spec") -> Peaks:
    from vgpu.device import cost

    return Peaks(
        tflops={dtype: flops / 1e12 for dtype, flops in spec.peak_flops.items()},
        held_ratio={
            dtype: spec.product_efficiency_ratio * spec.sustained_clock_ratio.get(dtype, 1.0)
            for dtype in spec.peak_flops
        },
        bandwidth_bytes_per_second=spec.bandwidth_bytes_per_second,
        launch_seconds=cost.launch_seconds(spec, "product"),
    )


def _attached() -> "VirtualGPU | None":
    """The virtual GPU in use. One that nobody has imported is not attached, so vgpu is not imported to find out."""
    if "vgpu" not in sys.modules:
        return None
    import vgpu

    return vgpu.current()


@contextmanager
def _attach(model: str, *, values: bool, gpus: int) -> Iterator["VirtualGPU"]:
    import torch

    import vgpu

    try:
        spec = vgpu.get_spec(model)
    except vgpu.SpecError as error:
        raise DeviceError(f"--device vgpu:{model}: {error}") from error
    with vgpu.attach(spec, values=values, gpus=gpus, force=True) as gpu:  # force: asked for by name next to a real GPU
        torch.cuda.current_device()  # initialises CUDA, as `_real` does: before that, `memory_stats()` is empty
        yield gpu


def _announced(device: Device, remark: str = "") -> Device:
    kind = "CPU " if device.torch_device == "cpu" else "virtual " if device.simulated else ""
    notes = [note for note in ("simulated" if device.simulated else "", remark) if note]
    if os.environ.get("RANK", "0") == "0":  # by torchrun each rank comes along here
        print(f"device: {kind}{device.name}" + (f" ({'; '.join(notes)})" if notes else ""))
    return device
