"""Sees every ATen operation, backward and optimizer steps included: residency of results, device rules, cost.

Not here: the device names that Python code uses (`vgpu.function_mode`), and seconds (`vgpu.cost`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vgpu import charges, device_rules, precision, shapes_only
from vgpu.gpu import VirtualGPU
from vgpu.operations import Operation, facts
from vgpu.state import THREAD

_Tensor = torch.Tensor
# Real work on the CPU that shapes-only mode skips: from this many FLOPs on, a product costs milliseconds.
_SKIP_FLOPS = 2e7


class DispatchMode(TorchDispatchMode):
    """One instance per GPU; entered once per thread."""

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__()
        self._gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asks PyTorch not to wrap `__torch_dispatch__` in a call that imports torch._dynamo (seconds of start-up)."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operation = facts(func)
        with torch._C.DisableTorchFunction():
            if operation.is_composite:  # inference mode: no autograd layer has taken it apart
                with self:
                    result = func.decompose(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    return result
            return self._run(operation, args, kwargs or {})

    def _run(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        gpu = self._gpu
        has = gpu.registry.has
        inputs = _tensors_in(args)
        if kwargs:
            inputs += _tensors_in(tuple(kwargs.values()))
        resident = [tensor for tensor in inputs if has(tensor)]
        on_device = bool(resident)
        open_result = False
        if operation.is_factory or operation.is_like:
            target = THREAD.target
            if target is not None:
                on_device = target
            elif not inputs:
                open_result = True
        elif resident and len(resident) != len(inputs):
            crossing = device_rules.reconcile(gpu, operation, args, kwargs, inputs)
            if crossing is not None:
                return self._copy(operation, args, kwargs, to_device=crossing)
            if not gpu.values:
                args, kwargs = shapes_only.on_meta(args, kwargs)
        if gpu.host_slowdowns:
            gpu.host_operation()
        if on_device and not gpu.started:
            gpu.start()
        if operation.reads and on_device:
            return self._read(operation, args, kwargs, inputs)
        result = self._compute(operation, args, kwargs, inputs, on_device)
        outputs = _tensors_in((result,))
        if on_device:
            self._settle(operation, args, inputs, outputs)
        else:
            if open_result:
                for tensor in outputs:
                    gpu.registry.leave_open(tensor)
            self._charge_host(operation, args, inputs, outputs)
        return result

    def _settle(
        self, operation: Operation, args: Sequence[Any], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        """Results become resident (in the order of CUDA: the output is allocated, then the kernel launched)."""
        gpu = self._gpu
        if operation.library:
            gpu.prepare_library(operation)
        add, stream = gpu.registry.add, THREAD.stream
        for tensor in outputs:
            add(tensor, stream)
        if operation.may_resize:
            for tensor in inputs + outputs:
                gpu.registry.refresh(tensor, THREAD.stream)
        if not operation.launches:
            gpu.charge_metadata(operation)
            return
        if operation.mutates and not outputs:
            outputs = inputs
        gpu.charge(operation, args, inputs, outputs)
        if operation.synchronises or operation.depends_on_data:
            gpu.synchronize(THREAD.stream)

    def _charge_host(
        self, operation: Operation, args: Sequence[Any], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        if operation.launches and not operation.reads:
            self._gpu.charge_host(operation, args, inputs, outputs)
        else:
            self._gpu.charge_metadata(operation)

    def _compute(
        self,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: list[torch.Tensor],
        on_device: bool,
    ) -> Any:
        gpu = self._gpu
        if not gpu.values:
            if on_device:
                return shapes_only.compute(operation, args, kwargs)
            skippable = operation.library == "blas" and operation.is_product
            if skippable and charges.product_of(operation.base, args, None).flops > _SKIP_FLOPS:
                return shapes_only.skip(operation, args, kwargs)
        elif on_device and operation.is_factory and (args or kwargs):
            device_rules.require_room(gpu, args, kwargs)
        if operation.base in precision.PRODUCTS:
            low = next((tensor.dtype for tensor in inputs if tensor.dtype in precision.LOW), None)
            if low is not None:
                return precision.compute(operation, args, kwargs, low)
        if operation.random and on_device:
            return self._random(operation, args, kwargs)
        return operation.overload(*args, **kwargs)

    def _random(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """CUDA's generator is not the CPU's: random operations on the GPU draw from their own."""
        if operation.takes_generator:
            if kwargs.get("generator") is None:
                kwargs = {**kwargs, "generator": self._gpu.generator}
            return operation.overload(*args, **kwargs)
        default = torch.default_generator
        saved = default.get_state()
        default.set_state(self._gpu.generator.get_state())
        try:
            return operation.overload(*args, **kwargs)
        finally:
            self._gpu.generator.set_state(default.get_state())
            default.set_state(saved)

    def _read(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: list[torch.Tensor]
    ) -> Any:
        """A value is copied to the host: the call waits for everything queued before (CUDA semantics notes)."""
        gpu = self._gpu
        if operation.base != "_local_scalar_dense":
            gpu.charge(operation, args, inputs, [])
        gpu.transfer(inputs[0].element_size(), to_device=False, pinned=True, non_blocking=False)
        gpu.synchronize(THREAD.stream)
        if not gpu.values:
            return shapes_only.placeholder(operation, inputs[0])
        return operation.overload(*args, **kwargs)

    def _copy(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], *, to_device: bool) -> Any:
        """`copy_` between the devices."""
        gpu = self._gpu
        target, source = args[0], args[1]
        host = source if to_device else target
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        gpu.transfer(
            source.nbytes if to_device else target.nbytes, to_device=to_device,
            pinned=gpu.registry.is_pinned(host), non_blocking=non_blocking,
        )  # fmt: skip
        if target.device == source.device:
            return operation.overload(*args, **kwargs)
        return target if to_device else target.zero_()


def _tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, _Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_in(value)
    return found
