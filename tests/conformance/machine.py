"""The GPU that the programs run on: a real one or a virtual one, opened alike and left clean.

Not here: what programs check.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import vgpu

# Small first: what a program does not need, it does not get.
_MODELS = (((7, 5), "T4"), ((8, 0), "A100-40GB"), ((9, 0), "H100"))


@dataclass(frozen=True)
class Gpu:
    """What a program may ask of its machine. Nothing here tells it how to behave."""

    name: str
    simulated: bool
    capability: tuple[int, int]
    memory_bytes: int
    count: int


def model_for(capability: tuple[int, int]) -> str:
    """The smallest virtual GPU of at least this compute capability."""
    return next(name for known, name in _MODELS if known >= capability)


def _describe(*, simulated: bool) -> Gpu:
    properties = torch.cuda.get_device_properties(0)
    return Gpu(
        torch.cuda.get_device_name(), simulated, torch.cuda.get_device_capability(), properties.total_memory,
        torch.cuda.device_count(),
    )  # fmt: skip


@contextlib.contextmanager
def virtual(model: str, gpus: int) -> Iterator[Gpu]:
    """A virtual GPU, new for this program."""
    # The programs' operations are small, and threads that wait for each other are slow on a busy machine.
    torch.set_num_threads(1)
    with vgpu.attach(model, force=True, gpus=gpus):
        yield _describe(simulated=True)


@contextlib.contextmanager
def real() -> Iterator[Gpu]:
    """The real GPU, with nothing of an earlier program on it, as far as one process can see to that."""
    _clean()
    yield _describe(simulated=False)
    _clean()


def describe_real() -> Gpu:
    """The real GPU's description, without touching its memory."""
    return _describe(simulated=False)


def _clean() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch._C._cuda_clearCublasWorkspaces()
    for index in range(torch.cuda.device_count()):
        torch.cuda.reset_accumulated_memory_stats(index)
    torch.cuda.empty_cache()
    for index in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(index)


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """PyTorch's process-wide switches are put back, whatever the program does to them."""
    backends = torch.backends
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    kept = (backends.cudnn.benchmark, backends.cudnn.deterministic, torch.get_default_dtype())
    reduction = backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    attention = [backends.cuda.flash_sdp_enabled(), backends.cuda.mem_efficient_sdp_enabled()]
    attention += [backends.cuda.math_sdp_enabled(), backends.cuda.cudnn_sdp_enabled()]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_device(None)
        torch.set_default_dtype(kept[2])
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        _restore_fp32_precision()
        backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduction
        backends.cudnn.benchmark, backends.cudnn.deterministic = kept[0], kept[1]
        switches = (backends.cuda.enable_flash_sdp, backends.cuda.enable_mem_efficient_sdp)
        switches += (backends.cuda.enable_math_sdp, backends.cuda.enable_cudnn_sdp)
        for switch, value in zip(switches, attention, strict=True):
            switch(value)
        torch.random.set_rng_state(state)


def _restore_fp32_precision() -> None:
    """The defaults of a new process, by the new names and the old ones (torch.backends documentation)."""
    backends = torch.backends
    backends.fp32_precision = backends.cudnn.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    backends.cuda.matmul.fp32_precision = backends.mkldnn.matmul.fp32_precision = "none"
    backends.cudnn.allow_tf32 = True
