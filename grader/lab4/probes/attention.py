"""Probes of Lab 4's attention: outputs and gradients, what is made on the way, the library called, the benchmark."""

from __future__ import annotations

import functools
import importlib.machinery
import math
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradebox.sandbox.measuring import measures
from grader.shared.probes.calls import on_device
from grader.shared.probes.card import wake
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields, plain, sequence, tensor
from labkit.results import AttentionResult

MODULE = "lab4_memory.flash_attention"

_BUSY_SIZE, _BUSY_TIMES = 16_000, 10
"""Of a matrix: so many operations on it take longer than attention of few tokens, with all its launches."""
_REAL_BUSY_SIZE, _REAL_BUSY = 8_000, 20
"""On a real GPU the host's launches decide: there it takes so many times as long as one iteration was seen to take."""


def _without_libraries(student: Any) -> Any:
    """The student's module, where flash-attn cannot be imported: its kernels run on no virtual GPU."""
    if student.gpu is not None:
        for name in ("flash_attn", "flash_attn.cute"):
            sys.modules[name] = None  # type: ignore[assignment]
    return student.module(MODULE)


def attend(
    student: Any, *, function: str, calls: Sequence[dict[str, Any]], q: Tensor, k: Tensor, v: Tensor, gradient: Tensor
) -> dict[str, Any]:
    """Output and gradients of `function` for each of `calls`: dtype, causal and perhaps other arguments.

    `queries` and `keys` of a call say how many of the given ones it uses, `factor` what the queries are multiplied by,
    `transposed` that the operands are views of tensors with heads behind the length, `needed` which of "QKV" require a
    gradient (all of them where it is not there), `alone` that there is one sequence with one head. `changed` names the
    operands that are others afterwards.
    """
    attention = getattr(_without_libraries(student), function)
    runs = []
    for call in calls:
        arguments = dict(call)
        dtype, queries, keys = getattr(torch, arguments.pop("dtype")), arguments.pop("queries"), arguments.pop("keys")
        factor, transposed = arguments.pop("factor", 1), arguments.pop("transposed", False)
        needed, many = arguments.pop("needed", "QKV"), 1 if arguments.pop("alone", False) else None
        inputs = []
        for name, values, count in (("Q", q * factor, queries), ("K", k, keys), ("V", v, keys)):
            operand = values[:many, :many, :count].to(dtype).to(student.device)
            if transposed:
                operand = operand.transpose(1, 2).contiguous().transpose(1, 2)
            inputs.append(operand.requires_grad_(name in needed))
        before = [one.detach().clone() for one in inputs]
        output = tensor(attention(*inputs, **_asked(arguments)), f"{function}()", inputs[0].shape)
        run = {"dtype": plain(output.dtype, ""), "output": output.detach().double()}
        if output.requires_grad:  # else there are no gradients, which is for the judge to say
            output.backward(gradient[:many, :many, :queries].to(dtype).to(student.device))
        for name, one in zip(("d_query", "d_key", "d_value"), inputs, strict=True):
            run[name] = (torch.zeros_like(one) if one.grad is None else one.grad).double()
        kept = (bool((old == new.detach()).all()) for old, new in zip(before, inputs, strict=True))
        run["changed"] = [name for name, same in zip("QKV", kept, strict=True) if not same]
        runs.append(run)
    return {"runs": runs}


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; without a mask it has those of the document, which knows none."""
    return {name: value for name, value in arguments.items() if name != "causal" or value}


def future(student: Any, *, functions: Sequence[str], cases: Sequence[dict[str, int]], seed: int) -> dict[str, Any]:
    """How far each query's causal output moves when one key and its value change, per function and case."""
    module = _without_libraries(student)
    generator = torch.Generator().manual_seed(seed)
    moved: dict[str, list[Any]] = {name: [] for name in functions}
    for case in cases:
        shapes = ((1, 2, case["queries"], 8), (1, 2, case["keys"], 8), (1, 2, case["keys"], 8))
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, case["changed"]] += 1.0
        other_v[:, :, case["changed"]] -= 3.0
        for name in functions:
            for enabled in (True, False):
                with torch.set_grad_enabled(enabled):
                    one, other = (
                        tensor(
                            getattr(module, name)(*(x.to(student.device) for x in operands), causal=True),
                            f"{name}()",
                            q.shape,
                        )
                        for operands in ((q, k, v), (q, other_k, other_v))
                    )
                moved[name].append((one - other).abs().amax(dim=(0, 1, 3)).tolist())
    return {"moved": moved}


class _LargestSpy(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation returns; an expanded one counts what it holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                own = min(leaf.numel(), leaf.untyped_storage().nbytes() // leaf.element_size())
                self.elements = max(self.elements, own)
        return result


def largest(student: Any, *, function: str, cases: Sequence[dict[str, Any]], head_dim: int) -> dict[str, Any]:
    """Largest tensor and added peak in forward and backward of one head."""
    own = getattr(_without_libraries(student), function)

    def attention(*operands: Tensor, **named: Any) -> Tensor:
        return tensor(own(*operands, **_asked(named)), f"{function}()", operands[0].shape)

    def run(queries: int, keys: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        inputs = [
            torch.randn(1, 1, count, head_dim, device=student.device, dtype=dtype, requires_grad=True)
            for count in (queries, keys, keys)
        ]
        return inputs, torch.randn(1, 1, queries, head_dim, device=student.device, dtype=dtype)

    runs = []
    for case in cases:
        arguments = {name: value for name, value in case.items() if name not in ("queries", "keys", "dtype")}
        dtype = getattr(torch, case["dtype"])
        inputs, gradient = run(96, 128, dtype)  # first use of the libraries
        attention(*inputs, **arguments).backward(gradient)
        inputs, gradient = run(case["queries"], case["keys"], dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with _LargestSpy() as spy:
            attention(*inputs, **arguments).backward(gradient)
        runs.append({"largest_elements": spy.elements, "added_bytes": torch.cuda.max_memory_allocated() - before})
    return {"runs": runs}


def installed(
    student: Any,
    *,
    modules: Sequence[str],
    dtype: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    benchmarks: Sequence[str] = (),
) -> dict[str, Any]:
    """`flash_attention` where a stand-in of flash-attn is installed: what it says, how it calls, what comes out.

    The submission is imported, and asked once, before anything is installed. `benchmarks` are dtypes in which
    `benchmark_attention` runs, too: dtype, backend of its row, and what `attention_backend` says. Version 4 gives a
    tuple the first time, and the output alone the second time.
    """
    seen: list[dict[str, Any]] = []
    module, kind = _without_libraries(student), getattr(torch, dtype)
    before = plain(module.attention_backend(student.device, kind), "attention_backend()")

    def attention(name: str, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool) -> Tensor:
        seen.append({"module": name, "shapes": [list(x.shape) for x in (query, key, value)], "causal": bool(causal)})
        scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float())
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            lengths = scores.shape[-2:]
            hidden = torch.ones(*lengths, dtype=torch.bool, device=scores.device).triu(1 + lengths[1] - lengths[0])
            scores = scores.masked_fill(hidden, -1e30)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.float()).to(query.dtype)

    def version_2(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
        deterministic: bool = False, return_attn_probs: bool = False,
    ) -> Tensor:  # fmt: skip
        return attention("flash_attn", q, k, v, softmax_scale, causal)

    def version_4(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
        window_size: Any = (None, None), learnable_sink: Any = None, softcap: float = 0.0, **others: Any,
    ) -> tuple[Tensor, None] | Tensor:  # fmt: skip
        output = attention("flash_attn.cute", q, k, v, softmax_scale, causal)
        return (output, None) if len(seen) == 1 else output

    package = _stand_in("flash_attn", "2.8.3")
    if "flash_attn" in modules:
        package.flash_attn_func = version_2  # type: ignore[attr-defined]
    cute = None
    if "flash_attn.cute" in modules:
        cute = _stand_in("flash_attn.cute", "4.0.0")
        cute.flash_attn_func = version_4  # type: ignore[attr-defined]
        package.cute = cute  # type: ignore[attr-defined]
    sys.modules["flash_attn"] = package if modules else None  # type: ignore[assignment]
    sys.modules["flash_attn.cute"] = cute  # type: ignore[assignment]
    backend, on_cpu = (
        plain(module.attention_backend(device, kind), "attention_backend()") for device in (student.device, "cpu")
    )
    outputs = [
        module.flash_attention(*(x.to(kind).to(student.device) for x in (q, k, v)), **_asked({"causal": causal}))
        for _ in range(2)
    ]
    called = list(seen)
    benchmarked = []
    tiny: dict[str, Any] = {**on_device(student), "heads": 2, "head_dim": 8, "iterations": 1, "warmup": 1}
    for name in benchmarks:
        other = getattr(torch, name)
        (row,) = sequence(module.benchmark_attention([5], ["flash"], dtype=other, **tiny), "benchmark_attention()")
        told = plain(module.attention_backend(student.device, other), "attention_backend()")
        benchmarked.append([name, fields(row, AttentionResult, "benchmark_attention()[0]")["backend"], told])
    return {
        "benchmarked": benchmarked,
        "before": before,
        "backend": backend,
        "on_cpu": on_cpu,
        "calls": called,
        "outputs": [{"output": tensor(output, "flash_attention()", q.shape).detach().double()} for output in outputs],
    }


def _stand_in(name: str, version: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__version__ = version  # type: ignore[attr-defined]
    return module


@measures("time", "device memory")
def benchmark(
    student: Any, *, arguments: dict[str, Any], counted: dict[str, Any], on_cpu: dict[str, Any]
) -> dict[str, Any]:
    """`benchmark_attention`, beside an independent measurement of the same functions; and of one length the other way,
    with a mask or without. On a real GPU all but the longest are measured before it, too: clocks change.

    Of a second, `counted` benchmark only the work in products is noted, beside that of one iteration, and its seconds:
    the first `warmup` calls of each method make the device work for longer than anything here. A third one runs on the
    CPU.
    """
    module = _without_libraries(student)
    dtype = getattr(torch, arguments["dtype"])
    other_way = {**arguments, "lengths": arguments["lengths"][1:2], "causal": not arguments["causal"]}
    rows, truths = [], []
    real = student.gpu is None
    if real:
        wake()
    for asked in (arguments, other_way):
        before = _truths(module, dtype, student.device, asked, asked["lengths"][:2]) if real else []
        told = module.benchmark_attention(**{**asked, "dtype": dtype}, **on_device(student))
        rows += sequence(told, "benchmark_attention()")
        after = _truths(module, dtype, student.device, asked, asked["lengths"])
        for index, truth in enumerate(after):
            if index < len(before) and truth["seconds"] is not None and before[index]["seconds"] is not None:
                truth["seconds"] += before[index]["seconds"]
        truths += after
    dtype_counted = getattr(torch, counted["dtype"])

    def one_each() -> None:
        for length in counted["lengths"]:
            for method in counted["methods"]:
                shape = (counted["batch"], counted["heads"], length, counted["head_dim"])
                inputs = [torch.randn(shape, device=student.device, requires_grad=True) for _ in range(3)]
                called = f"{method}_attention"
                output = getattr(module, called)(*inputs, **_asked({"causal": counted["causal"]}))
                tensor(output, f"{called}()", shape).sum().backward()

    size = _REAL_BUSY_SIZE if real else _BUSY_SIZE
    busy = torch.ones(size, size, device=student.device)
    times = _times_of_busy(busy, one_each) if real else _BUSY_TIMES
    busy_seconds = _seconds(lambda: _be_busy(busy, times))
    with (
        watch_products(student.gpu) as products,
        _gradients(module, counted["methods"], counted["warmup"], lambda: _be_busy(busy, times)) as gradients,
    ):
        small = sequence(
            module.benchmark_attention(**{**counted, "dtype": dtype_counted}, **on_device(student)),
            "benchmark_attention()",
        )
        flops = products.flops()
    with watch_products(student.gpu) as products:
        one_each()
        flops_of_one_each = products.flops()
    cpu = sequence(
        module.benchmark_attention(**{**on_cpu, "dtype": getattr(torch, on_cpu["dtype"])}, device="cpu"),
        "benchmark_attention()",
    )
    whole: dict[str, Any] = {**on_cpu, "dtype": torch.int64}  # of which no gradient can be had
    return {
        "of_integers": _error(lambda: module.benchmark_attention(**whole, **on_device(student))),
        "flops": flops,
        "flops_of_one_each": flops_of_one_each,
        "gradients": gradients,
        "busy_seconds": busy_seconds,
        "device": student.device,
        "small": [fields(row, AttentionResult, f"benchmark_attention()[{i}]") for i, row in enumerate(small)],
        "on_cpu": [fields(row, AttentionResult, f"benchmark_attention()[{i}]") for i, row in enumerate(cpu)],
        "rows": [fields(row, AttentionResult, f"benchmark_attention()[{i}]") for i, row in enumerate(rows)],
        "truths": truths,
        "backend": plain(module.attention_backend(student.device, dtype), "attention_backend()"),
    }


def _attention(module: Any, name: str, *operands: Tensor, causal: bool) -> Tensor:
    output = getattr(module, name)(*operands, **_asked({"causal": causal}))
    return tensor(output, f"{name}()", operands[0].shape)


def _truths(
    module: Any, dtype: torch.dtype, device: str, asked: dict[str, Any], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Seconds and peak of every length with every method; None for both if memory runs out."""
    truths = []
    for length in lengths:
        for method in asked["methods"]:
            attention = functools.partial(_attention, module, f"{method}_attention")
            shape = (asked["batch"], asked["heads"], length, asked["head_dim"])
            try:
                truths.append(_measure(attention, shape, dtype, device, asked["causal"]))
            except torch.OutOfMemoryError:
                truths.append({"seconds": None, "peak_bytes": None})
            torch.cuda.empty_cache()
    return truths


def _times_of_busy(matrix: torch.Tensor, iteration: Callable[[], object]) -> int:
    """How many operations on this matrix last far longer than an iteration that is watched."""
    with watch_products(None):
        iteration()  # first use of the libraries
        wanted = _REAL_BUSY * _seconds(iteration)
    _be_busy(matrix, 1)
    return math.ceil(wanted / _seconds(lambda: _be_busy(matrix, 1)))


def _seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _be_busy(matrix: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.exp(matrix)


def _error(call: Callable[[], object]) -> str:
    """The name of what `call` raised; "" where it returned."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


@contextmanager
def _gradients(
    module: Any, methods: Sequence[str], warmup: int, work: Callable[[], object]
) -> Iterator[dict[str, list[int]]]:
    """Yield for each method a list that gets, at each of its calls, how many operands have a gradient then.

    The first `warmup` calls of each do `work`, too.
    """
    found: dict[str, list[int]] = {method: [] for method in methods}
    own = {method: getattr(module, f"{method}_attention") for method in methods}

    def watched(method: str) -> Callable[..., Any]:
        @functools.wraps(own[method])
        def call(*operands: Any, **named: Any) -> Any:
            tensors = [value for value in (*operands, *named.values()) if isinstance(value, Tensor) and value.is_leaf]
            found[method].append(sum(tensor.grad is not None for tensor in tensors))
            if len(found[method]) <= warmup:
                work()
            return own[method](*operands, **named)

        return call

    for method in methods:
        setattr(module, f"{method}_attention", watched(method))
    try:
        yield found
    finally:
        for method in methods:
            setattr(module, f"{method}_attention", own[method])


def _measure(
    attention: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: str, causal: bool
) -> dict[str, Any]:
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def iteration() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for operand in inputs:
            operand.grad = None
        attention(*inputs, causal=causal).backward(gradient)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    iteration()
    for operand in inputs:
        operand.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = [statistics.median(iteration() for _ in range(3))]
    return {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated() - before}
