"""The options of PYTORCH_CUDA_ALLOC_CONF that the model of the caching allocator follows. Pure Python.

Names, bounds and error texts: c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h. Not here: what they do
(`vgpu.runtime.memory.allocator`, `vgpu.runtime.memory.expandable`).
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MEBI = 1 << 20
_LARGE_BUFFER_MEBI = 20  # kLargeBuffer
# Intervals of roundup_power2_divisions: powers of two from 1 MiB to 64 GiB.
_INTERVALS = 16
# They change what is done in host memory, in captured graphs, or only how fast: nothing to account for here.
_WITHOUT_EFFECT = {
    "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "pinned_max_register_threads",
    "pinned_max_power2_size_mb", "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
}  # fmt: skip
# They would change what is counted, and are not modelled: said once, then ignored.
_NOT_MODELLED = {"garbage_collection_threshold", "large_segment_size_mb"}


@dataclass(frozen=True)
class AllocatorSettings:
    """Sizes in bytes; `divisions` holds one number of divisions per power of two from 1 MiB on (0: none)."""

    max_split_bytes: float = math.inf
    max_non_split_rounding_bytes: int = _LARGE_BUFFER_MEBI * _MEBI
    divisions: tuple[int, ...] = (0,) * _INTERVALS
    expandable_segments: bool = False
    process_fraction: float = 1.0


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """The options that an environment asks for, as text; "" for none."""
    return next(filter(None, map(environment.get, VARIABLES)), "")


def parse(text: str) -> AllocatorSettings:
    """`option:value,option:[a:b,c:d]`; raises RuntimeError where CUDA's parser does."""
    values: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", text):
        if part.strip():
            key, _, value = part.strip().partition(":")
            values[key.strip()] = value.strip()
    chosen: dict[str, object] = {}
    for key, value in values.items():
        if key == "backend":
            if value != "native":
                warnings.warn(f"vgpu models the native allocator only; backend:{value} is ignored", stacklevel=2)
        elif key == "max_split_size_mb":
            if int(value) <= _LARGE_BUFFER_MEBI:
                raise RuntimeError("CachingAllocator option max_split_size_mb too small, must be > 20")
            chosen["max_split_bytes"] = int(value) * _MEBI
        elif key == "max_non_split_rounding_mb":
            if int(value) <= _LARGE_BUFFER_MEBI:
                raise RuntimeError("CachingAllocator option max_non_split_rounding_mb too small, must be > 20")
            chosen["max_non_split_rounding_bytes"] = int(value) * _MEBI
        elif key == "roundup_power2_divisions":
            chosen["divisions"] = _divisions(value)
        elif key == "expandable_segments":
            if value not in ("True", "False"):
                raise RuntimeError("Expected a single True/False argument for expandable_segments")
            chosen["expandable_segments"] = value == "True"
        elif key == "per_process_memory_fraction":
            chosen["process_fraction"] = float(value)
        elif key in _NOT_MODELLED:
            warnings.warn(f"vgpu does not model the allocator option {key}; it is ignored", stacklevel=2)
        elif key not in _WITHOUT_EFFECT:
            raise RuntimeError(f"Unrecognized key '{key}' in CUDA allocator config.")
    return AllocatorSettings(**chosen)  # type: ignore[arg-type]


def _divisions(text: str) -> tuple[int, ...]:
    """One number for all sizes, or `[size in MiB:number, ..., >:number]`."""

    def checked(number: str) -> int:
        value = int(number)
        if value != 0 and value & (value - 1):
            raise RuntimeError("For roundups, the divisions has to be power of 2 or 0 to disable roundup")
        return value

    if not text.startswith("["):
        return (checked(text),) * _INTERVALS
    table = [0] * _INTERVALS
    last = 0
    for pair in text.strip("[]").split(","):
        size, _, number = pair.partition(":")
        value = checked(number.strip())
        first = last if size.strip() == ">" else int(size).bit_length() - 1
        if size.strip() == ">" or not last:
            spread = range(first if size.strip() == ">" else 0, _INTERVALS if size.strip() == ">" else first + 1)
        else:
            spread = range(first, first + 1)
        for index in spread:
            table[min(index, _INTERVALS - 1)] = value
        last = first + 1
    return tuple(table)


def round_up(size: int, divisions: tuple[int, ...], block: int) -> int:
    """`round_size`: a multiple of `block`, or of a division of the power of two below."""
    if size < block:
        return block
    share = divisions[min(max(size.bit_length() - 1 - 20, 0), _INTERVALS - 1)]
    if share <= 1 or size <= block * share:
        return -(-size // block) * block
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor // share
    return floor << 1 if step == 0 else -(-size // step) * step
