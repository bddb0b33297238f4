"""Python code inside PyTorch that would hide calls from the function mode, or ask a tensor's real device.

Not here: `torch.cuda` (`vgpu.torch_integration.patches.cuda`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
import torch.overrides
import torch.utils._foreach_utils

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.patches import backward_streams, streams

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ignored = torch._C._disabled_torch_function_impl


def _overrides(values: Any) -> bool:
    """Whether one of the values is of a class that overrides torch functions (modes do not count)."""
    for value in values:
        kind = type(value)
        if kind not in _PLAIN:
            override = getattr(kind, "__torch_function__", None)
            if override is not None and override is not _ignored and kind is not type:
                # Off while the class's own `__torch_function__` calls the original (`DisableTorchFunctionSubclass`).
                return torch._C._is_torch_function_enabled()
    return False


def install(patches: PatchSet, machine: Machine) -> None:
    """Change what hides calls, groups by device, or cannot be simulated."""
    _show_inner_calls(patches)
    _group_by_visible_device(patches, machine)
    _move_to_visible_device(patches, machine)
    _settle_gradients(patches, machine)
    _print_without_values(patches, machine)
    patches.at_begin(lambda: _swap_parameters(patches, machine))
    patches.at_begin(lambda: _go_back_on_devices(patches, machine))


def _go_back_on_devices(patches: PatchSet, machine: Machine) -> None:
    """The backward of a program's own function runs with the GPU of its gradients as the current one.

    Autograd's engine has a thread for each device, whose current device that is (engine.cpp, `thread_init`).
    """
    if len(machine.gpus) == 1:
        return
    run = torch.autograd.function.BackwardCFunction.apply

    def apply(node: Any, *gradients: Any) -> Any:
        homes = (machine.registry.gpu_of(value) for value in gradients if isinstance(value, torch.Tensor))
        gpu = next(filter(None, homes), None)
        if gpu is None:
            return run(node, *gradients)
        before, THREAD.device = THREAD.device, gpu.index
        try:
            return run(node, *gradients)
        finally:
            THREAD.device = before

    patches.set(torch.autograd.function.BackwardCFunction, "apply", apply)


def _swap_parameters(patches: PatchSet, machine: Machine) -> None:
    """A CPU parameter cannot become a meta one in place; swapping keeps its identity, as `.cuda()` does on CUDA."""
    if not machine.values:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        patches.on_undo(lambda: torch.__future__.set_swap_module_params_on_conversion(before))


def _show_inner_calls(patches: PatchSet) -> None:
    """Functions written in Python (`multi_head_attention_forward`, `Tensor.__deepcopy__`) hand themselves to an active
    mode and then run with that mode off. Asking only for subclasses lets them run with it on.
    """
    overrides = torch.overrides
    patches.rebind(overrides.has_torch_function, _overrides)
    patches.rebind(overrides.has_torch_function_unary, lambda value: _overrides((value,)))
    patches.rebind(overrides.has_torch_function_variadic, lambda *values: _overrides(values))


def _settle_gradients(patches: PatchSet, machine: Machine) -> None:
    """What `torch.autograd.grad` returns is where its inputs are, even if C++ code made it."""
    run = torch.autograd.graph._engine_run_backward
    run_with_streams = backward_streams.following(run, streams.let_wait)

    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = run_with_streams(outputs, *args, **kwargs)
        inputs = kwargs.get("inputs", args[3] if len(args) > 3 else ())
        for gradient, tensor in zip(gradients or (), inputs or (), strict=False):
            if isinstance(gradient, torch.Tensor) and isinstance(tensor, torch.Tensor):
                machine.registry.settle(gradient, tensor)
        return gradients

    patches.rebind(run, run_backward)
    patches.set(torch.Tensor, "register_hook", backward_streams.hooking(torch.Tensor.register_hook))


def _group_by_visible_device(patches: PatchSet, machine: Machine) -> None:
    """Optimizers and gradient clipping group tensors in C++ by their real device; here by the one the program sees."""
    utilities = torch.utils._foreach_utils
    original = utilities._group_tensors_by_device_and_dtype

    @torch.no_grad()
    def group(lists: Any, with_indices: bool = False) -> Any:
        groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for index, tensor in enumerate(lists[0]):
            key = machine.registry.device_of(tensor), tensor.dtype
            columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
            for column, values in zip(columns, lists, strict=True):
                if values:
                    column.append(values[index])
            if with_indices:
                indices.append(index)
        return groups

    patches.rebind(original, group)


def _move_to_visible_device(patches: PatchSet, machine: Machine) -> None:
    """`Module.to(tensor)` and `PackedSequence.to(tensor)` read in C++ where the tensor is."""
    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        device, *options = parse(*args, **kwargs)
        example = args[0] if args else kwargs.get("tensor")
        if isinstance(example, torch.Tensor):
            device = machine.registry.device_of(example)
        return device, *options

    patches.set(torch._C._nn, "_parse_to", parse_to)


def _print_without_values(patches: PatchSet, machine: Machine) -> None:
    """With shapes only there is nothing to print: like a meta tensor, but with the device that the program sees."""
    original = torch._tensor_str._str

    def text(tensor: Any, *, tensor_contents: Any = None) -> str:
        gpu = machine.registry.gpu_of(tensor)
        if gpu is None or machine.values:
            return str(original(tensor, tensor_contents=tensor_contents))
        described = f"tensor(..., device='{gpu.device}', size={tuple(tensor.shape)}"
        if tensor.dtype != torch.get_default_dtype():
            described += f", dtype={tensor.dtype}"
        if tensor.grad_fn is not None:
            described += f", grad_fn=<{type(tensor.grad_fn).__name__}>"
        elif tensor.requires_grad:
            described += ", requires_grad=True"
        return described + ")"

    patches.set(torch._tensor_str, "_str", text)
