"""TorchScript on the virtual GPU: PyTorch's own compiler and interpreter, with the program's devices.

The interpreter calls ATen's operators, which the dispatch mode sees. It does not call Python's functions, so what the
function mode answers (devices, factories, autocast, dropout, recurrent layers) would be lost. Therefore those nodes of
a compiled graph are exchanged for operators of this library with the same schema, which call the Python function.

Not here: traced functions and what is refused (`vgpu.torch_integration.patches.compilers`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.jit._builtins
import torch.jit._recursive
import torch.jit._state
import torch.library

from vgpu.device.errors import Unsupported
from vgpu.runtime import attachment
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported

_T = torch.Tensor
_NAMESPACE = "vgpu_script"
_LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT")  # kept: compiled graphs name its operators
_ALIASES = re.compile(r"(?<=Tensor)\([a-z!|* >-]+\)")
_ANCHOR = torch.empty(0)
_defined: set[str] = set()

_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "prim::device": lambda x: x.device,
    "prim::is_cuda": lambda x: x.is_cuda,
    "prim::is_cpu": lambda x: x.is_cpu,
    "prim::is_meta": lambda x: x.is_meta,
    "aten::get_device": lambda x: x.get_device(),
    "aten::is_pinned": lambda x, *_: x.is_pinned(),
}
_MAKERS = frozenset(torch.utils._device._device_constructors())
# TorchScript gives these overloads a number for the dtype.
_DTYPES = dict(enumerate((
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool,
))) | {15: torch.bfloat16}  # fmt: skip
_REFUSED = {"prim::fork": "torch.jit.fork", "prim::awaitable": "torch.jit._awaitable"}


def install(patches: PatchSet, modes_on: Callable[[], Any], answered: Container[Any]) -> set[str]:
    """Adapt what is compiled from now on; returns the names of the functions, which grow.

    `answered` are the functions that the function mode answers; within `modes_on()` it is on.

    The compiler knows PyTorch's functions that this library replaced, and forgets what it compiled before.
    """
    adapted: set[str] = set()
    patches.set(_Kernel, "modes_on", staticmethod(modes_on))
    patches.set(_Kernel, "answered", answered)
    original: dict[int, Any] = {}

    def original_of(function: Any) -> Any:
        if not original:
            original.update({id(new): old for old, new in patches.replaced()})
        return original.get(id(function), function)

    for module, name in ((torch.jit._builtins, "_find_builtin"), (torch.jit._recursive, "try_compile_fn")):
        patches.set(module, name, _given(original_of, getattr(module, name)))
    # Code that has run once keeps its plan, so nothing that was compiled without a GPU is used again.
    store = type(torch.jit._recursive.concrete_type_store)()
    patches.set(torch.jit._recursive, "concrete_type_store", store)
    patches.set(torch.jit._state, "_jit_caching_layer", WeakKeyDictionary())
    patches.set(torch.jit._state, "_jit_function_overload_caching", WeakKeyDictionary())
    create = torch.jit._recursive.create_script_module

    @functools.wraps(create)
    def create_script_module(*args: Any, **kwargs: Any) -> Any:
        module = create(*args, **kwargs)
        adapted.update(adapt(module))
        return module

    patches.set(torch.jit._recursive, "create_script_module", create_script_module)
    return adapted


def _given(original_of: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def given(fn: Any, *args: Any) -> Any:
        return function(original_of(fn), *args)

    return given


def adapt(compiled: Any) -> Iterator[str]:
    """Exchange the nodes of what `torch.jit.script` returned; yields the names of the functions."""
    if isinstance(compiled, torch.jit.ScriptFunction):
        _exchange(compiled.graph)
        yield compiled.qualified_name
    elif isinstance(compiled, torch.jit.ScriptModule):
        for module in compiled.modules():
            inner: Any = module._c
            kind = inner._type().qualified_name()
            for name in inner._method_names():
                _exchange(inner._get_method(name).graph)
                yield f"{kind}.{name}"


def _exchange(graph: Any) -> None:
    torch._C._jit_pass_inline(graph)
    for node in list(_nodes(graph)):
        kind = node.kind()
        if kind in _REFUSED or kind.startswith("cuda::"):
            raise unsupported("parts of TorchScript", _REFUSED.get(kind, kind))
        if kind == "prim::Enter" and "autocast" in str(next(node.inputs()).type()):
            raise unsupported("parts of TorchScript", "torch.autocast")
        if kind == "prim::tolist":
            (host,) = _call(graph, node, "aten::cpu(Tensor(a) self) -> Tensor(a)", [next(node.inputs())])
            node.replaceInput(0, host)
        elif kind.startswith("aten::") or kind in _PROPERTIES:
            schema = node.schema()
            if kind in ("aten::tensor", "aten::as_tensor") and "(Tensor" not in schema:
                _place(graph, node, schema)
            elif _function_of(kind, schema) is not None:
                call = _call(graph, node, schema, list(node.inputs()), list(node.outputs()))
                for old, new in zip(node.outputs(), call, strict=True):
                    old.replaceAllUsesWith(new)
                node.destroy()


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        for inner in node.blocks():
            yield from _nodes(inner)
        yield node


def _place(graph: Any, node: Any, schema: str) -> None:
    """Data of the host becomes a tensor there, which then moves."""
    names = [argument.name for argument in torch._C.parse_schema(schema).arguments]
    where = names.index("device")
    device = list(node.inputs())[where]
    with graph.insert_point_guard(node):
        node.replaceInput(where, graph.insertConstant(torch.device("cpu")))
    after = list(node.output().uses())
    (moved,) = _call(graph, node, "vgpu::place(Tensor self, Device? device) -> Tensor", [node.output(), device])
    moved.node().moveAfter(node)
    for use in after:
        use.user.replaceInput(use.offset, moved)


def _call(graph: Any, node: Any, schema: str, inputs: Sequence[Any], like: Sequence[Any] = ()) -> list[Any]:
    """A call of this library's operator of that schema, in front of a node."""
    kind, anchored = _define(schema)
    if anchored:
        with graph.insert_point_guard(node):
            inputs = [graph.insertConstant(_ANCHOR), *inputs]
    call = graph.create(kind, list(inputs), len(like) or 1)
    call.insertBefore(node)
    results = list(call.outputs())
    for result, old in zip(results, like, strict=False):
        result.setType(old.type())
    return results


def _define(schema: str) -> tuple[str, bool]:
    parsed = torch._C.parse_schema(schema)
    base = parsed.name.partition("::")[2]
    anchored = not any("Tensor" in str(argument.type) for argument in parsed.arguments)
    name = f"{base}.{parsed.overload_name}".rstrip(".")
    if name not in _defined:
        _defined.add(name)
        text = _ALIASES.sub("", schema.partition("::")[2]).replace("*, ", "")
        if anchored:
            text = text.replace("(", "(Tensor vgpu_anchor, ", 1)
        # TorchScript must neither compute it ahead nor leave it out: what it does depends on the machine.
        _LIBRARY.define(text, "CONSERVATIVE")
        _LIBRARY.impl(name, _Kernel(parsed, anchored), "CompositeImplicitAutograd")
    return f"{_NAMESPACE}::{base}", anchored


class _Kernel:
    """Calls the Python function that an operator stands for, with the modes on."""

    modes_on: Any = None
    answered: Container[Any] = ()

    def __init__(self, schema: Any, anchored: bool) -> None:
        self.function = _function_of(schema.name, str(schema))
        self.names = [argument.name for argument in schema.arguments]
        self.only_by_name = {argument.name for argument in schema.arguments if argument.kwarg_only}
        self.anchored = anchored
        self.__name__ = schema.name

    def __call__(self, *args: Any) -> Any:
        values = dict(zip(self.names, args[1:] if self.anchored else args, strict=False))
        if type(values.get("dtype")) is int:
            values["dtype"] = _DTYPES[values["dtype"]]
        named = {name: values.pop(name) for name in self.only_by_name if name in values}
        if self.function is _converted:
            named, values = {**values, **named}, {"self": values["self"]}
            named.pop("self")
        if self.function in _MAKERS and named.get("device") is None:
            named["device"] = torch.device("cpu")  # a default device is a matter of Python's functions
        named = {name: value for name, value in named.items() if value is not None}
        if self.modes_on is None:
            return self.function(*values.values(), **named)
        try:
            with torch._C._EnableTorchFunction(), self.modes_on():
                return self.function(*values.values(), **named)
        except Exception as error:
            THREAD.scripted.raised(error)
            raise


class Trace:
    """A run of a function that is traced: it stays a Python function, so it may not depend on values."""

    def raised(self, error: Exception) -> None:
        """Python's functions raise as ever."""

    def reads(self, name: str) -> None:
        """A trace would keep this value and not look again."""
        raise unsupported("traces that depend on values", name)


class Call:
    """A call of compiled code, whose errors TorchScript reports in its own words."""

    def reads(self, name: str) -> None:
        """The interpreter reads each time."""

    def __init__(self) -> None:
        self.error: Unsupported | str | None = None

    def raised(self, error: Exception) -> None:
        """An operation that the code called has raised; the interpreter keeps only what C++ knows of it."""
        self.error = Unsupported(*error.args) if isinstance(error, Unsupported) else str(error)

    def reported(self, error: RuntimeError) -> Exception:
        """What the interpreter raises on a card (`InterpreterStateImpl::handleError`)."""
        if self.error is None or isinstance(self.error, Unsupported):
            return self.error or error
        where = str(error).rpartition("\nRuntimeError: ")[0]
        return RuntimeError(f"{where}\nRuntimeError: {self.error}\n")


def _placed(x: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    machine = attachment.machine()
    if machine is not None:
        machine.registry.settle_on_host(x)
    return x if device is None else x.to(device)


@functools.cache
def _function_of(kind: str, schema: str) -> Any:
    """The Python function that the function mode answers, for an operator of PyTorch."""
    if kind in _PROPERTIES:
        return _PROPERTIES[kind]
    if kind == "vgpu::place":
        return _placed
    base = kind.partition("::")[2]
    if base == "to":
        return _converted
    for owner in (torch, torch._C._nn, _T):
        function = getattr(owner, base, None)
        if function is not None and function in _Kernel.answered:
            return function
    return None


def _converted(x: Any, *, memory_format: Any = None, layout: Any = None, pin_memory: Any = None, **options: Any) -> Any:
    """`Tensor.to` with what the overload was given."""
    if memory_format is not None:
        options["memory_format"] = memory_format
    return x.to(**{"dtype": x.dtype, **{name: value for name, value in options.items() if value is not None}})
