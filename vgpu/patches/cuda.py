"""`torch.cuda`, `torch.accelerator` and the functions of `torch._C` beneath them.

Most of `torch.cuda` is Python above a few `torch._C._cuda_*` functions: replacing those keeps PyTorch's own code for
everything above. Not here: streams and events (`vgpu.patches.streams`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.cuda
import torch.cuda.memory
import torch.cuda.random

from vgpu.gpu import VirtualGPU
from vgpu.patches.base import PatchSet
from vgpu.state import THREAD

_MEBI = 1 << 20


@dataclass(frozen=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns, for a simulated GPU."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    L2_cache_size: int
    clock_rate: int
    is_integrated: bool
    is_multi_gpu_board: bool
    gcnArchName: str  # noqa: N815 - PyTorch's name
    uuid: str
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MEBI}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // _MEBI}MB, simulated by vgpu)"
        )


def properties(gpu: VirtualGPU) -> DeviceProperties:
    """The properties of a virtual GPU."""
    spec = gpu.spec
    major, minor = spec.compute_capability
    return DeviceProperties(
        name=spec.title, major=major, minor=minor, total_memory=spec.memory_bytes,
        multi_processor_count=spec.multiprocessors, warp_size=32,
        max_threads_per_multi_processor=1024 if (major, minor) == (7, 5) else 2048, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152, L2_cache_size=spec.l2_bytes,
        clock_rate=int(spec.clock_hertz / 1000), is_integrated=False, is_multi_gpu_board=False,
        gcnArchName="", uuid="00000000-0000-0000-0000-76677075" + "0000", pci_bus_id=0, pci_device_id=4,
        pci_domain_id=0,
    )  # fmt: skip


def _index(device: Any) -> int:
    """The index of a device argument; raises as CUDA does for a GPU that is not there."""
    if device is None:
        return 0
    if isinstance(device, (str, torch.device)):
        parsed = torch.device(device)
        if parsed.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        index = parsed.index or 0
    else:
        index = int(device)
    if index > 0:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return 0


def install(patches: PatchSet, gpu: VirtualGPU) -> None:
    """Make `torch.cuda` and `torch.accelerator` those of the virtual GPU."""
    replacements = _python_functions(gpu)
    for name, function in replacements.items():
        patches.rebind(getattr(torch.cuda, name), function)
    for name, function in _c_functions(gpu).items():
        # Bound by name in several modules (`torch.cuda._exchange_device`), absent from CPU-only builds.
        if hasattr(torch._C, name):
            patches.rebind(getattr(torch._C, name), function)
        else:
            patches.set(torch._C, name, function)
    patches.set(torch.cuda, "_initialized", True)
    patches.set(torch.cuda, "_cached_device_count", 1)
    _accelerator(patches, gpu)
    backends = torch.backends
    patches.set(backends.cuda, "is_built", lambda: True)
    patches.set(backends.cudnn, "is_acceptable", lambda tensor: False)


def _python_functions(gpu: VirtualGPU) -> dict[str, Callable[..., Any]]:
    def synchronize(device: Any = None) -> None:
        _index(device)
        gpu.synchronize()

    def get_device_properties(device: Any = None) -> DeviceProperties:
        _index(device)
        return properties(gpu)

    def get_device_name(device: Any = None) -> str:
        _index(device)
        return gpu.spec.title

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        _index(device)
        return gpu.spec.compute_capability

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        _index(device)
        gpu.start()
        return gpu.memory.free_bytes(), gpu.spec.memory_bytes

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or gpu.spec.compute_capability >= (8, 0)

    def lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:
        callable()

    major, minor = gpu.spec.compute_capability
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None if device is not None and _negative(device) else _discard(_index(device)),
        "synchronize": synchronize,
        "get_device_properties": get_device_properties,
        "get_device_name": get_device_name,
        "get_device_capability": get_device_capability,
        "mem_get_info": mem_get_info,
        "is_bf16_supported": is_bf16_supported,
        "is_initialized": lambda: True,
        "init": gpu.start,
        "_lazy_init": lambda: None,
        "_lazy_call": lazy_call,
        "_is_compiled": lambda: True,
        "can_device_access_peer": lambda device, peer: False,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_current_stream_capturing": lambda: False,
        "_exchange_device": lambda device: 0 if device >= 0 else -1,
        "_maybe_exchange_device": lambda device: 0 if device >= 0 else -1,
    }


def _negative(device: Any) -> bool:
    return isinstance(device, int) and device < 0


def _discard(_: int) -> None:
    return None


def _c_functions(gpu: VirtualGPU) -> dict[str, Callable[..., Any]]:
    memory = gpu.memory

    def empty_cache(*_: Any) -> None:
        gpu.synchronize()
        memory.empty_cache()

    def sleep(cycles: int) -> None:
        gpu.start()
        gpu.launch("spin_kernel", cycles / gpu.spec.clock_hertz)

    names: dict[str, Callable[..., Any]] = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": lambda device: None,
        "_cuda_exchangeDevice": lambda device: 0 if device >= 0 else -1,
        "_cuda_maybeExchangeDevice": lambda device: 0 if device >= 0 else -1,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_hasPrimaryContext": lambda device: gpu.started,
        "_cuda_synchronize": gpu.synchronize,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_memoryStats": lambda device: memory.settled().as_memory_stats(),
        "_cuda_resetPeakMemoryStats": lambda device: memory.settled().reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda device: memory.settled().reset_accumulated(),
        "_cuda_emptyCache": empty_cache,
        "_cuda_setMemoryFraction": lambda fraction, device: memory.set_fraction(fraction),
        "_cuda_getMemoryFraction": lambda device: memory.fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_clearCublasWorkspaces": gpu.clear_workspaces,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_sleep": sleep,
        "_cuda_init": gpu.start,
        "_cuda_getCurrentRawStream": lambda device: THREAD.stream,
    }
    return names


def _accelerator(patches: PatchSet, gpu: VirtualGPU) -> None:
    memory = gpu.memory
    functions: dict[str, Callable[..., Any]] = {
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_get_accelerator": lambda *_: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": lambda device: None,
        "_accelerator_exchangeDevice": lambda device: 0,
        "_accelerator_maybeExchangeDevice": lambda device: 0,
        "_accelerator_synchronizeDevice": lambda *_: gpu.synchronize(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_getDeviceStats": lambda *_: memory.settled().as_memory_stats(),
        "_accelerator_resetPeakStats": lambda *_: memory.settled().reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda *_: memory.settled().reset_accumulated(),
        "_accelerator_getMemoryInfo": lambda *_: (memory.free_bytes(), gpu.spec.memory_bytes),
    }
    for name, function in functions.items():
        patches.set_existing(torch._C, name, function)
    patches.set(torch.accelerator, "is_available", lambda: True)
    patches.set(torch.accelerator, "device_count", lambda: 1)
