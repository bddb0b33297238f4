"""Errors of the CUDA runtime, in PyTorch's words, and the one that stays: a device-side assert.

Not here: which values a kernel asserts on (`vgpu.torch_integration.dispatch.device_asserts`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import torch

from vgpu.runtime.versions import torch_version

# c10/cuda/CUDAException.cpp and CUDAMiscFunctions.cpp put these lines under the name of the error.
_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
_SEARCH = (
    "Search for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
)
_DSA = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n" if torch_version() < (2, 12) else ""
ILLEGAL_ACCESS = "an illegal memory access was encountered"
"""What `VirtualGPU.fail` is given for a kernel that reads or writes outside of its tensors."""
# cudaError_t (driver_types.h): description -> name and number.
_CODES = {
    ILLEGAL_ACCESS: ("cudaErrorIllegalAddress", 700),
    "device-side assert triggered": ("cudaErrorAssert", 710),
    "invalid configuration argument": ("cudaErrorInvalidConfiguration", 9),
    "invalid device ordinal": ("cudaErrorInvalidDevice", 101),
    "invalid resource handle": ("cudaErrorInvalidResourceHandle", 400),
    "operation not permitted when stream is capturing": ("cudaErrorStreamCaptureUnsupported", 900),
}


def launch_blocking() -> bool:
    """Whether every launch waits for its kernel (CUDA C++ Programming Guide, "Environment Variables")."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")


def cuda_error(name: str, hint: str = "") -> RuntimeError:
    """The exception that PyTorch raises for an error of the CUDA runtime."""
    constant, code = _CODES.get(name, ("", 0))
    search = _SEARCH.format(constant) if constant else ""
    suffix = "" if launch_blocking() else _ASYNCHRONOUS
    error = torch.AcceleratorError(f"CUDA error: {name}\n{search}{hint}{suffix}{_DSA}[simulated by vgpu]")
    error.error_code = code  # type: ignore[attr-defined]
    return error


class DeviceAssert(RuntimeError):
    """A kernel that is computed here has found a value that its original asserts on.

    The text is the assertion with its file, below aten/src/ATen/native/cuda: "IndexKernel.cu: `index < size`".
    """


@dataclass(slots=True)
class Fault:
    """A device-side assert or illegal access: the context is lost, and each later call that asks the device raises."""

    assertion: str
    stream: int
    """On which the kernel runs."""
    cause: Exception
    """What the CPU's kernel says about the value."""
    moment: float | None = None
    """When the kernel fails, in virtual seconds; None: at the end of what is queued on its stream."""
    reported: bool = False

    def error(self) -> RuntimeError:
        """The exception of a call that meets it; the device prints the assertion once."""
        if self.assertion == ILLEGAL_ACCESS:
            if not self.reported:
                print(f"[vgpu] {self.assertion}: {self.cause}", file=sys.stderr)
            self.reported = True
            return cuda_error(ILLEGAL_ACCESS)
        if not self.reported:
            self.reported = True
            file, _, condition = self.assertion.partition(": ")
            print(
                f"aten/src/ATen/native/cuda/{file}: block: [0,0,0], thread: [0,0,0] Assertion {condition} failed. "
                f"[simulated by vgpu; {str(self.cause).splitlines()[0]}]",
                file=sys.stderr,
            )
        return cuda_error("device-side assert triggered")
