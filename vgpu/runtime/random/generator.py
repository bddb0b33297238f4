"""The random-number generator of a GPU: a seed and an offset, as CUDA's.

As on CUDA its state is 16 bytes (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp), and operations draw by Philox from both
(`vgpu.runtime.random.distributions`). The few whose kernels are not known here draw from PyTorch's CPU generator,
newly seeded from both: their numbers are neither those of a real GPU nor the CPU's.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import struct
from typing import Any

import torch

from vgpu.runtime.thread_state import THREAD

# The seed of CUDA's default generator before anyone sets one (c10::default_rng_seed_val).
DEFAULT_SEED = 67280421310721
_ALL_BITS = (1 << 64) - 1
# A Philox call gives four numbers, so offsets are multiples of this (`set_philox_offset_per_thread`).
_OFFSET_STEP = 4


def _require_no_capture(method: str) -> None:
    """`assertNotCapturing` (CUDAGraphsUtils.cuh), of methods whose effect no replay would repeat."""
    if THREAD.capture is not None:
        raise RuntimeError(
            f"Cannot call CUDAGeneratorImpl::{method} during CUDA graph capture. If you need this call to be captured, "
            "please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


class _State:
    """Seed and offset, which several generators may share (`CUDAGeneratorState`)."""

    __slots__ = ("offset", "seed")

    def __init__(self) -> None:
        self.seed, self.offset = DEFAULT_SEED, 0


class CudaGenerator(torch.Generator):
    """A generator whose device is a GPU."""

    _device = torch.device("cuda", 0)
    _own: _State | None = None

    @property
    def _state(self) -> _State:
        if self._own is None:
            self._own = _State()
        return self._own

    @property
    def _seed(self) -> int:
        return self._state.seed

    @_seed.setter
    def _seed(self, seed: int) -> None:
        self._state.seed = seed

    @property
    def _offset(self) -> int:
        return self._state.offset

    @_offset.setter
    def _offset(self, offset: int) -> None:
        self._state.offset = offset

    def manual_seed(self, seed: int) -> CudaGenerator:
        """Begin the numbers of a seed; in a graph's capture only the seed that it has."""
        if THREAD.capture is not None:
            if seed & _ALL_BITS != self._seed:
                raise RuntimeError(
                    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the "
                    "same as the original seed."
                )
            return self
        super().manual_seed(seed)
        self._seed, self._offset = super().initial_seed(), 0
        return self

    def seed(self) -> int:
        """Begin the numbers of a seed that nobody knows; returns it."""
        _require_no_capture("seed")
        self._seed, self._offset = super().seed(), 0
        return self._seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def advance(self, count: int) -> tuple[int, int]:
        """Seed and offset for an operation of which each thread draws up to `count` numbers; moves the offset on."""
        offset = self._offset
        self._offset += -(-count // _OFFSET_STEP) * _OFFSET_STEP
        return self._seed, offset

    def next_seed(self) -> int:
        """Where the next operation's numbers begin, in 63 bits (the finaliser of splitmix64); moves the offset on."""
        mixed = (self._seed + 0x9E3779B97F4A7C15 * (self._offset + 1)) & _ALL_BITS
        self._offset += _OFFSET_STEP
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _ALL_BITS
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _ALL_BITS
        return (mixed ^ (mixed >> 31)) >> 1

    def draw(self) -> CudaGenerator:
        """Ready for one operation."""
        super().manual_seed(self.next_seed())
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, 8 bytes each, in a tensor on the CPU."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return torch.frombuffer(bytearray(struct.pack("<QQ", self._seed, self._offset)), dtype=torch.uint8)

    def graphsafe_get_state(self) -> CudaGenerator:
        """A generator that shares this one's state (`CUDAGeneratorImpl::graphsafe_get_state`)."""
        shared = on(self._device)
        shared._own = self._state
        return shared

    def graphsafe_set_state(self, state: Any) -> CudaGenerator:
        """Share the state of another one from now on."""
        self._own = state._state
        return self

    def set_state(self, new_state: torch.Tensor) -> CudaGenerator:
        """Go on from a state; raises TypeError and RuntimeError as CUDA's does (`check_rng_state`)."""
        if new_state.device.type != "cpu" or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            values = bytes(new_state.tolist())
        if len(values) not in (8, 16):
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = struct.unpack("<QQ", values.ljust(16, b"\0"))
        return self

    def get_offset(self) -> int:
        """How far the numbers of this seed have been drawn."""
        _require_no_capture("get_offset")
        return self._offset

    def set_offset(self, offset: int) -> CudaGenerator:
        """Go to an offset, a multiple of 4."""
        _require_no_capture("set_offset")
        if offset % _OFFSET_STEP:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = offset
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the program asked for."""
        return self._device

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles keep the device (`THPGenerator_reduce` in torch/csrc/Generator.cpp)."""
        return on, (self._device,), (self._seed, self._offset, self.get_state())

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        self.set_state(state[2])

    def clone_state(self) -> CudaGenerator:
        """A generator that continues from the same state."""
        _require_no_capture("clone_impl")
        copy = on(self._device)
        copy.set_state(self.get_state())
        return copy


def on(device: torch.device) -> CudaGenerator:
    """A new generator of a GPU."""
    generator = CudaGenerator()
    generator._device = device
    return generator
