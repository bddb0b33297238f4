"""What is measured next, and what an entry says. Not here: the cases, and the file that the entries are kept in."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import cases
from benchmarks.measured.drawn.case import Case
from benchmarks.measured.drawn.families import FAMILIES
from benchmarks.measured.drawn.timing import real_seconds
from benchmarks.published.timing import allow_tf32

Entry = dict[str, Any]
DONE, DEVICE_LOST = 0, 3
"""Exit codes of a run: of any that could go on, and of one after which this process cannot use the GPU."""
_LOST = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address",
    "illegal instruction", "invalid program counter", "hardware stack error", "uncorrectable ECC", "GPU is lost",
    "fell off the bus",
)  # fmt: skip
"""After these errors every later call of CUDA in the process fails."""
_SHARE_OF_FREE_MEMORY = 0.6
_MOST_KERNEL_NAMES, _LONGEST_NAME, _LONGEST_ERROR = 8, 200, 300
_profiled = False


def remaining(known: Collection[str], families: Sequence[str] = ()) -> list[Case]:
    """Cases that nobody has measured and that this machine can measure.

    Raises:
        ValueError: there is no family of a name.
    """
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise ValueError(f"no family is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    available = [family for family in families or FAMILIES if not FAMILIES[family].missing()]
    return [case for case in cases.load() if case.family in available and case.id not in known]


def in_order(chosen: Sequence[Case], seed: int) -> list[Case]:
    """Shuffled; at any time each family is about as far as the others, and the first cases are one of each."""
    rng = random.Random(seed)
    families: dict[str, list[Case]] = {}
    for case in chosen:
        families.setdefault(case.family, []).append(case)
    placed = []
    for members in families.values():
        rng.shuffle(members)
        placed += [(number / len(members), rng.random(), case) for number, case in enumerate(members)]
    return [case for _, _, case in sorted(placed, key=lambda place: place[:2])]


def measure(
    known: Collection[str], seconds: float, on_result: Callable[[Entry], None], *, seed: int,
    families: Sequence[str] = (), kernel_names: bool = True,
) -> int:  # fmt: skip
    """Measure cases whose id is not known, and begin nothing new after `seconds`.

    `on_result` receives the entry of each case as soon as there is one. Returns `DONE`, also if time ran out; or
    `DEVICE_LOST` if an error has made the GPU unusable for this process: then start another process for the rest.

    Raises:
        ValueError: there is no family of a name.
    """
    start = real_seconds()
    with _settings_kept():
        for case in in_order(remaining(known, families), seed):
            left = seconds - (real_seconds() - start)
            if left <= 0:
                break
            if left < FAMILIES[case.family].usual_seconds:
                continue
            entry = run(case, kernel_names=kernel_names)
            on_result(entry)
            if any(text in entry.get("error", "") for text in _LOST):
                return DEVICE_LOST
    return DONE


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """What cases change for all of PyTorch is put back. A collection of garbage looks at the cases' objects only."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    gc.collect()
    gc.freeze()
    _allocate_workspace()
    try:
        yield
    finally:
        gc.unfreeze()
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _allocate_workspace() -> None:
    """Up to PyTorch 2.14 the library of products keeps memory from its first call in a thread on: it is of no case."""
    for dtype in (torch.float32, torch.float16):
        x = torch.zeros(16, 16, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()  # a thread of its own does that


def run(case: Case, *, kernel_names: bool = True) -> Entry:
    """The case's entry: its head, and its values or the error that it ended with, in one line."""
    entry: Entry = case.document()
    try:
        _require_memory(case)
        entry |= _measured(case, kernel_names)
    except Exception as error:  # whatever a case does wrong, the others are measured
        entry["error"] = _one_line(error)
    with contextlib.suppress(Exception):  # an unusable GPU fails here as well, and its entry says so already
        gc.collect()
        torch.cuda.empty_cache()
    return entry


def _measured(case: Case, kernel_names: bool) -> Entry:
    """Values, bytes, and the names of kernels. All tensors of the case are gone when this returns."""
    torch.manual_seed(0)
    allow_tf32(case.precision)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = real_seconds()
    after_profiler = _profiled
    measured = FAMILIES[case.family].measure(case.parameters, case.precision)
    torch.cuda.synchronize()
    values = measured.values | {"peak_bytes": torch.cuda.max_memory_allocated() - before}
    if kernel_names and measured.step is not None:
        values |= _kernels(measured.step)
    return values | {"after_profiler": after_profiler, "case_seconds": round(real_seconds() - start, 4)}


def _require_memory(case: Case) -> None:
    needed = FAMILIES[case.family].bytes_needed(case.parameters, case.precision)
    free, _ = torch.cuda.mem_get_info()
    if needed > _SHARE_OF_FREE_MEMORY * free:
        raise MemoryError(f"not begun: it needs about {needed / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free")


def _kernels(step: Step) -> Entry:
    """Kernels of one call: their names, how many were launched, their seconds. Nothing if the profiler fails.

    A profiler may leave host calls a little slower behind, so an entry says whether one had run (`after_profiler`).
    """
    global _profiled
    _profiled = True
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            step()
            torch.cuda.synchronize()
        events = [event for event in profiler.events() or () if _is_kernel(event)]
    except Exception as error:
        if any(text in str(error) for text in _LOST):
            raise
        return {"kernels_error": _one_line(error)}
    names = list(dict.fromkeys(event.name[:_LONGEST_NAME] for event in events))
    return {
        "kernels": names[:_MOST_KERNEL_NAMES],
        "kernel_launches": len(events),
        "kernel_seconds": sum(event.time_range.elapsed_us() for event in events) / 1e6,
    }


def _is_kernel(event: Any) -> bool:
    """Optimizers also annotate the time of their kernels on the device, which would count twice."""
    return event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
