"""What old programs call: `torch.cuda.FloatTensor` and its kin, the tensor types of PyTorch before 0.4; `torch.range`.

Not here: `tensor.type(...)` and the names that it gives (`vgpu.torch_integration.dispatch.function_mode`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Int": torch.int32, "Long": torch.int64, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


def install(patches: PatchSet, machine: Machine) -> None:
    """Replace the types in `torch.cuda`; their instances are tensors on a GPU of that dtype."""
    for name, dtype in _DTYPES.items():
        patches.set(torch.cuda, f"{name}Tensor", _tensor_type(f"{name}Tensor", dtype, machine))
    _default_type(patches)
    _inclusive_range(patches)


def _default_type(patches: PatchSet) -> None:
    """`torch.set_default_tensor_type("torch.cuda.FloatTensor")`: a default dtype and a default device in one."""
    set_type, chosen = torch.set_default_tensor_type, [False]

    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{getattr(t, '__module__', '')}.{getattr(t, '__name__', '')}"
        kind = name.removeprefix("torch.cuda.").removesuffix("Tensor")
        if not name.startswith("torch.cuda.") or kind not in _DTYPES:
            set_type(t)
            if chosen[0]:
                torch.set_default_device(None)
                chosen[0] = False
            return
        torch.set_default_dtype(_DTYPES[kind])
        torch.set_default_device("cuda")
        chosen[0] = True

    patches.rebind(set_type, set_default_tensor_type)


def _inclusive_range(patches: PatchSet) -> None:
    """`torch.range` on a GPU: PyTorch shows this function to no mode (python_torch_functions_manual.cpp)."""
    on_host = torch.range

    @functools.wraps(on_host)
    def inclusive_range(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda" or kwargs.get("out") is not None:
            return on_host(*args, **kwargs)
        shape = on_host(*args, **{**kwargs, "device": "meta"})  # warns, and refuses what PyTorch refuses
        named = dict(zip(("start", "end", "step"), args, strict=False)) | kwargs
        kind = float if shape.dtype.is_floating_point else int  # PyTorch converts first
        begin, step = kind(named.get("start", 0)), kind(named.get("step", 1))
        end = begin + step * (shape.numel() - (0.5 if kind is float else 0))
        values = torch.arange(begin, end, step, dtype=shape.dtype, device=device)
        return values.requires_grad_(bool(kwargs.get("requires_grad", False)))

    patches.rebind(on_host, inclusive_range)


def _tensor_type(name: str, dtype: torch.dtype, machine: Machine) -> type:
    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch.Tensor) and instance.dtype == dtype and machine.registry.has(instance)

        def __call__(cls, *values: Any) -> torch.Tensor:
            """Sizes, or data: `torch/csrc/utils/tensor_new.cpp`, `legacy_tensor_ctor`."""
            device = machine.gpus[THREAD.device].device
            if len(values) == 1 and isinstance(values[0], torch.Tensor):
                # `new_with_tensor`: the same memory, and nothing is converted or moved.
                if cls.__instancecheck__(values[0]):
                    return values[0].detach()
                actual = f"dtype={str(values[0].dtype)[6:]}, device={values[0].device}"
                raise TypeError(f"expected dtype={str(dtype)[6:]}, device=cuda (got {actual})")
            if len(values) == 1 and not isinstance(values[0], (int, torch.Size)):
                return torch.tensor(values[0], dtype=dtype, device=device)
            size = values[0] if values and isinstance(values[0], torch.Size) else values
            return torch.empty(tuple(size) or (0,), dtype=dtype, device=device)

    return Kind(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})
