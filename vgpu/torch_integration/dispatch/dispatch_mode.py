"""Sees every ATen operation, backward and optimizer steps included: residency of results, device rules, cost.

Not here: the device names that Python code uses (`vgpu.torch_integration.dispatch.function_mode`), and seconds
(`vgpu.device.cost`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.hazards.watch import written
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.residency import require_hosts
from vgpu.runtime.operations import (
    cuda_values,
    determinism,
    dimensions,
    precision,
    shapes_only,
)
from vgpu.runtime.operations.facts import FOUND, facts
from vgpu.runtime.operations.operation import Operation, number_of
from vgpu.runtime.operations.waiting import waits
from vgpu.runtime.random import distributions
from vgpu.runtime.thread_state import HOST, THREAD
from vgpu.torch_integration.dispatch import device_rules, extensions, foreach, repeats, transfers
from vgpu.torch_integration.dispatch.device_arguments import call_with_device, names_a_gpu
from vgpu.torch_integration.dispatch.gradients import bring_home
from vgpu.torch_integration.dispatch.outcomes import PLAIN_TENSORS, recover, settle, tensors_in
from vgpu.torch_integration.handling_mode import HandlingMode
from vgpu.torch_integration.kernels import cuda_kernels

_Tensor = torch.Tensor
# Real work on the CPU that shapes-only mode skips: from this many FLOPs on, a product costs milliseconds.
_SKIP_FLOPS = 2e7
_function_modes = torch._C._len_torch_function_stack


class DispatchMode(TorchDispatchMode):
    """One instance per machine; entered once per thread."""

    # `torch.cond`, the random numbers of a DTensor: functions of functions.
    supports_higher_order_operators = True
    _host: VirtualGPU

    def __init__(self, machine: Machine, function_mode: HandlingMode) -> None:
        super().__init__()
        self.machine = machine
        self._function_mode = function_mode

    def begin(self) -> None:
        """Know which machine it is."""
        # Operations of the host are charged through any of its GPUs.
        self._host = self.machine.gpus[0]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asks PyTorch not to wrap `__torch_dispatch__` in a call that imports torch._dynamo (seconds of start-up)."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """TorchDynamo traces although this mode is on: it takes the mode off while it does."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # PyTorch takes this mode off its stack while it calls us, so what we call below is not seen again. Where a call
        # has to be seen (a decomposition, a subclass's own operations), we enter the mode once more: `with self`.
        #
        # Most calls: known operations on plain tensors.
        known = None if types else FOUND.get(number_of(func))
        if known is not None and known[1].may_be_short:
            if _function_modes():  # as in a backward pass
                with torch._C.DisableTorchFunction():
                    result = repeats.run(self, known[1], args, kwargs or {})
            else:
                result = repeats.run(self, known[1], args, kwargs or {})
            if result is not NotImplemented:
                return result
        # A subclass with a dispatch of its own (autograd's engine names plain tensors here, too).
        if types and not PLAIN_TENSORS.issuperset(types):
            if extensions.are_fake(types):
                # torch.compile and FakeTensorMode compute shapes: that is no work of any device.
                return func(*args, **(kwargs or {}))
            if extensions.is_distributed(types):
                # A DTensor redistributes first and then calls the same operation on plain tensors, which come here.
                return NotImplemented
            with self._function_mode, self:
                return extensions.run_subclass(func, types, args, kwargs or {})
        if type(func) is not OpOverload:
            with self:
                return extensions.run_higher_order(self._function_mode, func, args, kwargs or {})
        operation = facts(func)
        if operation.is_factory and extensions.fake_mode_is_on():
            return func(*args, **(kwargs or {}))
        if operation.is_custom and operation.is_factory and extensions.is_made_on_gpu(operation, args, kwargs or {}):
            with self._function_mode, self:
                return extensions.run_python_kernel(operation, args, kwargs or {})
        if kwargs and "device" in kwargs and names_a_gpu(kwargs["device"]):
            with self:
                return call_with_device(self._function_mode, operation, args, kwargs)
        # The function mode has renamed devices on the way down. What we compute with now are CPU tensors, and it must
        # not take their device for one that the program named.
        with torch._C.DisableTorchFunction():
            if operation.is_composite:  # inference mode: no autograd layer has taken it apart
                with self:
                    result = func.decompose(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    return result
            try:
                return self.run(operation, args, kwargs or {})
            except Exception as error:
                if THREAD.scripted is not None:
                    THREAD.scripted.raised(error)
                raise

    def run(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        machine = self.machine
        registry = machine.registry
        inputs = tensors_in(args)
        if kwargs:
            inputs += tensors_in(tuple(kwargs.values()))
        # Every tensor is a CPU tensor to PyTorch; only the registry knows which of them live on a GPU. So the rules
        # that CUDA's dispatcher would apply (all operands on one device, 0-dim CPU scalars excepted) are applied here.
        gpu: VirtualGPU | None = None
        open_result = False
        if inputs:
            devices_of = registry.devices_of(inputs)
            if len(devices_of) == 1:
                (gpu,) = devices_of
            else:
                gpu = next(filter(None, map(registry.gpu_of, inputs)))
                if operation.is_foreach:
                    if foreach.is_slow(registry, operation, args):
                        with self:
                            return foreach.one_by_one(operation, args, kwargs)
                    groups = foreach.groups(registry, args)
                    if len(groups) > 1:
                        with self:
                            return foreach.by_group(operation, args, kwargs, groups)
                if not operation.is_like:
                    if device_rules.reconcile(machine, operation, args, kwargs, inputs):
                        return self._copy(operation, args, kwargs)
                    if not machine.values:
                        args, kwargs = shapes_only.on_meta(args, kwargs)
        if operation.is_factory or operation.is_like:
            target = THREAD.target
            if target is not None:
                gpu = None if target == HOST else machine.gpus[target]
            elif not inputs:
                # Factories that Python code calls have a target. This one comes from C++ (autograd makes zeros), where
                # the device was an argument that we cannot see. The first GPU tensor that meets the result decides.
                open_result = True
        if kwargs and machine.values and gpu is not None and _asks_for_meta(kwargs):
            gpu = None
        if machine.host_slowdowns:
            machine.host_operation()
        watch = machine.watch
        if gpu is None:
            if inputs:
                require_hosts(machine.gpus, inputs)
            if watch is not None and watch.has_copies and operation.launches:
                watch.host_operation(inputs, written(operation, args, kwargs))
            result = self._compute(operation, args, kwargs, inputs, None)
            outputs = tensors_in((result,))
            if open_result or registry.all_open(inputs):
                for tensor in outputs:
                    registry.mark_unplaced(tensor)
            self._charge_host(operation, args, inputs, outputs)
            return result
        # As in CUDA, the first operation creates the context: that takes time and memory, and must happen before the
        # result is allocated, or an out-of-memory error would name other numbers.
        if not gpu.started:
            gpu.start()
        if gpu.fault is not None and operation.launches:
            gpu.require_sound()
        if operation.is_custom and extensions.has_python_kernel(operation):
            with torch._C._EnableTorchFunction(), self._function_mode, self:
                return extensions.run_python_kernel(operation, args, kwargs)
        if operation.nondeterministic is not None and torch.are_deterministic_algorithms_enabled():
            determinism.require(operation.nondeterministic(args, kwargs))
        if operation.is_foreach and foreach.is_slow(registry, operation, args):
            with self:
                return foreach.one_by_one(operation, args, kwargs)
        refused = operation.refused
        for tensor in inputs:
            if tensor.dtype in refused:
                operation.dtypes.require(operation.overload, args, kwargs)
        if operation.check is not None:
            operation.check(args, kwargs)
        if operation.few_dimensions:
            dimensions.require(operation, args, kwargs)
        # `.item()` and its kind wait for the device. They leave before a capture sees them, because a graph
        # cannot hold them.
        if operation.reads:
            if THREAD.scripted is not None:
                THREAD.scripted.reads(operation.name)
            return self._read(gpu, operation, args, kwargs, inputs)
        capture = THREAD.capture
        if capture is not None:
            if capture.takes(gpu, gpu.stream):
                capture.about_to(operation, args)
            else:
                capture = None
        result = self._compute_on(operation, args, kwargs, inputs, gpu)
        outputs = settle(gpu, operation, args, kwargs, inputs, result)
        if watch is not None and watch.follows_streams and operation.launches:
            watch.operation(gpu, operation, args, kwargs, inputs, outputs)
            if waits(operation, args, kwargs):
                watch.host_waits(gpu, gpu.stream)
        if capture is not None:
            capture.computed(self._compute_on, operation, args, kwargs, result)
        return result

    def _compute_on(
        self,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: list[torch.Tensor],
        gpu: VirtualGPU,
    ) -> Any:
        try:
            return self._compute(operation, args, kwargs, inputs, gpu)
        except (NotImplementedError, IndexError, RuntimeError) as error:
            return recover(error, operation, args, kwargs, inputs, gpu)

    def _charge_host(
        self, operation: Operation, args: Sequence[Any], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        if operation.launches and not operation.reads:
            self._host.charge_host(operation, args, inputs, outputs)
        else:
            self._host.charge_metadata(operation)

    def _compute(
        self,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: list[torch.Tensor],
        gpu: VirtualGPU | None,
    ) -> Any:
        if operation.is_collective and gpu is not None:
            from vgpu.torch_integration.distributed.runner import run_operator

            return run_operator(gpu, operation, args, kwargs)
        if operation.is_cuda_kernel and gpu is not None:
            return cuda_kernels.KERNELS[operation.base](gpu, args, kwargs)
        if not self.machine.values:
            if gpu is not None:
                return shapes_only.compute(operation, args, kwargs)
            product = operation.product if operation.library == "blas" else None
            if product is not None and product(args, None).flops > _SKIP_FLOPS:
                return shapes_only.skip(operation, args, kwargs)
        elif gpu is not None and operation.is_factory and (args or kwargs):
            device_rules.require_room(gpu, args, kwargs)
        if operation.in_float32 and (gpu is not None or operation.is_product):
            low = precision.low_dtype(inputs)
            if low is not None:
                if operation.one_dtype and any(tensor.dtype != low for tensor in inputs):
                    if gpu is not None and operation.base == "convolution":
                        raise RuntimeError(device_rules.convolution_text(gpu.registry, args))
                    return operation.overload(*args, **kwargs)  # PyTorch's own check refuses it
                return precision.compute(operation, args, kwargs, low)
            if gpu is not None and precision.uses_tf32(operation, inputs[0].dtype, gpu.spec):
                args = precision.with_tf32_operands(operation, args)
        if operation.arithmetic is not None and gpu is not None and self.machine.values:
            result = operation.arithmetic(operation.overload, args, kwargs)
            if result is not NotImplemented:
                return result
        if operation.random and gpu is not None:
            return self._random(gpu, operation, args, kwargs)
        if operation.copies and gpu is not None and cuda_values.conversion(operation, args, kwargs) is not None:
            result = operation.overload(*args, **kwargs)
            cuda_values.convert(args[1] if operation.mutates else args[0], result)
            return result
        if operation.direct is not None and not kwargs and type(args[0]) in PLAIN_TENSORS:
            return operation.direct(*args)
        return operation.overload(*args, **kwargs)

    def _random(self, gpu: VirtualGPU, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Random operations on a GPU draw from its generator, or from the one they are given; never from the CPU's."""
        has_generator = kwargs.get("generator") is not None
        generator = THREAD.generator if has_generator and THREAD.generator is not None else gpu.generator
        drawn = distributions.compute(gpu.spec, generator, operation.overload, args, kwargs)
        if drawn is not None:
            return drawn
        if operation.takes_generator:
            return operation.overload(*args, **{**kwargs, "generator": generator.draw()})
        default = torch.default_generator
        saved = default.get_state()
        default.manual_seed(generator.next_seed())
        try:
            return operation.overload(*args, **kwargs)
        finally:
            default.set_state(saved)

    def _read(
        self,
        gpu: VirtualGPU,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: list[torch.Tensor],
    ) -> Any:
        """A value is copied to the host: the call waits for everything queued before (CUDA semantics notes)."""
        if operation.base != "_local_scalar_dense":
            gpu.charge(operation, args, inputs, [])
        if gpu.machine.watch is not None and gpu.machine.watch.follows_streams:
            gpu.machine.watch.operation(gpu, operation, args, kwargs, inputs, ())
        gpu.transfer(inputs[0].element_size(), to_device=False, pinned=True, non_blocking=False, waits_later=True)
        gpu.synchronize(gpu.stream)
        if not gpu.values:
            return shapes_only.placeholder(operation, inputs[0])
        return operation.overload(*args, **kwargs)

    def _copy(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`copy_` between two devices."""
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if operation.is_foreach:
            for tensor, other in zip(target, source, strict=True):
                with self:
                    torch.ops.aten.copy_.default(tensor, other, non_blocking)
            return None
        machine = self.machine
        bring_home(machine, source)
        to, origin = machine.registry.gpu_of(target), machine.registry.gpu_of(source)
        if to is not None and origin is not None:
            machine.peer_copy(origin, to, target.numel() * source.element_size())
        else:
            gpu, host = (to, source) if to is not None else (origin, target)
            assert gpu is not None
            pinned = machine.registry.is_pinned(host)
            moved = source.nbytes if to is not None else target.nbytes
            gpu.transfer(moved, to_device=to is not None, pinned=pinned, non_blocking=non_blocking)
            transfers.watch_copy(gpu, source, target, under_way=pinned and non_blocking, to_host=to is None)
        if THREAD.capture is not None:
            THREAD.capture.called(lambda: target.copy_(source), [target])
        if target.device == source.device:
            return operation.overload(*args, **kwargs)
        return target if to is not None or machine.keeps_host_values else target.zero_()


def _asks_for_meta(kwargs: Mapping[str, Any]) -> bool:
    """PyTorch works out some shapes with meta tensors of its own (BinaryOps.cpp, `mul_zerotensor`)."""
    device = kwargs.get("device")
    return device is not None and device.type == "meta"
