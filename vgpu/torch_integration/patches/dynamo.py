"""TorchDynamo on the virtual GPU: it traces as on a card, and its graphs run under the simulation.

While TorchDynamo traces, it computes with fake tensors and takes PyTorch's modes off; the code that it makes runs with
them on. Four things it would learn from the CPU tensor underneath, and learns here: the device of an input, that a
guard has to look at it, that this library's function mode is no concern of the program's, and what functions that this
library replaced stand for. Its default backend prices what TorchInductor would compile.

Not here: what a graph costs (`vgpu.torch_integration.compiled.regions`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration.compiled.regions import Region
from vgpu.torch_integration.handling_mode import HandlingMode
from vgpu.torch_integration.patches import flash_attn, modules
from vgpu.torch_integration.patches.imports import when_imported

ModesOn = Callable[[], AbstractContextManager[None]]
# Methods of TorchDynamo that set up an optimizer's state while they trace its step.
_OF_OPTIMIZERS = ("_safe_to_set_capturable", "_set_capturable", "move_step_if_cpu")
# Whether it has been replaced, as PyTorch 2.15 and 2.11 note it (torch/_dynamo/mutation_guard.py).
_NO_TAGS = {"___has_generation_tag_patch": True, "___needs_generation_tag_patch": False}
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def install(patches: PatchSet, machine: Machine, own: Iterable[Callable[..., Any]], modes_on: ModesOn) -> None:
    """Change those modules of TorchDynamo that are imported, and the others when they are.

    `own` are the functions that PyTorch calls as this library's modes; within `modes_on()` they are on.
    """
    # Code that runs between two graphs calls the modes, which TorchDynamo would compile like any other frame.
    for function in own:
        eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    # TorchDynamo would replace `nn.Module.__init__`, to find which modules a function makes: it asks that of no module
    # since it takes their parameters for inputs (`is_dynamic_nn_module`), and graders hold it to be tampering.
    for name, value in _NO_TAGS.items():
        patches.set(torch.nn.Module, name, value)
    _inductor(patches)
    when_imported(patches, {
        "torch._subclasses.meta_utils": lambda module: _describe_visible_device(patches, module, machine),
        "torch._dynamo.guards": lambda module: _guard_visible_device(patches, module),
        "torch._dynamo.variables.torch_function": lambda module: _begin_to_trace(patches, module),
        "torch._dynamo.variables.optimizer": lambda module: _set_up_optimizers(patches, module, modes_on),
        "torch._dynamo.variables.nn_module": lambda module: _set_up_lazy_modules(patches, module, modes_on),
        "torch._dynamo.trace_rules": _never_trace_this_library,
    })  # fmt: skip


def _describe_visible_device(patches: PatchSet, module: ModuleType, machine: Machine) -> None:
    """What fake tensors are made after."""
    describe = module.MetaTensorDescriber.describe_tensor

    @functools.wraps(describe)
    def describe_tensor(self: Any, t: torch.Tensor, **options: Any) -> Any:
        description = describe(self, t, **options)
        gpu = machine.registry.gpu_of(t)
        return description if gpu is None else dataclasses.replace(description, device=gpu.device)

    patches.set(module.MetaTensorDescriber, "describe_tensor", describe_tensor)


def _guard_visible_device(patches: PatchSet, module: ModuleType) -> None:
    """PyTorch's own guard compares the device of the CPU tensor."""
    match = module.GuardBuilder.TENSOR_MATCH

    @functools.wraps(match)
    def tensor_match(self: Any, guard: Any, value: Any = None) -> None:
        match(self, guard, value)
        tensor = value() if isinstance(value, module.TensorWeakRef) else value
        expected = _visible_device(self.get(guard) if tensor is None else tensor)
        parts = module.get_verbose_code_parts(f"{self.arg_ref(guard)}.device == {str(expected)!r}", guard)
        is_same: Callable[[Any], bool] = lambda actual: _visible_device(actual) == expected  # noqa: E731
        self.get_guard_manager(guard).add_lambda_guard(is_same, parts, guard.user_stack)

    patches.set(module.GuardBuilder, "TENSOR_MATCH", tensor_match)
    # What guards call is looked up when the first is made, and kept: with another machine it is something else.
    patches.set_existing(module, "_CLOSURE_VARS", None)


def _visible_device(tensor: Any) -> torch.device | None:
    machine = attached_machine()
    if not isinstance(tensor, torch.Tensor):
        return None
    gpu = None if machine is None else machine.registry.gpu_of(tensor)
    return tensor.device if gpu is None else gpu.device


def _begin_to_trace(patches: PatchSet, module: ModuleType) -> None:
    """Tracing does not go through this library's function mode; guards still see that it is there."""
    begin = module.SymbolicTorchFunctionState.__init__
    known: Any = None

    @functools.wraps(begin)
    def begin_without(self: Any, py_stack: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        nonlocal known
        rules = sys.modules["torch._dynamo.trace_rules"]
        if rules.get_torch_obj_rule_map() is not known:  # first of all, and after each `torch._dynamo.reset`
            known = rules.get_torch_obj_rule_map()
            _know_replacements(patches, rules)
        begin(self, [mode for mode in py_stack if not isinstance(mode, HandlingMode)], *args, **kwargs)

    patches.set(module.SymbolicTorchFunctionState, "__init__", begin_without)


def _know_replacements(patches: PatchSet, rules: ModuleType) -> None:
    """TorchDynamo knows PyTorch's functions by identity: what replaces one has the same rules."""
    # What stands for `nn.Module.__call__` does nothing while it is traced but to call that.
    rules.get_mod_inlinelist().add(modules.__file__)
    rules.get_mod_inlinelist().add(str(flash_attn.FOLDER))  # traced like an installed package
    functions = sys.modules["torch._dynamo.variables.torch"]
    tables: list[dict[Any, Any]] = [
        rules.get_torch_obj_rule_map(),
        functions.TorchInGraphFunctionVariable._get_handlers(),
        functions.constant_fold_functions,
        getattr(functions, "constant_fold_functions_need_guards", {}),
    ]
    for table in tables:
        added = []
        for old, new in patches.replaced():
            # The tables were filled now, or before the GPU was attached.
            for known, other in ((old, new), (new, old)):
                if known in table and other not in table:
                    table[other] = table[known]
                    added.append(new)
        patches.on_undo(functools.partial(_forget, table, added))


def _forget(table: dict[Any, Any], keys: Iterable[Any]) -> None:
    for key in keys:
        table.pop(key, None)


def _set_up_optimizers(patches: PatchSet, module: ModuleType, modes_on: ModesOn) -> None:
    """TorchDynamo runs what makes an optimizer's state, to trace only the step itself."""
    for name in _OF_OPTIMIZERS:
        if hasattr(module.OptimizerVariable, name):
            patches.set(module.OptimizerVariable, name, _with(modes_on, getattr(module.OptimizerVariable, name)))
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and "_init_group" in vars(kind):
            patches.set(kind, "_init_group", _with(modes_on, vars(kind)["_init_group"]))


def _set_up_lazy_modules(patches: PatchSet, module: ModuleType, modes_on: ModesOn) -> None:
    patches.set(module, "initialize_lazy_module", _with(modes_on, module.initialize_lazy_module))


def _with(modes_on: ModesOn, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def seeing_the_gpu(*args: Any, **kwargs: Any) -> Any:
        with modes_on():
            return function(*args, **kwargs)

    return seeing_the_gpu


def _never_trace_this_library(module: ModuleType) -> None:
    folder = str(Path(__file__).parents[2]) + "/"
    if folder not in module.SKIP_DIRS:
        module.SKIP_DIRS.append(folder)
        module._recompile_re()


def _inductor(patches: PatchSet) -> None:
    """TorchInductor's arguments are checked by PyTorch; then the graph runs as it is."""
    wrapper = torch._TorchCompileInductorWrapper

    def compile_graph(self: Any, model_: Any, inputs_: Any, **options: Any) -> Region:
        return _region(model_, {**self.config, **(options.get("config_patches") or {})})

    def config(self: Any) -> dict[str, Any]:
        import torch._inductor.config

        return {**torch._inductor.config.get_config_copy(), **self.config}

    patches.set(wrapper, "__call__", compile_graph)
    patches.set(wrapper, "get_compiler_config", config)  # PyTorch's imports all of TorchInductor
    when_imported(patches, {"torch._inductor.compile_fx": lambda module: _by_other_ways(patches, module)})


def _by_other_ways(patches: PatchSet, module: ModuleType) -> None:
    """Backends of the program's own may end with a call of TorchInductor."""
    original = module.compile_fx

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **options: Any) -> Any:
        return _region(model_, options.get("config_patches") or {})

    patches.rebind(original, compile_fx)
    patches.set(module, "compile_fx", compile_fx)


def _region(graph: Any, options: Mapping[str, Any]) -> Region:
    config = sys.modules.get("torch._inductor.config")
    by_default = config is not None and config.triton.cudagraphs
    replayed = bool(options.get("triton.cudagraphs", by_default))
    return Region(graph, _name_of(graph), traces=_traces(graph) if replayed else None)


def _name_of(graph: Any) -> str:
    """The function that it was captured from, as far as the graph knows."""
    for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
        if node.stack_trace:
            return str(node.stack_trace.strip().splitlines()[-2].rpartition(" in ")[2])
    return "a graph"


def _traces(graph: Any) -> list[str]:
    """Where the program computes each of its results."""
    if not isinstance(graph, torch.fx.GraphModule):
        return []
    (results,) = next(node for node in graph.graph.nodes if node.op == "output").args
    return [str(getattr(node, "stack_trace", None) or "[Could not find stack trace]").strip() for node in results]
