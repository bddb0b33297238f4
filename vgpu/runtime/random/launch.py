"""Which thread of a launch draws which number: PyTorch's kernels for distributions, and for dropout.

So the numbers of a seed differ between cards as soon as a tensor has more elements than the card has resident threads,
as they do on real ones. Source: ATen/native/cuda/DistributionTemplates.h (`calc_execution_policy`,
`distribution_elementwise_grid_stride_kernel`) and Dropout.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from vgpu.device.spec import Spec
from vgpu.runtime.random import numbers, philox

_BLOCK = 256
"""Threads of a block."""
_PER_CALL = 4
"""A state's offset counts numbers; the largest call of cuRAND's takes four."""
_CHUNK = 1 << 15
"""So many threads are computed at once: their words stay in a processor's cache."""

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum number of resident threads per
# multiprocessor. Of others the next lower capability that is named.
_RESIDENT = {(7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536, (8, 9): 1536, (9, 0): 2048, (12, 0): 1536}


def resident_threads(compute_capability: Sequence[int]) -> int:
    """Threads that a multiprocessor keeps at a time."""
    known = [capability for capability in _RESIDENT if capability <= tuple(compute_capability)]
    return _RESIDENT[max(known, default=min(_RESIDENT))]


@dataclass(frozen=True)
class Launch:
    """A kernel that draws numbers for `count` elements."""

    count: int
    threads: int
    """In the whole grid."""
    unroll: int
    """Elements that a thread makes of one call's words."""

    @classmethod
    def of(cls, spec: Spec, count: int, unroll: int = 4) -> Launch:
        """The launch that PyTorch chooses on a card."""
        blocks = spec.multiprocessors * (resident_threads(spec.compute_capability) // _BLOCK)
        return cls(count, _BLOCK * min(-(-count // _BLOCK), blocks), unroll)

    @property
    def calls(self) -> int:
        """Calls of each thread."""
        return (self.count - 1) // (self.threads * self.unroll) + 1

    @property
    def offset(self) -> int:
        """How far the launch moves the generator's offset on."""
        return self.calls * _PER_CALL


Make = Callable[[philox.Words], Sequence[torch.Tensor]]
"""Makes of a call's words as many values as a thread unrolls."""


def spread(launch: Launch, seed: int, offset: int, dtype: torch.dtype, make: Make) -> torch.Tensor:
    """The values of all elements, [count], in the order of memory: the n-th of a call lies a whole grid further on."""
    values = torch.empty(launch.count, dtype=dtype)
    wave = launch.threads * launch.unroll
    for call in range(launch.calls):
        start = call * wave
        for first in range(0, min(launch.threads, launch.count - start), _CHUNK):
            last = min(first + _CHUNK, launch.threads, launch.count - start)
            made = make(philox.words(seed, torch.arange(first, last), offset // _PER_CALL + call))
            for place, part in enumerate(made):
                begin = start + place * launch.threads + first
                if begin < launch.count:
                    end = min(begin + last - first, launch.count)
                    values[begin:end] = part[: end - begin]
    return values


def neighbours(count: int, threads: int, seed: int, offset: int, width: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Uniform numbers where each thread takes `width` neighbouring elements at a time: where they begin, and they.

    A thread makes one call for each four elements, and one for two where it takes two (of whose words it leaves two).
    """
    each = max(1, width // 4)
    for step, start in enumerate(range(0, count, threads * width)):
        active = min(threads, -(-(count - start) // width))
        for first in range(0, active, _CHUNK):
            index = torch.arange(first, min(first + _CHUNK, active))
            parts: list[torch.Tensor] = []
            for number in range(each):
                words = philox.words(seed, index, offset // _PER_CALL + step * each + number)
                parts += words[: min(width, 4)]
            yield start + first * width, numbers.unit(torch.stack(parts, 1).view(-1))
