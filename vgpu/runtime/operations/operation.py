"""What never changes about an operation: what the table knows of its name, and what its schema says.

Here are the types alone. Not here: the table, and how the facts about an overload are found
(`vgpu.runtime.operations.facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vgpu.device.kernel_work import Product, Traffic

if TYPE_CHECKING:
    from vgpu.runtime.operations.cuda_dtypes import DtypeRule

number_of: Callable[[object], int] = object.__hash__
"""As `id`, which raises an audit event: under a grader's hook that takes longer than all else of a look-up."""
Tensors = Sequence[torch.Tensor]
TrafficRule = Callable[[Sequence[Any], Tensors, Tensors], Traffic]
"""From arguments, inputs and outputs: what the kernels move, compute and wait for."""
AlertRule = Callable[[Sequence[Any], Mapping[str, Any]], str]
"""From the arguments of a call: the name of the nondeterministic kernel that it would run, or nothing."""

WaitRule = Callable[[Sequence[Any], Mapping[str, Any]], bool]
"""From the arguments of a call: whether the host waits until the device has computed it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Known:
    """Properties that schemas do not have, and the table does. The defaults hold for most operations."""

    is_metadata: bool = False
    """No kernel: it only makes or changes a tensor's description."""
    allocates_only: bool = False
    is_like: bool = False
    """A factory that takes shape, dtype or device from a tensor."""
    reads: bool = False
    """Reads a value back to the host: the call returns only when the device has computed it."""
    synchronises: bool = False
    """The host waits for it: for the shape of its result, or to know whether it failed."""
    waits: WaitRule | None = None
    """Whether the host waits for it, by its arguments."""

    mixed_devices: bool = False
    """Takes CPU tensors for some of its arguments (indices, optimizer steps), next to CUDA tensors."""
    indexes: bool = False
    """Is one of the forms of `tensor[indices]`."""
    strict_devices: bool = False
    """Its kernel's wrapper checks devices, and does not accept a CPU scalar either."""
    cpu_scalars: tuple[int, ...] | None = None
    """Places of the arguments that may be one number on the CPU; None: all of its tensors."""
    wrapper: str = ""
    """What messages call this wrapper, where it is not the operation's name (torchgen, RegisterCUDA.cpp)."""

    arithmetic: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any] | None = None
    """From overload and arguments, what CUDA's kernel computes in another order; NotImplemented where it does not."""

    library: str = ""
    """The library whose handle it needs: "blas", "cudnn", or "" for none."""
    call: str = ""
    """Through which kind of call it is launched: a key of `HostSpec.call_seconds`."""
    product: Callable[[Sequence[Any], Any], Product] | None = None
    """From arguments and result: the matrix product that it is at heart."""
    is_convolution: bool = False
    takes_scratch: bool = False
    """Takes temporary tensors while it runs: `vgpu.runtime.memory.workspaces` knows how large."""
    is_cuda_kernel: bool = False
    """One kernel on CUDA, several or none on the CPU: `vgpu.torch_integration.kernels.cuda_kernels` has it."""

    in_float32: bool = False
    """With 16-bit operands it is computed in FP32 and rounded."""
    one_dtype: bool = False
    """All its operands must have one dtype."""
    tf32_switch: str = ""
    """Which switch lets tensor cores round its FP32 operands to TF32: "matmul", "conv", "rnn"."""
    tf32_operands: tuple[int, ...] = ()
    """The places of these operands among its arguments."""

    gathers: bool = False
    """Reads as many elements of its first tensor as it writes, not all of it."""
    overwrites: bool = False
    """Does not read what it overwrites (Copy.cu, FillKernel.cu, DistributionTemplates.h)."""
    copies: bool = False
    """A copy: TensorIterator's rules hold as for pointwise operations, which carry a tag."""
    traffic: TrafficRule | None = None
    """Of kernels that go over their operands more than once."""
    cycles: float = 0.0
    """Of a multiprocessor's clock, for each element of an elementwise result; 0: no more than moving it takes."""

    few_dimensions: bool = False
    """Along a dimension, its kernels take fewer dimensions than tensors may have
    (`vgpu.runtime.operations.dimensions`)."""

    check: Callable[[Sequence[Any], Mapping[str, Any]], None] | None = None
    """Raises what CUDA's host code raises for arguments that the CPU's takes."""

    nondeterministic: AlertRule | None = None
    """Whether a call runs a kernel that has no deterministic version (`globalContext().alertNotDeterministic`)."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Operation(Known):
    """All that never changes about one overload."""

    overload: Any
    direct: Callable[..., Any] | None
    """What runs it faster, on a plain tensor and other positional arguments."""
    name: str
    """With its namespace: "aten::addmm_"."""
    base: str
    """Its name in the table; of others the name without a last underscore: "addmm"."""
    is_view: bool
    is_factory: bool
    random: bool
    takes_generator: bool
    mutates: bool
    may_resize: bool
    is_composite: bool
    is_foreach: bool
    is_collective: bool
    is_custom: bool
    depends_on_data: bool
    launches: bool
    is_product: bool
    is_sum: bool
    elementwise: bool
    repeats: bool
    """Shapes and dtypes decide what its kernel is, if that is small."""
    may_be_short: bool
    """Most of its calls need nothing but the kernel (`vgpu.torch_integration.dispatch.repeats`)."""
    checks_layouts: bool
    """Its `check` accepts all strided tensors."""
    written: tuple[int, ...]
    """Places of the arguments that it writes to."""
    shaped_by_floats: bool
    dtypes: DtypeRule
    """What CUDA's kernels refuse."""
    refused: frozenset[torch.dtype]
    """An operand of one of these dtypes may be a reason for `dtypes` to refuse the call."""


def needs_values(operation: Operation, args: Sequence[Any]) -> bool:
    """Whether the shape or value of a data-dependent operation's result does depend on values.

    Integer indices do not change the shape of `index`; masks do, and CUDA waits to count them (IndexingUtils.h,
    `expandTensors`).
    """
    if operation.base != "index":
        return operation.depends_on_data
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
