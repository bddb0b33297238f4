"""Triton on the virtual GPU: its kernels go to its interpreter, and `triton.testing` measures virtual time.

Only when a program imports Triton. Not here: what a kernel costs (`vgpu.torch_integration.compiled.programs`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.compiled import loops, programs, watching
from vgpu.torch_integration.compiled.language import Language, source_of
from vgpu.torch_integration.compiled.reach import Reach
from vgpu.torch_integration.patches import traced_kernels
from vgpu.torch_integration.patches.imports import when_imported

_VARIABLE = "TRITON_INTERPRET"
# What `triton.testing.do_bench` writes over between two runs, so that nothing is left in the L2 cache.
_CACHE_BYTES = 256 << 20
# Of each multiprocessor, that one block may have: modelled, between Turing's 64 KiB and Hopper's 227.
_SHARED_BYTES = 100 << 10
_BUS_BITS = 4096
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame


def install(patches: PatchSet, machine: Machine) -> None:
    """Let kernels that are defined from now on be interpreted, and those from before when they are called."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    patches.on_undo(lambda: _restore(before))
    language: list[Language] = []

    def testing(module: ModuleType) -> None:
        """The last part of Triton that is imported: afterwards a program has it, and may change it."""
        patches.set(module, "do_bench", _bench)
        language.append(Language())

    when_imported(patches, {
        "triton.runtime.jit": lambda module: _functions(patches, module),
        "triton.runtime.interpreter": lambda module: _interpreter(patches, machine, module, language),
        "triton.runtime.driver": lambda module: patches.set(module.driver, "_active", _Driver(machine)),
        "torch._dynamo.variables.builder": lambda module: traced_kernels.by_dynamo(patches, module),
        "torch.utils._triton": lambda module: traced_kernels.on_which_devices(patches, module),
        "torch._library.triton": lambda module: traced_kernels.in_operators(patches, module),
    })  # fmt: skip
    when_imported(patches, {"triton.testing": testing})  # after the others: it imports the interpreter


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = before


def _functions(patches: PatchSet, jit: ModuleType) -> None:
    """Functions that were decorated before the GPU was attached, and Triton's own."""

    def interpreted(function: Any) -> Any:
        return _interpreted(function.fn)  # by its Python function: a JITFunction's hash compiles it

    def run(function: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        form = interpreted(function)
        form.pre_run_hooks = function.pre_run_hooks
        return form.run(*args, grid=grid, warmup=warmup, **kwargs)

    patches.set(jit.JITFunction, "run", run)
    patches.set(jit.JITFunction, "__call__", lambda function, *args, **kwargs: interpreted(function)(*args, **kwargs))


@functools.cache  # helpers are called by every program of a grid
def _interpreted(function: Callable[..., Any]) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function)


class _Kernel:
    """What a launch gives back, and `warmup`: a compiled kernel, as far as its properties are known."""

    n_regs, n_spills = 32, 0

    def __init__(self, function: Any, kwargs: Mapping[str, Any]) -> None:
        self._function = function
        self.metadata = SimpleNamespace(
            shared=0, num_warps=kwargs.get("num_warps", 4), num_stages=kwargs.get("num_stages", 3)
        )

    def _init_handles(self) -> None:
        """Nothing is loaded."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._function.run(*args, grid=grid, warmup=False, **kwargs)


_NOTHING_TO_RESTORE = SimpleNamespace(restore=lambda: None)
"""What a launch restores of the language at its end: all of it, the last changes first (`programs.Tally.scopes`)."""


def _interpreter(patches: PatchSet, machine: Machine, module: ModuleType, language: Sequence[Language]) -> None:
    """`language` holds Triton as it was imported, as soon as it is."""
    executor = module.GridExecutor
    rewritten: dict[Callable[..., Any], tuple[Callable[..., Any], list[str]]] = {}

    def rewrite(function: Any) -> Callable[..., Any]:
        """What is run of a kernel or a helper: its source, looked at and changed for the interpreter."""
        python = function.fn
        if type(python) is not FunctionType:
            raise TypeError(f"a kernel is a Python function, not {type(python).__name__}")
        changed, lines = rewritten.get(python) or (None, source_of(python))
        for part in language:
            if not part.is_own(python):
                part.require_compiles(python, lines)
        if changed is None:
            rewriter = module.FunctionRewriter(python)
            rewriter.filename, rewriter.def_file_lineno = rewriter._get_jit_fn_file_line()
            rewriter.def_lineno = rewriter._find_def(lines)
            changed = rewriter._compile_and_exec(loops.mark(rewriter._transform_ast(rewriter._prepare_source(lines))))
            loops.bind(changed, module.interpreter_semantic.to_tensor)
            rewritten[python] = changed, lines
        return changed

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        """A helper that a kernel calls; on the host, such as `triton.cdiv`, with the language put back afterwards."""
        if THREAD.tally is not None:
            once(function.fn)
            return rewrite(function)(*args, **kwargs)
        scope = patch_language(function.fn)
        try:
            return rewrite(function)(*args, **kwargs)
        finally:
            scope.restore()

    class Executor(executor):  # type: ignore[misc, valid-type]
        """Runs all programs on the tensors' own memory: they are copied to no CPU and back."""

        def _init_args_hst(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return args, kwargs

        def _restore_args_dev(self, *_: Any) -> None:
            """There is nothing to copy back."""

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch; TorchDynamo traces up to there, or it would trace the interpreter and the kernel."""
        tracer = _set_eval_frame(None)
        try:
            return launch(function, *args, **kwargs)
        finally:
            _set_eval_frame(tracer)

    def launch(function: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        kernel = _Kernel(function, kwargs)
        if warmup:
            return kernel
        signature = inspect.signature(function.fn)
        constants = {key for key, parameter in signature.parameters.items() if "constexpr" in str(parameter.annotation)}
        known = {key: value for key, value in kwargs.items() if key in signature.parameters}
        bound = signature.bind(*args, **known)
        bound.apply_defaults()
        for part in language:
            part.require_unchanged()
            part.require_arguments(function.__name__, bound.arguments)
        body = rewrite(function)
        given = {name: _plain(value) for name, value in bound.arguments.items()}
        # Whatever else is the program's runs before: the kernel alone is computed out of the device's sight.
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        places = grid(dict(bound.arguments)) if callable(grid) else grid
        places = tuple(int(side) for side in places)

        def compute() -> tuple[int, programs.Tally]:
            reach = Reach(machine.registry.entries.values(), _tensors(given).values())
            tally, outer = programs.Tally(reach), THREAD.tally
            if watching.is_watched():
                tally.watch = watching.Watch(_tensors(given))
            THREAD.tally = tally
            try:
                Executor(body, list(given), places, [])(**given)
            finally:
                THREAD.tally = outer
                while tally.scopes:
                    tally.scopes.pop().restore()
            dims = module.interpreter_builder.grid_dim
            return dims[0] * dims[1] * dims[2], tally

        programs.launch(machine.registry.gpu_of, function.__name__, compute, bound.arguments, constants)
        return kernel

    patches.set(module.InterpretedFunction, "run", run)
    patches.set(module.InterpretedFunction, "rewrite", rewrite)
    patches.set(module.InterpretedFunction, "__call__", call)
    patch_tensor = module._patch_lang_tensor

    def with_numpy(tensor: Any, scope: Any) -> None:
        """Triton 3.6 makes an int of an array with one element, which NumPy 2.4 and later refuse."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    patches.set(module, "_patch_lang_tensor", with_numpy)
    patch_language = module._patch_lang

    def once(function: Any) -> Any:
        """Each call of a helper puts the whole language in place once more, in milliseconds; a launch has done so."""
        held = {id(value) for value in function.__globals__.values() if value is module.tl or value is module.tl.core}
        tally = THREAD.tally
        if tally is None:
            return patch_language(function)
        if not held <= tally.languages:
            tally.languages |= held
            tally.scopes.append(patch_language(function))
        return _NOTHING_TO_RESTORE

    patches.set(module, "_patch_lang", once)
    _count(patches, module)


def _plain(value: Any) -> Any:
    """A tensor without what its class has changed: where it lies is not the program's to say."""
    if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.as_subclass(value, torch.Tensor)
    return value


def _tensors(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Those that a kernel is given, by the name of the argument; a descriptor's is the one that it describes."""
    bases = {name: getattr(value, "base", value) for name, value in arguments.items()}
    return {name: value for name, value in bases.items() if isinstance(value, torch.Tensor)}


def _count(patches: PatchSet, module: Any) -> None:
    builder, handle = module.InterpreterBuilder, module.TensorHandle
    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def program_of(of: Any) -> int:
        (x, y, z), (_, height, depth) = of.grid_idx, of.grid_dim
        return int((x * height + y) * depth + z)

    def note(of: Any, pointers: Any, mask: Any, kind: str, value: Any = None) -> Any:
        """The mask of an access, which is noted, without what lies outside."""
        tally = THREAD.tally
        if tally is None:
            raise RuntimeError("memory is read and written by the programs of a kernel that is launched")
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        reached = tally.reach.within if tally.watch is None else tally.watch.reached
        mask = handle(reached(pointers.data, mask.data, width), mask.dtype)
        if tally.watch is not None:
            held = None if value is None else value.data
            tally.watch.accessed(program_of(of), kind, pointers.data, mask.data, held)
        if kind != watching.WRITTEN:
            tally.touched(pointers.data, mask.data, width, stores=False)
        if kind != watching.READ:
            tally.touched(pointers.data, mask.data, width, stores=True)
        return mask

    def undefined(pointers: Any) -> Any:
        """What stands where nothing is loaded, if the program names nothing: on a card whatever a register holds."""
        kind = pointers.get_element_ty()
        if not kind.is_floating() or kind.primitive_bitwidth < 16:
            return None
        values = np.full(np.shape(pointers.data), np.nan, dtype=np.float32)
        if kind.is_bf16():  # the interpreter keeps its bits
            return handle((values.view(np.uint32) >> 16).astype(np.uint16), kind)
        return handle(values.astype({16: np.float16, 32: np.float32, 64: np.float64}[kind.primitive_bitwidth]), kind)

    def order(pointers: Any, semantics: Any) -> None:
        """An atomic operation on a single element may be a lock or a counter."""
        watch = None if THREAD.tally is None else THREAD.tally.watch
        if watch is not None and np.size(pointers.data) == 1 and "relaxed" not in str(semantics).lower():
            watch.synchronised(int(np.asarray(pointers.data).reshape(-1)[0]))

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        mask = note(self, ptrs, mask, watching.READ)
        if other is None:
            other = undefined(ptrs)
        return load(self, ptrs, mask, other, *args, **kwargs)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return store(self, ptrs, value, note(self, ptrs, mask, watching.WRITTEN, value), *args, **kwargs)

    def create_atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, mask: Any, sem: Any, *args: Any) -> Any:
        mask = note(self, ptr, mask, watching.ATOMIC)
        order(ptr, sem)
        return rmw(self, operation, ptr, value, mask, sem, *args)

    def create_atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, sem: Any, *args: Any) -> Any:
        mask = note(self, ptr, handle(np.ones(np.shape(ptr.data), bool), module.tl.int1), watching.ATOMIC)
        order(ptr, sem)
        return cas(self, ptr, cmp, val, sem, *args) if mask.data.all() else cmp

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *args: Any) -> Any:
        if THREAD.tally is not None:
            *batch, m, k = a.data.shape
            tf32 = "TF32" in str(precision) and "x3" not in str(precision)
            for _ in range(batch[0] if batch else 1):
                THREAD.tally.multiplied(m, b.data.shape[-1], k, str(a.dtype.scalar), tf32=tf32)
        return dot(self, a, b, d, precision, *args)

    for function in (create_masked_load, create_masked_store, create_atomic_rmw, create_atomic_cas, create_dot):
        patches.set(builder, function.__name__, function)


class _Driver:
    """What `triton.runtime.driver.active` is asked."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def _properties(self, device: int) -> dict[str, int]:
        spec = self._machine.spec
        # Of a bus that is as wide as an HBM stack's; with it the clock gives the card's bandwidth (two transfers each).
        clock = spec.bandwidth_bytes_per_second / (2 * _BUS_BITS / 8)
        return {
            "max_shared_mem": _SHARED_BYTES, "max_num_regs": 65536, "multiprocessor_count": spec.multiprocessors,
            "warpSize": 32, "sm_clock_rate": int(spec.clock_hertz / 1e3), "mem_clock_rate": int(clock / 1e3),
            "mem_bus_width": _BUS_BITS,
        }  # fmt: skip

    def is_active(self) -> bool:
        """Always."""
        return True

    def get_current_target(self) -> Any:
        """The architecture."""
        from triton.backends.compiler import GPUTarget

        major, minor = self._machine.spec.compute_capability
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        """The calling thread's."""
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        """For the calling thread."""
        torch.cuda.set_device(device)

    def get_active_torch_device(self) -> torch.device:
        """The same for PyTorch."""
        return torch.device("cuda", torch.cuda.current_device())

    def get_current_stream(self, device: int) -> int:
        """The calling thread's."""
        return self._machine.gpus[device].stream

    def get_device_interface(self) -> Any:
        """Streams and events."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """What autotuning measures with."""
        return _bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """Something to clear the L2 cache with; it has no memory."""
        return None

    def clear_cache(self, cache: Any) -> None:
        """Write over all of the L2 cache."""
        self._machine.gpus[torch.cuda.current_device()].launch(
            KernelWork("vectorized_elementwise_kernel", _CACHE_BYTES)
        )


def _bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **_: Any,
) -> Any:
    """`triton.testing.do_bench`: milliseconds of one run after another; a virtual GPU takes as long each time."""
    fn()
    torch.cuda.synchronize()
    for tensor in grad_to_none or ():
        tensor.grad = None
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    took = start.elapsed_time(end)
    if quantiles is not None:
        return [took] * len(quantiles) if len(quantiles) > 1 else took
    return [took] if return_mode == "all" else took
