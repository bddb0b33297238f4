"""Probe of the benchmark of Lab 4's attention, next to a measurement of the same functions."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import AttentionCost, Benchmark, BenchmarkCall, BenchmarkReply
from grader.lab4.attention.probes.module import without_libraries
from grader.lab4.shared.cases import Fields
from grader.shared.probes.calls import on_device
from grader.shared.probes.card import wake
from grader.shared.probes.endings import run_backward
from grader.shared.probes.kept import function, notes
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields, plain, sequence, tensor
from labkit.results import AttentionResult

_BUSY_SIZE, _BUSY_TIMES = 16_000, 10
"""Of a matrix: so many operations on it take longer than attention of few tokens, with all its launches."""
_SHARES = (0.08, 0.4)
"""Of the device's memory, for the scores of all heads: of these standard attention holds several at once."""
_REAL_BUSY_SIZE, _REAL_BUSY = 8_000, 20
"""On a real GPU the host's launches decide: there it takes so many times as long as one iteration was seen to take."""


@measures("time", "device memory")
def measured(student: Student, inputs: Benchmark) -> BenchmarkReply:
    """`benchmark_attention`, next to an independent measurement of the same functions; and of one length the other way,
    with a mask or without. On a real GPU all but the longest are measured before it, too: clocks change.

    Of the `counted` benchmark only the work in products is noted, next to that of one iteration, and its seconds: the
    first `warmup` calls of each method make the device work for longer than anything here. A third one runs on the CPU.
    """
    module = without_libraries(student)
    first, counted = inputs.measured, inputs.counted
    longest = max(first.lengths)
    other_way = replace(first, lengths=first.lengths[-1:], causal=not first.causal)
    rows: list[object] = []
    costs: list[AttentionCost] = []
    real = student.gpu is None
    if real:
        wake()
    for call in (first, other_way):
        before: list[AttentionCost] = []
        for length in call.lengths if real else []:
            before += (
                _costs(module, student.device, call, [length])
                if length != longest
                else [AttentionCost(seconds=None, peak_bytes=None) for _ in call.methods]
            )
        rows += _benchmark(module, call, on_device(student))
        costs += _joined(before, _costs(module, student.device, call, call.lengths))

    def one_each() -> None:
        for length in counted.lengths:
            for method in counted.methods:
                shape = (counted.batch, counted.heads, length, counted.head_dim)
                operands = [torch.randn(shape, device=student.device, requires_grad=True) for _ in range(3)]
                output = _attention(module, f"{method}_attention", operands, counted.causal)
                run_backward(output.sum(), of=f"{method}_attention()")

    size = _REAL_BUSY_SIZE if real else _BUSY_SIZE
    busy = torch.ones(size, size, device=student.device)
    times = _times_of_busy(busy, one_each) if real else _BUSY_TIMES
    busy_seconds = _seconds(lambda: _be_busy(busy, times))
    warmup = counted.warmup or 0
    with (
        watch_products(student.gpu) as products,
        _watched(module, counted.methods, warmup, lambda: _be_busy(busy, times)) as (calls, backwards),
    ):
        small = _benchmark(module, counted, on_device(student))
        flops = products.flops()
    watched = {method: calls(method) for method in counted.methods}
    with watch_products(student.gpu) as products:
        one_each()
        flops_of_one_each = products.flops()
    again = [] if real else _fits_again(module, first, on_device(student))
    on_cpu = _benchmark(module, inputs.on_cpu, {"device": "cpu"})
    # No gradient of integers can be had.
    whole = replace(inputs.on_cpu, dtype="int64")
    return BenchmarkReply(
        fits_again=again,
        of_integers=_error(lambda: module.benchmark_attention(**_arguments(whole), **on_device(student))),
        flops=flops,
        flops_of_one_each=flops_of_one_each,
        gradients={method: [call.gradients for call in made] for method, made in watched.items()},
        operands={method: [call.operands for call in made] for method, made in watched.items()},
        own_gradients=sum(own for own, _ in backwards()),
        least_operands=min((operands for _, operands in backwards()), default=3.0),
        busy_seconds=busy_seconds,
        device=student.device,
        small=_fields(small),
        on_cpu=_fields(on_cpu),
        rows=_fields(rows),
        costs=costs,
        backend=plain(module.attention_backend(student.device, getattr(torch, first.dtype)), "attention_backend()"),
    )


def _fits_again(module: ModuleType, call: BenchmarkCall, device: dict[str, str]) -> list[bool]:
    """Whether memory suffices for a length alone, for a longer one, and for the first one after that.

    Scores of the longer one take so much that memory runs out while some of them are held. What is held then does not
    leave enough for the other length.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    short, long = (math.isqrt(int(share * total / (2 * call.batch * call.heads))) for share in _SHARES)
    alone, after = (replace(call, lengths=lengths, methods=["standard"]) for lengths in ([short], [long, short]))
    rows = [row for each in (alone, after) for row in _fields(_benchmark(module, each, device))]
    return [row["seconds"] is not None for row in rows]


def _arguments(call: BenchmarkCall) -> dict[str, object]:
    """What `benchmark_attention` is called with, without the device."""
    arguments = {name: value for name, value in vars(call).items() if value is not None}
    return {**arguments, "dtype": getattr(torch, call.dtype)}


def _benchmark(module: ModuleType, call: BenchmarkCall, device: dict[str, str]) -> list[object]:
    return sequence(module.benchmark_attention(**_arguments(call), **device), "benchmark_attention()")


def _fields(rows: Sequence[object]) -> list[Fields]:
    return [fields(row, AttentionResult, f"benchmark_attention()[{i}]") for i, row in enumerate(rows)]


def _attention(module: ModuleType, name: str, operands: Sequence[Tensor], causal: bool) -> Tensor:
    options = {"causal": True} if causal else {}
    return tensor(getattr(module, name)(*operands, **options), f"{name}()", operands[0].shape)


def _joined(before: Sequence[AttentionCost], after: Sequence[AttentionCost]) -> list[AttentionCost]:
    """The costs after a benchmark, with the seconds of those that were measured before it as well."""
    joined = list(after)
    for index, (earlier, later) in enumerate(zip(before, after, strict=False)):
        if later.seconds is not None and earlier.seconds is not None:
            joined[index] = replace(later, seconds=[*later.seconds, *earlier.seconds])
    return joined


def _costs(module: ModuleType, device: str, call: BenchmarkCall, lengths: Sequence[int]) -> list[AttentionCost]:
    """Seconds and peak of every length with every method; None for both if memory runs out."""
    costs = []
    for length in lengths:
        for method in call.methods:
            attention = functools.partial(_attention, module, f"{method}_attention", causal=call.causal)
            shape = (call.batch, call.heads, length, call.head_dim)
            try:
                costs.append(_measure(attention, shape, getattr(torch, call.dtype), device))
            except torch.OutOfMemoryError:
                costs.append(AttentionCost(seconds=None, peak_bytes=None))
            torch.cuda.empty_cache()
    return costs


def _times_of_busy(matrix: torch.Tensor, iteration: Callable[[], object]) -> int:
    """How many operations on this matrix last far longer than an iteration that is watched."""
    with watch_products(None):
        iteration()  # first use of the libraries
        least = _REAL_BUSY * _seconds(iteration)
    _be_busy(matrix, 1)
    return math.ceil(least / _seconds(lambda: _be_busy(matrix, 1)))


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


class _Call(NamedTuple):
    """What was seen of one call of a method."""

    gradients: int
    """Operands that had a gradient when it began."""
    operands: int
    """Operands that share no memory with another one."""


def _memory(value: Tensor) -> tuple[int, int]:
    """Tells tensors apart that have memory of their own, on a device without numbers as well."""
    return value.untyped_storage()._cdata, int(value.storage_offset())


def _tensors(values: object) -> list[Tensor]:
    """What backward takes: one of them, or several."""
    each = values if isinstance(values, (list, tuple)) else [values]
    return [value for value in each if isinstance(value, Tensor)]


def _operands(output: Tensor) -> float:
    """How many times as large as an output all the tensors are together that its graph leads to: Q, K and V make 3."""
    nodes: list[Any] = [output.grad_fn]
    known: set[object] = set()
    leaves: dict[tuple[int, int], int] = {}
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves[_memory(leaf)] = leaf.numel()
        nodes += [following for following, _ in node.next_functions]
    return sum(leaves.values()) / output.numel() if output.numel() > 1 else 3.0


@contextmanager
def _watched(
    module: ModuleType, methods: Sequence[str], warmup: int, work: Callable[[], object]
) -> Iterator[tuple[Callable[[str], list[_Call]], Callable[[], list[tuple[bool, float]]]]]:
    """Yield a function that lists the calls of a method, and one that lists of each backward pass whether an output was
    its own gradient, and how many operands there are.

    The first `warmup` calls of each do `work`, too. Gradients are looked at where backward begins, by whatever name the
    output was computed.
    """
    (note, noted), (note_back, backwards) = notes(), notes()
    own = {method: getattr(module, f"{method}_attention") for method in methods}
    autograd: Any = torch.autograd
    go_back, go_back_to = autograd.backward, autograd.grad

    def seen(method: str) -> list[_Call]:
        return [value for name, value in noted() if name == method]

    @function
    def goes_back(outputs: object, gradients: object) -> None:
        pairs = zip(_tensors(outputs), _tensors(gradients), strict=False)
        own_gradient = any(_memory(output) == _memory(gradient) for output, gradient in pairs)
        note_back((own_gradient, min(map(_operands, _tensors(outputs)), default=3.0)))

    def backward(tensors: object, grad_tensors: object = None, *arguments: object, **named: object) -> None:
        goes_back(tensors, grad_tensors)
        go_back(tensors, grad_tensors, *arguments, **named)

    def grad(
        outputs: object, inputs: object, grad_outputs: object = None, *arguments: object, **named: object
    ) -> object:
        goes_back(outputs, grad_outputs)
        return go_back_to(outputs, inputs, grad_outputs, *arguments, **named)

    def watched(method: str) -> Callable[..., object]:
        calls, attention = itertools.count(1), own[method]

        @function
        def begins(*values: object) -> None:
            tensors = [value for value in values if isinstance(value, Tensor) and value.is_leaf]
            gradients = sum(tensor.grad is not None for tensor in tensors)
            note((method, _Call(gradients, len({_memory(tensor) for tensor in tensors}))))
            if next(calls) <= warmup:
                work()

        @functools.wraps(attention)
        def call(*operands: object, **named: object) -> object:
            begins(*operands, *named.values())
            return attention(*operands, **named)

        return call

    for method in methods:
        setattr(module, f"{method}_attention", watched(method))
    autograd.backward, autograd.grad = backward, grad
    try:
        yield seen, backwards
    finally:
        autograd.backward, autograd.grad = go_back, go_back_to
        for method in methods:
            setattr(module, f"{method}_attention", own[method])


def _measure(
    attention: Callable[[Sequence[Tensor]], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> AttentionCost:
    operands = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def iteration() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for operand in operands:
            operand.grad = None
        run_backward(attention(operands), gradient, of="an attention function")
        torch.cuda.synchronize()
        return time.perf_counter() - start

    iteration()
    for operand in operands:
        operand.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = [sorted(iteration() for _ in range(3))[1]]
    return AttentionCost(seconds=seconds, peak_bytes=torch.cuda.max_memory_allocated() - before)
