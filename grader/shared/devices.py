"""What submissions run on here: an NVIDIA GPU, a virtual one, or the CPU (see `gradebox.sandbox.devices.DeviceModule`).

`parse` runs in the judge, so it asks NVML and not torch. The rest runs in the sandbox's processes, where torch and vgpu
are imported already; what is looked up in `sys.modules` there is not worth a second of importing in the judge.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import sys
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradebox.sandbox.devices import CPU, Device, DeviceError, Simulator
from grader.shared import addresses
from grader.shared.answering import answering as answering
from grader.shared.answering import links as links
from grader.shared.answering import modes as modes

if TYPE_CHECKING:
    from torch import Tensor

    from vgpu import Prepared, VirtualGPU

DEFAULT_MODEL = "T4"
_VIRTUAL = "vgpu"
_SHOWN_KERNELS = 40
"""Of each rank, next to a check of times that fails."""

# --- in the judge -----------------------------------------------------------------------------------------------------


def parse(option: str) -> Device:
    """Resolve `auto`, `cuda`, `vgpu` or `vgpu:MODEL`.

    Raises:
        DeviceError: for an unknown word, an unknown model, or `cuda` where NVML finds no GPU.
    """
    from grader.shared import nvidia_gpu  # not in the sandbox's processes: a submission decides when NVML is imported

    if option in ("auto", "cuda"):
        device = nvidia_gpu.find()
        if device is not None:
            return device
        if option == "cuda":
            raise DeviceError(
                "device cuda: no NVIDIA GPU answers here (`nvidia-smi` would say why). "
                "Choose the device vgpu to grade on the virtual GPU."
            )
        return _virtual(DEFAULT_MODEL)
    kind, _, model = option.partition(":")
    if kind == _VIRTUAL:
        return _virtual(model or DEFAULT_MODEL)
    raise DeviceError(f"device {option}: expected auto, cuda, vgpu or vgpu:MODEL")


def _virtual(model: str) -> Device:
    import vgpu

    try:
        spec = vgpu.get_spec(model)
    except (ValueError, KeyError, OSError) as error:
        raise DeviceError(f"device vgpu:{model}: {error}") from None
    return Device(f"vgpu:{model}", f"virtual {spec.name} (simulated)", simulated=True)


def watch(device: str) -> contextlib.AbstractContextManager[Sequence[str]]:
    """What NVML says of the GPU while a request measures on it."""
    from grader.shared import disturbance, nvidia_gpu

    return disturbance.watched(nvidia_gpu.first_visible) if device == "cuda" else contextlib.nullcontext(())


# --- in the sandbox ---------------------------------------------------------------------------------------------------

SIMULATOR: Simulator | None = Simulator(
    package=_VIRTUAL,
    title="the virtual GPU",
    unsupported="Unsupported",
    record_event="vgpu.record",
    launch_event="vgpu.tools.launch",
    asked=frozenset(
        (
            *("memory_timeline", "category_timeline", "memory_by_category", "peak_by_category"),
            *("utilization", "now", "summary"),
        )
    ),
    instruments={
        "vgpu.runtime.nvml": ("Nvml.",),
        "vgpu.torch_integration.profiler_events": ("Recorder.",),
        "vgpu.runtime.gpu": ("VirtualGPU.launch", "VirtualGPU.mark_memory"),
        "vgpu.runtime.memory.categories": ("Ledger.after_step",),
        "vgpu.runtime.views.snapshot": ("_trace",),
        "vgpu.torch_integration.patches.loaders": ("install.<locals>.get_data",),
    },
    entries={
        "vgpu.torch_integration.dispatch.dispatch_mode": "DispatchMode.__torch_dispatch__",
        "vgpu.torch_integration.dispatch.function_mode": "FunctionMode.__torch_function__",
    },
    engine=(
        "vgpu.runtime.gpu",
        "vgpu.runtime.machine",
        "vgpu.device",
        "vgpu.timing",
        "vgpu.runtime.memory",
        "vgpu.runtime.audit_events",
        "vgpu.torch_integration.dispatch.repeats",
        "vgpu.torch_integration.dispatch.dispatch_mode",
        "vgpu.torch_integration.compiled.programs",
        "vgpu.torch_integration.flash_attention.launching",
    ),
    recorder="vgpu.runtime.audit_events",
    broken_event="vgpu.broken",
    generators={
        "vgpu.runtime.audit_events": ("history", "steps", "kernels", "living"),
        "vgpu.device.remote": ("_writer",),
    },
    profilers=("/torch/autograd/profiler.py",),
)
INSTRUMENTS = {
    "torch": ("allclose", "equal", "isclose"),
    "torch.testing": ("assert_close",),
    "torch.cuda": ("synchronize", "is_available", "Event", "Stream", "memory_allocated", "memory_reserved",
                   "max_memory_allocated", "max_memory_reserved", "memory_stats", "mem_get_info", "empty_cache",
                   "reset_peak_memory_stats", "reset_accumulated_memory_stats", "get_device_properties",
                   "get_device_name", "device_count", "current_device"),
    "torch.cuda.memory": ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved",
                          "memory_stats", "reset_peak_memory_stats", "empty_cache"),
    "torch.distributed": ("all_reduce", "all_gather", "broadcast", "barrier", "reduce", "reduce_scatter",
                          "all_gather_into_tensor", "reduce_scatter_tensor", "get_rank", "get_world_size"),
}  # fmt: skip
CLASSES = {"torch.cuda": ("Event", "Stream")}
EXCHANGED = frozenset({"pynvml"})


Patched: TypeAlias = Any
"""An object whose inner parts are used or changed here, which no type names."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_shown: list[str] = []
"""What this variable was before the server hid every GPU from itself; empty where it was not set."""


def before_imports() -> None:
    """No GPU is in sight, so that none is opened: `torch.utils.benchmark` of PyTorch 2.11 asks for one when it is
    imported, `cuInit` then starts a thread, and neither lives on in a forked child (found on an H100)."""
    if _VISIBLE in os.environ:
        _shown.append(os.environ[_VISIBLE])
    os.environ |= {_VISIBLE: "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def _show_gpus() -> None:
    """In a child that may use them."""
    os.environ.pop(_VISIBLE, None)
    for value in _shown:
        os.environ[_VISIBLE] = value


def _hide_gpus() -> None:
    """In a child that has none: where there are no namespaces it would see those of the machine."""
    if os.path.exists("/dev/nvidiactl"):
        os.environ[_VISIBLE] = ""
    else:  # as it is where nobody has hidden any
        os.environ.pop(_VISIBLE, None)


def _wait_in_timers() -> None:
    """What `torch.utils.benchmark` of PyTorch 2.11 decides when it is imported, where it was imported without a GPU."""
    module = sys.modules.get("torch.utils.benchmark.utils.timer")
    if module is None or module.timer is not timeit.default_timer:
        return
    torch = sys.modules["torch"]

    def timer() -> float:
        torch.accelerator.synchronize()
        return timeit.default_timer()

    start: Patched = module.Timer.__init__
    start.__defaults__ = tuple(timer if value is timeit.default_timer else value for value in start.__defaults__)
    module.timer = timer  # type: ignore[attr-defined]


def require_forkable() -> None:
    """CUDA that is initialised does not work in forked children.

    Raises:
        RuntimeError: it is.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("a preloaded module initialised CUDA, which then does not work in forked children")
    if torch is not None:
        from grader.shared.settled import settle

        settle(torch)
    addresses.announce()
    _look_ahead()


def _look_ahead() -> None:
    """What attaching finds in PyTorch's modules is remembered: found here, it need not be found in each child."""
    if "vgpu" in sys.modules and not os.path.exists("/dev/nvidiactl"):
        import vgpu

        with vgpu.attach("T4", values=False):
            pass


def prepares(device: str) -> str:
    """To attach a virtual GPU is to look at thousands of modules; which one it is makes no difference."""
    return _VIRTUAL if device.partition(":")[0] == _VIRTUAL else ""


def prepare(what: str) -> Prepared:
    """A `vgpu.Prepared`, for all virtual GPUs."""
    import vgpu

    # On a machine with a real GPU some checks still ask for the virtual one, whose times are known exactly.
    return vgpu.prepare()


def seed(device: str, number: int, *, threads: int) -> None:
    """Forked ranks would share the server's generator states; give each its own, the same in every run."""
    random.seed(number)
    np.random.seed(number)
    torch = sys.modules.get("torch")
    if torch is not None:
        # `torch.manual_seed` would seed the virtual GPU, which is there already, as well.
        (torch.manual_seed if device == "cuda" else torch.default_generator.manual_seed)(number)
        torch.set_num_threads(threads)


def serves(device: str) -> bool:
    """Whether it is a virtual GPU: its queues and its record are in a process of their own."""
    return device.partition(":")[0] == _VIRTUAL


def serve(
    device: str,
    lines: Sequence[Connection],
    control: Connection,
    *,
    present: bool,
    conditions: Sequence[Mapping[str, Any]],
    prepared: Prepared | None,
) -> dict[str, object]:
    """Be the virtual GPUs of all ranks; each rank sees as many as there are ranks.

    Conditions are `vgpu.device.service.condition_of`'s. Where there is no submission the ranks may read their record.
    """
    import vgpu
    from grader.shared.readings import read
    from vgpu.device.service import Service, condition_of

    spec = vgpu.get_spec(device.partition(":")[2])
    service = Service(
        spec,
        vgpu.get_interconnect(spec.interconnect, spec),
        ranks=len(lines),
        gpus=len(lines),
        conditions=[condition_of(condition) for condition in conditions],
        reader=read,
        open_record=not present,
    )
    service.serve(lines, control)
    return {"readings": service.readings, "faults": service.faults, "shown": service.shown(_SHOWN_KERNELS)}


@contextlib.contextmanager
def attach(
    device: str, *, values: bool, ranks: int, prepared: Prepared | None, line: Connection | None
) -> Iterator[VirtualGPU | None]:
    """The device that the submission sees as `cuda`, one for each rank; yields the virtual GPU or None."""
    addresses.announce()
    kind, _, model = device.partition(":")
    if kind == "cuda":
        _show_gpus()
    else:
        _hide_gpus()
    if kind != _VIRTUAL:
        if kind == "cuda":
            _initialise()
            _wait_in_timers()
        _keep_process_groups()
        yield None
    elif prepared is not None:
        with prepared.begin(model, gpus=ranks, values=values) as gpu:
            if line is not None:
                gpu.machine.move_to(line)
            _initialise()
            _keep_process_groups()
            yield gpu
    else:
        import vgpu

        with vgpu.attach(model, values=values, gpus=ranks, force=True) as gpu:
            if line is not None:
                gpu.machine.move_to(line)
            _initialise()
            _keep_process_groups()
            yield gpu


def _initialise() -> None:
    """As after a program's first use of CUDA; before it, `torch.cuda.memory_stats()` is empty."""
    import torch

    torch.cuda.current_device()


def _keep_process_groups() -> None:
    """No process group's object ends before its process does, whoever has left it.

    A DistributedDataParallel that outlives its group is the group's last owner, and that is usual: a variable of the
    function that calls `destroy_process_group`, or of the frames of its error. ProcessGroupGloo's destructor then waits
    for its threads without giving up the interpreter's lock, and one of them may want that lock to let go of a tensor:
    in PyTorch 2.11 about one of ten such ends never came.
    """
    c10d: Patched = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return
    make = c10d._new_process_group_helper

    def made_for_good(*arguments: object, **options: object) -> object:
        made = make(*arguments, **options)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[0]))
        return made

    c10d._new_process_group_helper = made_for_good


def visible(device: str) -> str:
    """Real or virtual, it is `cuda` to a submission."""
    return CPU if device == CPU else "cuda"


def parts(gpu: VirtualGPU | None) -> dict[str, tuple[object, ...]]:
    """What each virtual GPU measures with here: the same objects, and a clock that only its own functions moved."""
    by_name: dict[str, tuple[object, ...]] = {}
    for each in () if gpu is None else gpu.machine.gpus:
        clock, history = each.clock, each.memory.history
        mine = clock.mine()
        name = f"the virtual GPU {each.index}"
        pieces = (
            each.machine,
            clock,
            each.registry,
            each.queue,
            each.memory,
            each.memory._clock,
            each.spec,
        )
        by_name[f"{name}'s parts"] = (*pieces, history, clock.scheduler)
        by_name[f"{name}'s data sheet"] = (sys.intern(repr(each.spec)),)
        by_name[f"{name}'s clock"] = (mine, mine.step, _answer(mine.step))
        written = getattr(getattr(each.queue, "line", None), "_writers", ())
        by_name[f"{name}'s record"] = (history.tell, each.memory.living, each.repeats, *written)
    return by_name


def _answer(ask: Callable[[None], object]) -> object:
    """What a generator of events (`vgpu.runtime.audit_events`) says to None: whether all is as it can be."""
    try:
        return ask(None)
    except Exception:  # it has been ended
        return None


def hidden(gpu: VirtualGPU) -> tuple[object, ...]:
    """The generators that hold the record of each virtual GPU, and the clock's."""
    kept = [(each.memory.history.tell, each.memory.living, each.repeats) for each in gpu.machine.gpus]
    written = getattr(getattr(gpu.queue, "line", None), "_writers", ())
    return tuple(map(_generator_of, [*itertools.chain(*kept), gpu.clock.mine().step, *written]))


def _generator_of(send: Patched) -> object:
    """Whose method `send` is, although its type does not say that it is one."""
    return send.__self__


def to_probe(array: NDArray[np.generic]) -> Tensor:
    """A tensor on the CPU."""
    import torch

    return torch.from_numpy(array)


def from_probe(value: object) -> tuple[str, NDArray[np.generic]] | None:
    """A tensor's plain data; bfloat16 and float8, which NumPy lacks, as float32. None if it has no data of its own."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(type(value), torch.Tensor):  # `isinstance` would believe its `__class__`
        return None
    # A subclass could answer for itself, whatever it is asked; its plain data cannot.
    with torch._C.DisableTorchFunctionSubclass():
        data = torch._C._TensorBase.as_subclass(value, torch.Tensor).detach()
    if torch._C._dispatch_keys(data).has(torch._C.DispatchKey.Python):
        return None
    dtype = str(data.dtype).removeprefix("torch.")
    plain = data.cpu().resolve_conj().resolve_neg()
    if dtype == "bfloat16" or dtype.startswith("float8"):
        plain = plain.to(torch.float32)
    return dtype, plain.contiguous().numpy()
