"""Probes of Lab 4's checkpointing: what comes out, what is kept, what is computed twice, what was measured.

The reference is the same chain of `labkit.models.TransformerBlock`, run in a child without the student's code.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab4.checkpointing.cases.types import (
    CPU_INTERVALS,
    Best,
    BestReply,
    Equivalence,
    EquivalenceReply,
    EvaluatedRun,
    Evaluation,
    EvaluationReply,
    ForwardStart,
    KeptBytes,
    Measured,
    MeasuredReply,
    Model,
    Saved,
    SavedReply,
    Sizes,
    StepCost,
    TrainedRun,
)
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import run_backward
from grader.shared.probes.facts import has_graph, parameters_of
from grader.shared.probes.kept import function, notes
from grader.shared.probes.record import VirtualGpu, mark, memory_since_now, reading, watch_products
from grader.shared.probes.support import exact, fields, instance, sequence, tensor
from labkit.models import TransformerBlock, count_parameters
from labkit.results import CheckpointingResult

MODULE = "lab4_memory.gradient_checkpointing"
_MODEL = "CheckpointedTransformer"


def _build(student: Student, case: Model, interval: int | None) -> nn.Module:
    """The student's model, or without a student the plain chain of blocks.

    Of its arguments next to the number of layers only the case's `options` are given; the others keep their defaults.
    """
    layers, model = case.layers, nn.Module()
    if student.present:
        values = {"width": case.width, "heads": case.heads, "dropout": case.dropout, "checkpoint_every": interval}
        options = {name: values[name] for name in case.options}
        what = f"CheckpointedTransformer({layers})"
        model = instance(student.module(MODULE).CheckpointedTransformer(layers, **options), nn.Module, what)
    else:
        model = nn.Sequential(*(TransformerBlock(case.width, case.heads, dropout=case.dropout) for _ in range(layers)))
    blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
    if len(blocks) != layers or count_parameters(model) != sum(count_parameters(block) for block in blocks):
        raise WrongReturn(
            f"CheckpointedTransformer({layers}) has {len(blocks)} labkit.models.TransformerBlock and "
            f"{count_parameters(model)} parameters; make {layers} of these blocks, and nothing else with parameters"
        )
    return model


def _filled(student: Student, case: Model, interval: int | None) -> nn.Module:
    """The same on the device, in float64, with parameters drawn from the case's seed."""
    model = _build(student, case, interval)
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, TransformerBlock):
                for parameter in block.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return model.to(student.device, torch.float64)


def _run(student: Student, model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's output; of a student's model it must be one."""
    output = model(inputs)
    return tensor(output, "CheckpointedTransformer.forward()", inputs.shape) if student.present else output


def _input(case: Model, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(case.seed + 1)
    return torch.randn(case.batch, case.length, case.width, generator=generator).to(dtype)


def equivalence(student: Student, inputs: Equivalence) -> EquivalenceReply:
    """Outputs and gradients in training, in float64, for each way.

    Between the forward passes others draw random numbers.
    """
    case = inputs.case
    runs = []
    gpu: VirtualGpu = student.gpu
    if gpu is not None:  # first use of the libraries
        ones = torch.ones(8, 8, dtype=torch.float64, device=student.device)
        nn.functional.linear(ones, ones, ones[0])
    for way in inputs.ways:
        model = _filled(student, case, way.interval)
        data = _input(case).to(student.device).requires_grad_(way.input_gradient)
        with torch.no_grad():
            for each in (*model.parameters(), *[data] * way.input_gradient) if case.nudge else ():
                each += case.nudge
        model.zero_grad(set_to_none=True)
        torch.manual_seed(case.seed)
        outputs: list[Tensor] = []
        arguments: list[Tensor] = []  # those of the way before are let go here, where no memory is counted yet
        memory, begun = (None, None) if gpu is None else (memory_since_now(gpu), mark(gpu))
        for number in range(way.passes):
            arguments.append(data * (number + 1))
            outputs.append(_run(student, model, arguments[-1]))
            torch.rand(number + 1, device=student.device)
        held: Any = None if memory is None else memory.held()
        copied: Any = None if begun is None else reading(gpu, "copied_bytes", begun)
        output = torch.cat(outputs)
        weighted = output * torch.linspace(-1, 1, output.numel(), device=student.device).view(output.shape)
        with watch_products(gpu) as products:
            if output.requires_grad:  # else there are no gradients, which is for the judge to say
                run_backward(weighted.sum(), of=_MODEL)
            backward_flops = products.flops()
        after = torch.cat([torch.rand(3, device=student.device).cpu(), torch.rand(3)])
        grads = [parameter.grad for parameter in model.parameters()]
        runs.append(
            TrainedRun(
                output=output.detach(),
                input_changed=any(argument.requires_grad != way.input_gradient for argument in arguments),
                names=[name for name, _ in model.named_parameters()],
                missing=sum(grad is None for grad in grads),
                gradients=torch.cat([grad.flatten() for grad in grads if grad is not None] or [output.detach()]),
                input_gradient=data.grad if data.grad is not None else torch.zeros(1),
                after=after,
                held_bytes=held,
                copied_bytes=copied,
                backward_flops=backward_flops,
            )
        )
    return EquivalenceReply(runs=runs)


def evaluation(student: Student, inputs: Evaluation) -> EvaluationReply:
    """The model in evaluation mode, with gradients (backward included) and without: outputs, and work in products."""
    runs = []
    for interval in inputs.intervals:
        model = _filled(student, inputs.case, interval).eval()
        data = _input(inputs.case).to(student.device).requires_grad_()
        with watch_products(student.gpu) as products:
            output = _run(student, model, data)
            if output.requires_grad:  # else the judge says that there are no gradients
                run_backward(output.sum(), of=_MODEL)
            with_gradients = products.flops()
        with watch_products(student.gpu) as products:
            with torch.no_grad():
                again = _run(student, model, data)
            without = products.flops()
        runs.append(
            EvaluatedRun(output=output.detach(), again=again, flops=with_gradients, flops_without_gradients=without)
        )
    return EvaluationReply(runs=runs)


def saved(student: Student, inputs: Saved) -> SavedReply:
    """Bytes that a forward pass keeps: what it leaves allocated, and what passes the hooks of saved tensors.

    And the work in products of this pass and of its backward pass.
    """
    runs: list[KeptBytes] = []
    for way in reversed(inputs.ways):
        with torch.device(student.device):
            model = _build(student, inputs.case, way.interval)
        data = _input(inputs.case, torch.float32).to(student.device).requires_grad_(way.input_gradient)
        if not runs:  # first use of the libraries; of this model, what a second pass keeps is measured
            first = _run(student, model, data).sum()
            if first.requires_grad:
                run_backward(first, of=_MODEL)
            del first
            model.zero_grad(set_to_none=True)
            data.grad = None
        own = {exact(parameter, "a parameter").untyped_storage()._cdata for parameter in model.parameters()}
        pack, packed = _packing()
        memory, begun = memory_since_now(student.gpu), None if student.gpu is None else mark(student.gpu)
        with watch_products(student.gpu) as products:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = _run(student, model, data)
            forward_flops = products.flops()
        held = memory.held()
        copied: Any = None if begun is None else reading(student.gpu, "copied_bytes", begun)
        with watch_products(student.gpu) as products:
            if output.requires_grad:  # else the judge says that there is no graph
                run_backward(output.sum(), of=_MODEL)
            backward_flops = products.flops()
        kept = {storage: size for storage, size in packed() if storage not in own}
        runs.insert(
            0,
            KeptBytes(
                held_bytes=held,
                copied_bytes=copied,
                forward_flops=forward_flops,
                backward_flops=backward_flops,
                saved_bytes=sum(kept.values()),
            ),
        )
        del output
        model.zero_grad(set_to_none=True)
    return SavedReply(runs=runs, input_bytes=data.numel() * 4)


def _packing() -> tuple[Callable[[Tensor], Tensor], Callable[[], list[tuple[int, int]]]]:
    """What is called with each saved tensor, and a list of their storages and bytes."""
    note, packed = notes()

    @function
    def pack(tensor: Tensor) -> Tensor:
        storage = exact(tensor, "a saved tensor").untyped_storage()
        note((storage._cdata, storage.nbytes()))
        return tensor

    return pack, packed


@measures("time")
def measured(student: Student, inputs: Measured) -> MeasuredReply:
    """`measure_checkpointing`, next to an independent measurement of the student's own model, and once on the CPU.

    On a real GPU what watches products costs the host more time than a step has, so the rows are those of a second
    call, which nothing watches; and the independent measurement is made before that call and after it: clocks change.
    """
    module = student.module(MODULE)
    kind, options = module.CheckpointedTransformer, {"steps": inputs.steps, "warmup": inputs.warmup}

    def measure() -> list[object]:
        rows = module.measure_checkpointing(inputs.intervals, **options, **inputs.sizes, **on_device(student))
        return sequence(rows, "measure_checkpointing()")

    def costs() -> list[StepCost]:
        return [_cost(student, kind, inputs.sizes, interval) for interval in inputs.intervals]

    note, updates = notes()
    handle = register_optimizer_step_post_hook(function(lambda *_: note(1)))
    with watch_products(student.gpu) as products, _blocks() as counts, _forwards(kind) as forwards:
        rows = measure()
        flops = products.flops()
    handle.remove()
    earlier: list[StepCost] = []
    if student.gpu is None:
        earlier = costs()
        rows = measure()
    steps = costs()
    for index, before in enumerate(earlier):
        steps[index] = replace(steps[index], seconds=[*steps[index].seconds, *before.seconds])
    tiny = {"num_layers": 2, "width": 8, "heads": 2, "batch": 1, "length": 4}
    on_cpu = sequence(
        module.measure_checkpointing(list(CPU_INTERVALS), device="cpu", steps=1, warmup=0, **tiny),
        "measure_checkpointing()",
    )
    return MeasuredReply(
        flops=flops,
        updates=len(updates()),
        most_blocks=max(counts(), default=0),
        blocks_made=len(counts()),
        forwards=list(forwards()),
        on_cpu=[
            fields(row, CheckpointingResult, f"measure_checkpointing()[{i}], on the CPU")
            for i, row in enumerate(on_cpu)
        ],
        rows=[fields(row, CheckpointingResult, f"measure_checkpointing()[{i}]") for i, row in enumerate(rows)],
        steps=steps,
        device=student.device,
    )


def _cost(student: Student, kind: Callable[..., object], sizes: Sizes, interval: int | None) -> StepCost:
    """Seconds, peak and work in products of a step of the student's model."""
    gc.collect()
    with torch.device(student.device):
        options = {"width": sizes["width"], "heads": sizes["heads"], "checkpoint_every": interval}
        model = instance(kind(sizes["num_layers"], **options), nn.Module, "CheckpointedTransformer()")
    data = torch.randn(sizes["batch"], sizes["length"], sizes["width"], device=student.device)

    def step() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        run_backward(_run(student, model, data).square().mean(), of=_MODEL)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    step()
    memory = memory_since_now(student.gpu)
    if student.gpu is None:  # a step that is watched takes longer there
        seconds, peak = sorted(step() for _ in range(3))[1], memory.peak()
    with watch_products(student.gpu) as products:
        watched = step()
        flops = products.flops()
    if student.gpu is not None:
        seconds, peak = watched, memory.peak()
    return StepCost(seconds=[seconds], peak_bytes=peak, flops=flops)


@contextlib.contextmanager
def _blocks() -> Iterator[Callable[[], list[int]]]:
    """Yield a function that lists, for each transformer block that was made, how many there were then."""
    note, counts = notes()
    counting = _counting(note)
    next(counting)

    @function
    def made(parent: nn.Module, name: str, submodule: object) -> None:
        if isinstance(parent, TransformerBlock):
            counting.send(parent)

    handle = register_module_module_registration_hook(made)
    try:
        yield counts
    finally:
        handle.remove()


def _counting(note: Callable[[int], None]) -> Generator[None, nn.Module]:
    """Notes with each block that is sent for the first time how many of them there are."""
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    while True:
        block = yield
        if block not in alive:
            gc.collect()  # what nobody can reach is gone
            alive.add(block)
            note(len(alive))
        del block


@contextlib.contextmanager
def _forwards(kind: object) -> Iterator[Callable[[], Iterable[list[ForwardStart]]]]:
    """Yield a function that lists, for each model of `kind`, what there was when each of its forward passes began."""
    note, noted = notes()
    numbering = _numbering()
    next(numbering)

    @function
    def begins(model: nn.Module, inputs: tuple[object, ...]) -> None:
        if isinstance(kind, type) and isinstance(model, kind):
            needed = has_graph(*inputs)
            gradients = sum(parameter.grad is not None for parameter in parameters_of(model))
            blocks = [block for block in nn.Module.modules(model) if isinstance(block, TransformerBlock)]
            dropouts = sorted({float(block.dropout) for block in blocks})
            start = ForwardStart(input_requires_gradient=needed, gradients=gradients, dropouts=dropouts)
            note((numbering.send(model), start))

    def of_each_model() -> Iterable[list[ForwardStart]]:
        rows: dict[int, list[ForwardStart]] = {}
        for number, start in noted():
            rows.setdefault(number, []).append(start)
        return rows.values()

    handle = register_module_forward_pre_hook(begins)
    try:
        yield of_each_model
    finally:
        handle.remove()


def _numbering() -> Generator[int, nn.Module]:
    """The number of each model that is sent, in the order in which they come."""
    numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
    number = -1
    for place in itertools.count():
        model = yield number
        number = numbers.setdefault(model, place)
        del model


def best(student: Student, inputs: Best) -> BestReply:
    """`best_interval` on made-up results; an error by its name."""
    find = student.module(MODULE).best_interval
    chosen: list[dict[str, object] | str] = []
    for case in inputs.cases:
        results = [
            CheckpointingResult(device="cuda", checkpoint_every=every, step_seconds=seconds, peak_bytes=peak)
            for every, seconds, peak in case.rows
        ]
        try:
            chosen.append(fields(find(results, budget_bytes=case.budget), CheckpointingResult, "best_interval()"))
        except ValueError as error:
            chosen.append(type(error).__name__)
    return BestReply(chosen=chosen)
