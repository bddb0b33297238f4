"""What the virtual GPU refuses, and what to do instead: one list for the code that raises and for the documentation.

Not here: the places that raise (`vgpu.torch_integration.patches.refusals`, `vgpu.torch_integration.patches.compilers`
and others).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vgpu.device.errors import Unsupported

_DENSE = "use dense tensors on the GPU, or keep these on the CPU"
_ALLOCATOR = "use PyTorch's caching allocator, which is the one that is simulated"
_ON_CPU = "move the tensor to the CPU first: tensor.cpu()"
_VALUES = "attach with values=True (without --shapes-only)"

# Name as a user knows it -> what to do instead. The documentation prints this list, and a test provokes each entry.
INSTEAD: Mapping[str, str] = MappingProxyType({
    "causal biases of torch.nn.attention.bias": (
        "use is_causal=True, which counts from the upper left corner, or a mask of your own"
    ),
    "TorchScript code made before attach": (
        "script or trace it while the GPU is attached, or call the Python function"
    ),
    "parts of TorchScript": "call the Python function, or leave this part out of what is scripted",
    "traces that depend on values": "use torch.jit.script, or torch.where instead of a condition",
    "saving TorchScript": "save model.state_dict(), or script and save without the virtual GPU",
    "torch.jit.load to the GPU": "build the model in Python and load its state_dict",
    "torch.export": "export on the CPU, without the virtual GPU",
    "torch.onnx.export": "export on the CPU, without the virtual GPU",
    "torch.cuda.MemPool": _ALLOCATOR,
    "pluggable allocators": _ALLOCATOR,
    "raw allocations": "make a tensor: torch.empty(size, dtype=torch.uint8, device='cuda')",
    "cudart calls": "use torch.cuda; of cudart() only the profiler switches and cudaMemGetInfo are simulated",
    "CUDA C++ extensions": "write the operation with PyTorch functions, or build it where there is a GPU",
    "CUDA C++ kernels compiled at run time": "write the operation with PyTorch functions",
    "Triton kernels with shapes only": _VALUES,
    "streams of other libraries": "use torch.cuda.Stream",
    "handles of CUDA's libraries": "use torch.cuda; there is no library behind a handle here",
    "DLPack": _ON_CPU,
    "__cuda_array_interface__": _ON_CPU,
    "sharing GPU tensors with another process": "send a copy, tensor.cpu(), and move it to the GPU there",
    "MKL-DNN tensors on the GPU": _DENSE,
    "nested tensors with layout torch.strided": "use padded tensors with a mask, or layout=torch.jagged",
    "kernels that the CPU underneath lacks": "write the operation with other PyTorch functions",
    "torch.cuda.tunable": "leave it off: kernels are modelled, not chosen",
    # Several processes.
    "direct calls of NCCL": "use torch.distributed",
    "DistributedDataParallel of a module on several devices": "put it on one GPU per process",
    "collectives of sparse tensors": "make them dense",
    "ReduceOp.PREMUL_SUM": "multiply the tensor before the collective, or use ReduceOp.AVG",
    "reductions of float8": "reduce in float16, bfloat16 or float32",
    "torch.distributed.shrink_group": "make a new group with new_group",
    "functional collectives with shapes only": "use torch.distributed.all_reduce and its like",
    # Instruments.
    "hardware counters (profiler_metrics)": "profile without them",
    "annotations of CUDA graphs": "export the trace without them",
    "raw memory events (.raw.json.gz)": "export .json.gz or .html, or use gpu.save_trace",
    "execution traces (ExecutionTraceObserver)": "use torch.profiler's export_chrome_trace",
    "emit_itt": "use torch.profiler.profile",
    "a picture without matplotlib": "install it (pip install matplotlib), or write a trace instead",
    # Shapes only.
    "results that depend on values, with shapes only": _VALUES,
    "operations without a rule for shapes": _VALUES,
    "sparse tensors with shapes only": _VALUES,
    "saving GPU tensors with shapes only": "they have no values; " + _VALUES,
    "loading tensors to the GPU with shapes only": "load with map_location='cpu', then move them",
})  # fmt: skip


def unsupported(name: str, detail: str = "") -> Unsupported:
    """The error for an entry of the list; `detail` is put behind its name."""
    return Unsupported(f"{name} ({detail})" if detail else name, INSTEAD[name])
