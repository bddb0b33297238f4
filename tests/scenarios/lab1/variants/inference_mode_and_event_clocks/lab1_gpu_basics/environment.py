"""Task 1.1: describe the software and hardware that every later number depends on.

Not an installer: it reports what is there, also on a machine without a GPU.

Run: python -m labs.lab1_gpu_basics.environment
"""

import importlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from labkit import program
from labkit.device import is_simulated, open_device
from labkit.results import Environment, save_json

from ._timing import in_thread, logged


def _ask_driver() -> str | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        raw = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return raw.decode("ascii") if isinstance(raw, bytes) else raw


RESULTS = Path(__file__).parent / "results"


@logged
def check_environment(device: str | None = None) -> Environment:
    """Describe Python, PyTorch, CUDA, the NVIDIA driver and one device.

    Works everywhere: what a machine does not have is None, never an exception and never a made-up value.

    Args:
        device: "cuda" or "cpu"; None takes "cuda" when `torch.cuda.is_available()`, else "cpu".

    Returns:
        An `Environment` with
        - python: the version, as `platform.python_version()` gives it; torch: `torch.__version__`;
        - cuda: `torch.version.cuda`, what PyTorch was *built* for (None for a CPU build);
        - driver: what NVML reports through `pynvml` (None when there is no driver to ask);
        - device: "cuda" or "cpu";
        - device_name, memory_bytes (in all, not what is free), compute_capability as (major, minor): of GPU 0; on the
          CPU the name is the processor's or, where the system does not tell, the machine's type, and the other two are
          None;
        - profiler: whether PyTorch carries Kineto, the library that `torch.profiler` records with, as
          `torch.profiler.kineto_available()` says;
        - simulated: `labkit.device.is_simulated()`.

    Raises:
        ValueError: `device` is neither None, "cuda" nor "cpu", or it is "cuda" and there is no GPU.

    Source: https://docs.pytorch.org/docs/stable/cuda.html, and NVML's nvmlSystemGetDriverVersion.
    """
    resolved = device if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    if resolved not in {"cuda", "cpu"} or (resolved == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"{device=} cannot be used here")
    properties = torch.cuda.get_device_properties("cuda:0") if resolved == "cuda" else None
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        driver=in_thread(_ask_driver),
        device=resolved,
        device_name=properties.name if properties else (platform.processor() or platform.machine()),
        memory_bytes=int(properties.total_memory) if properties else None,
        compute_capability=(properties.major, properties.minor) if properties else None,
        profiler=bool(torch.profiler.kineto_available()),
        simulated=is_simulated(),
    )


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
