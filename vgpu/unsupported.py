"""What the virtual GPU refuses, and what to do instead: one list for the code that raises and for the documentation.

Not here: the places that raise (`vgpu.patches.refusals`, `vgpu.patches.compilers` and others), and operations that
are refused one by one because the CPU underneath has no kernel for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vgpu.errors import Unsupported

_EAGER = (
    "run it eagerly: set TORCH_COMPILE_DISABLE=1, or remove torch.compile; the values are the same, and how much "
    "faster compiled code would be is not simulated"
)
_DENSE = "use dense tensors on the GPU, or keep these on the CPU"
_ALLOCATOR = "use PyTorch's caching allocator, which is the one that is simulated"
_ONE_BY_ONE = "launch the kernels one by one"
_ON_CPU = "move the tensor to the CPU first: tensor.cpu()"
_VALUES = "attach with values=True (without --shapes-only)"

# Name as a user knows it -> what to do instead. The documentation prints this list, and a test provokes each entry.
INSTEAD: Mapping[str, str] = MappingProxyType({
    "torch.compile": _EAGER,
    "flex_attention": "use torch.nn.functional.scaled_dot_product_attention; flex_attention needs torch.compile",
    "TorchScript code made before attach": (
        "script or trace it while the GPU is attached, where it stays a Python function, or call the Python function"
    ),
    "saving TorchScript": "save model.state_dict(), or script and save without the virtual GPU",
    "torch.jit.load to the GPU": "build the model in Python and load its state_dict",
    "torch.export": "export on the CPU, without the virtual GPU",
    "torch.onnx.export": "export on the CPU, without the virtual GPU",
    "CUDA graphs": _ONE_BY_ONE,
    "torch.cuda.MemPool": _ALLOCATOR,
    "pluggable allocators": _ALLOCATOR,
    "raw allocations": "make a tensor: torch.empty(size, dtype=torch.uint8, device='cuda')",
    "cudart calls": "use torch.cuda; of cudart() only the profiler switches and cudaMemGetInfo are simulated",
    "CUDA C++ extensions": "write the operation with PyTorch functions, or build it where there is a GPU",
    "CUDA C++ kernels compiled at run time": "write the operation with PyTorch functions",
    "Triton kernels": "write the operation with PyTorch functions",
    "DLPack": _ON_CPU,
    "__cuda_array_interface__": _ON_CPU,
    "sending GPU tensors to another process": "send tensor.cpu() and move it to the GPU in the other process",
    "sparse tensors on the GPU": _DENSE,
    "MKL-DNN tensors on the GPU": _DENSE,
    "nested tensors with layout torch.strided": "use padded tensors with a mask",
    "Fourier transforms in bfloat16": "transform in float32 or float16",
    "DTensor on the GPU": "use DistributedDataParallel; FSDP2 and tensor parallelism need DTensor",
    "GPU tensors under FakeTensorMode": "leave FakeTensorMode, and attach with values=False for tensors without values",
    "torch.autograd.profiler": "use torch.profiler.profile",
    "torch.cuda.tunable": "leave it off: kernels are modelled, not chosen",
    "direct calls of NCCL": "use torch.distributed",
    "results that depend on values, with shapes only": _VALUES,
    "saving GPU tensors with shapes only": "they have no values; " + _VALUES,
    "loading tensors to the GPU with shapes only": "load with map_location='cpu', then move them",
})  # fmt: skip


def unsupported(name: str, detail: str = "") -> Unsupported:
    """The error for an entry of the list; `detail` is put behind its name."""
    return Unsupported(f"{name} ({detail})" if detail else name, INSTEAD[name])
