"""Task 1.1: describe the software and hardware that every later number depends on.

Not an installer: it reports what is there, also on a machine without a GPU.

Run: python -m labs.lab1_gpu_basics.environment
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from labkit import program
from labkit.device import is_simulated, open_device
from labkit.results import Environment, save_json

RESULTS = Path(__file__).parent / "results"


def check_environment(device: str | None = None) -> Environment:
    """Describe Python, PyTorch, CUDA, the NVIDIA driver and one device.

    Works everywhere: what a machine does not have is None, never an exception and never a made-up value.

    Args:
        device: "cuda" or "cpu"; None takes "cuda" when `torch.cuda.is_available()`, else "cpu".

    Returns:
        An `Environment` with
        - python: the version, as `platform.python_version()` gives it; torch: `torch.__version__`;
        - cuda: `torch.version.cuda`, what PyTorch was *built* for (None for a CPU build);
        - driver: what NVML reports through `pynvml` (None when there is no driver to ask, or no `pynvml`);
        - device: "cuda" or "cpu";
        - device_name, memory_bytes (in all, not what is free), compute_capability as (major, minor): of GPU 0; on the
          CPU the name is `platform.processor()` or, where that is empty, `platform.machine()`, and the other two are
          None;
        - profiler: whether PyTorch carries Kineto, the library that `torch.profiler` records with, as
          `torch.profiler.kineto_available()` says;
        - simulated: `labkit.device.is_simulated()`.

    Raises:
        ValueError: `device` is neither None, "cuda" nor "cpu", or it is "cuda" and there is no GPU.

    Source: https://docs.pytorch.org/docs/stable/cuda.html, and NVML's nvmlSystemGetDriverVersion.
    """
    # TODO(task 1.1):
    # 1. Settle the device: None means the GPU if there is one. Refuse "cuda" where there is none.
    # 2. On a GPU, read name, total memory and compute capability from torch.cuda.get_device_properties.
    # 3. Ask NVML for the driver's version; without NVML, without a driver or without pynvml the answer is None.
    # 4. Put everything into an Environment.
    # --- solution: task 1.1 ---
    available = torch.cuda.is_available()
    if device is None:
        device = "cuda" if available else "cpu"
    if device not in ("cuda", "cpu"):
        raise ValueError(f'device is "cuda", "cpu" or None, not {device!r}')
    if device == "cuda" and not available:
        raise ValueError("there is no GPU here: torch.cuda.is_available() is False")

    name, memory_bytes, capability = platform.processor() or platform.machine(), None, None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, memory_bytes, capability = properties.name, properties.total_memory, (properties.major, properties.minor)
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=_driver_version(),
        device=device,
        device_name=name,
        memory_bytes=memory_bytes,
        compute_capability=capability,
        profiler=torch.profiler.kineto_available(),
        simulated=is_simulated(),
    )
    # --- end ---


# --- solution only ---
def _driver_version() -> str | None:
    """The NVIDIA driver's version, or None if NVML does not report it."""
    try:
        import pynvml  # here, because a machine without NVIDIA's packages may lack it
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


# --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Print the environment as a table and write OUT/environment.json; returns 0."""
    options = program.make_parser(__doc__ or "", results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        environment = check_environment(device.torch_device)
        rows = [(name, "-" if value is None else value) for name, value in asdict(environment).items()]
        program.print_table("Environment", ("what", "found"), rows)
        program.print_written(save_json(options.out / "environment.json", [environment], device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
