"""`torch.cuda`, `torch.accelerator` and the functions of `torch._C` beneath them.

Most of `torch.cuda` is Python above a few `torch._C._cuda_*` functions: replacing those keeps PyTorch's own code for
everything above. Not here: streams and events (`vgpu.torch_integration.patches.streams`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.cuda
import torch.cuda.memory
import torch.cuda.random
from torch.cuda._utils import _get_device_index

from vgpu.device.kernel_work import FIXED, KernelWork
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.device_memory import DeviceMemory
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.random.launch import resident_threads
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.devices import gpu_at

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
        max_threads_per_multi_processor=resident_threads((major, minor)), max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152, L2_cache_size=spec.l2_bytes,
        clock_rate=int(spec.clock_hertz / 1000), is_integrated=False, is_multi_gpu_board=False,
        gcnArchName="", uuid=gpu.uuid, pci_bus_id=0, pci_device_id=4 + gpu.number, pci_domain_id=0,
    )  # fmt: skip


def install(patches: PatchSet, machine: Machine) -> None:
    """Make `torch.cuda` and `torch.accelerator` those of the virtual GPUs."""
    replacements = _python_functions(machine)
    for name, function in replacements.items():
        patches.rebind(getattr(torch.cuda, name), function)
    for name, function in _c_functions(machine).items():
        # Bound by name in several modules (`torch.cuda._exchange_device`), absent from CPU-only builds.
        if hasattr(torch._C, name):
            patches.rebind(getattr(torch._C, name), function)
        else:
            patches.set(torch._C, name, function)
    patches.set(torch.cuda, "_initialized", True)
    patches.at_begin(lambda: patches.set(torch.cuda, "_cached_device_count", len(machine.gpus)))
    # PyTorch sets it when it initialises CUDA.
    patches.set(torch.cuda, "_get_device_properties", lambda index: properties(gpu_at(machine, index)))
    _accelerator(patches, machine)
    _plan_caches(patches, machine)
    backends = torch.backends
    patches.set(backends.cuda, "is_built", lambda: True)


# cuFFT's plans per GPU (aten/src/ATen/native/cuda/CuFFTPlanCache.h, `CUFFT_DEFAULT_CACHE_SIZE`).
_PLANS = 4096


def _plan_caches(patches: PatchSet, machine: Machine) -> None:
    """How many plans of cuFFT are kept at most; there are no plans here, and their number is not known."""
    sizes: dict[int, int] = {}

    def set_max_size(index: int, size: int) -> None:
        if size < 0:
            raise RuntimeError(f"cuFFT plan cache size must be non-negative, but got {size}")
        sizes[gpu_at(machine, index).index] = size

    # The class holds the functions themselves.
    limit = vars(torch.backends.cuda.cuFFTPlanCache)["max_size"]
    patches.set(limit, "getter", lambda index: sizes.get(gpu_at(machine, index).index, _PLANS))
    patches.set(limit, "setter", set_max_size)


def _asked_count(machine: Machine) -> int:
    """How many GPUs the driver reports, which decides then which they are (cudaGetDeviceCount)."""
    machine.choose()
    return machine.device_count()


def _set_device(machine: Machine) -> Callable[[int], None]:
    def set_device(index: int) -> None:
        if index >= 0:
            machine.initialise()
            THREAD.device = gpu_at(machine, index).index

    return set_device


def _exchange_device(machine: Machine) -> Callable[[int], int]:
    """c10/cuda/CUDAFunctions.cpp, `ExchangeDevice`: a negative index changes nothing and gives -1."""

    def exchange(index: int) -> int:
        if index < 0:
            return -1
        before, THREAD.device = THREAD.device, gpu_at(machine, index).index
        return before

    return exchange


def _python_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        gpu = gpu_at(machine, _get_device_index(device, optional=True))
        gpu.start()
        return gpu.memory.free_bytes(), machine.spec.memory_bytes

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or machine.spec.compute_capability >= (8, 0)

    def lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:
        if machine.gpus:  # else as on a machine without one, where it waits for ever
            callable()

    def start() -> None:
        machine.require_usable()
        machine.gpus[THREAD.device].start()

    def current_device() -> int:
        machine.initialise()
        return THREAD.device

    def get_arch_list() -> list[str]:
        major, minor = machine.spec.compute_capability
        return [f"sm_{major}{minor}"]

    return {
        "is_available": lambda: _asked_count(machine) > 0,
        "device_count": machine.device_count,
        "current_device": current_device,
        "mem_get_info": mem_get_info,
        "is_bf16_supported": is_bf16_supported,
        "is_initialized": lambda: machine.is_initialized,
        "init": start,
        "_lazy_init": machine.initialise,
        "_lazy_call": lazy_call,
        "_is_compiled": lambda: True,
        "get_arch_list": get_arch_list,
        "is_current_stream_capturing": lambda: False,
        "_exchange_device": _exchange_device(machine),
        "_maybe_exchange_device": _exchange_device(machine),
    }


# Host time of a look at the allocator's counters: modelled.
_STATS_SECONDS = 1e-6


def _memory_of(machine: Machine) -> Callable[[int], DeviceMemory]:
    def memory(index: int) -> DeviceMemory:
        if not 0 <= index < len(machine.gpus):  # `assertValidDevice` in c10/cuda/CUDACachingAllocator.cpp
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return machine.gpus[index].memory

    return memory


def _stats_of(machine: Machine) -> Callable[[int], dict[str, Any]]:
    memory = _memory_of(machine)

    def memory_stats(index: int) -> dict[str, Any]:
        """A look costs a thread next to others time, so that one that looks again and again lets them go on."""
        if machine.clock.scheduler.has_others(machine.clock.mine()):
            machine.clock.ask(_STATS_SECONDS)
        return memory(index).settled().as_memory_stats()

    return memory_stats


def _empty_cache(machine: Machine) -> Callable[..., None]:
    """The caches of all GPUs (CUDACachingAllocator.cpp, `emptyCache`)."""

    def empty_cache(*_: Any) -> None:
        for gpu in machine.gpus:
            if gpu.started:
                gpu.synchronize()
            gpu.memory.empty_cache()

    return empty_cache


def _c_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    memory = _memory_of(machine)

    def current() -> VirtualGPU:
        return machine.gpus[THREAD.device]

    def sleep(cycles: int) -> None:
        current().start()
        current().launch(KernelWork("spin_kernel", kind=FIXED, seconds=cycles / machine.spec.clock_hertz))

    def clear_workspaces() -> None:
        for gpu in machine.gpus:
            gpu.workspaces.clear()

    names: dict[str, Callable[..., Any]] = {
        "_cuda_getDeviceCount": lambda: _asked_count(machine),
        "_cuda_getDevice": lambda: THREAD.device,
        "_cuda_setDevice": _set_device(machine),
        "_cuda_exchangeDevice": _exchange_device(machine),
        "_cuda_maybeExchangeDevice": _exchange_device(machine),
        # Between two GPUs of one machine, over PCIe or NVLink: modelled as always possible.
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_isInBadFork": lambda: machine.in_bad_fork,
        "_cuda_hasPrimaryContext": lambda device: machine.gpus[device].started,
        "_cuda_synchronize": lambda: current().synchronize(),
        "_cuda_ipc_collect": lambda: None,
        "_cuda_memoryStats": _stats_of(machine),
        "_cuda_resetPeakMemoryStats": lambda device: memory(device).reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda device: memory(device).settled().reset_accumulated(),
        "_cuda_emptyCache": _empty_cache(machine),
        "_cuda_setMemoryFraction": lambda fraction, device: memory(device).set_fraction(fraction),
        "_cuda_getMemoryFraction": lambda device: memory(device).fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_clearCublasWorkspaces": clear_workspaces,
        "_cuda_sleep": sleep,
        "_cuda_set_sync_debug_mode": lambda mode: setattr(machine, "sync_debug_mode", mode),
        "_cuda_get_sync_debug_mode": lambda: machine.sync_debug_mode,
        "_cuda_init": lambda: current().start(),
        "_cuda_getCurrentRawStream": lambda device: machine.gpus[device].stream,
    }
    return names


def _accelerator(patches: PatchSet, machine: Machine) -> None:
    memory = _memory_of(machine)

    def memory_info(index: int) -> tuple[int, int]:
        return memory(index).free_bytes(), machine.spec.memory_bytes

    functions: dict[str, Callable[..., Any]] = {
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_get_accelerator": lambda *_: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: THREAD.device,
        "_accelerator_setDeviceIndex": _set_device(machine),
        "_accelerator_exchangeDevice": _exchange_device(machine),
        "_accelerator_maybeExchangeDevice": _exchange_device(machine),
        "_accelerator_synchronizeDevice": lambda index: gpu_at(machine, index).synchronize(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": _empty_cache(machine),
        "_accelerator_getDeviceStats": _stats_of(machine),
        "_accelerator_resetPeakStats": lambda index: memory(index).reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda index: memory(index).settled().reset_accumulated(),
        "_accelerator_getMemoryInfo": memory_info,
    }
    for name, function in functions.items():
        patches.set_existing(torch._C, name, function)
    patches.set(torch.accelerator, "is_available", lambda: _asked_count(machine) > 0)
    patches.set(torch.accelerator, "device_count", lambda: _asked_count(machine))
