"""Probes of Lab 4's checkpointing: what comes out, what is kept, what is computed twice, what was measured.

The reference is the same chain of `labkit.models.TransformerBlock`, run in a child without the student's code.
Attention is in `lab4_attention`, running out of memory in `lab4_oom`, predictions in `lab4_analysis`.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import WrongReturn
from grader.shared.probes.calls import on_device
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields, instance, sequence, tensor
from labkit.models import TransformerBlock, count_parameters
from labkit.results import CheckpointingResult

MODULE = "lab4_memory.gradient_checkpointing"


def _build(student: Any, case: dict[str, Any], interval: int | None) -> nn.Module:
    """The student's model, or without a student the plain chain of blocks.

    Of its arguments beside the number of layers the case says which are `given`; the others are the default ones.
    """
    layers, model = case["layers"], nn.Module()
    if student.present:
        options = {name: case[name] for name in ("width", "heads", "dropout") if name in case["given"]}
        if "checkpoint_every" in case["given"]:
            options["checkpoint_every"] = interval
        what = f"CheckpointedTransformer({layers})"
        model = instance(student.module(MODULE).CheckpointedTransformer(layers, **options), nn.Module, what)
    else:
        model = nn.Sequential(
            *(TransformerBlock(case["width"], case["heads"], dropout=case["dropout"]) for _ in range(layers))
        )
    blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
    if len(blocks) != layers or count_parameters(model) != sum(count_parameters(block) for block in blocks):
        raise WrongReturn(
            f"CheckpointedTransformer({layers}) has {len(blocks)} labkit.models.TransformerBlock and "
            f"{count_parameters(model)} parameters; make {layers} of these blocks, and nothing else with parameters"
        )
    return model


def _filled(student: Any, case: dict[str, Any], interval: int | None) -> nn.Module:
    """The same on the device, in float64, with parameters drawn from the case's seed."""
    model = _build(student, case, interval)
    generator = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, TransformerBlock):
                for parameter in block.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return model.to(student.device, torch.float64)


def _run(student: Any, model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's output; of a student's model it must be one."""
    output = model(inputs)
    return tensor(output, "CheckpointedTransformer.forward()", inputs.shape) if student.present else output


def _input(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    return torch.randn(case["batch"], case["length"], case["width"], generator=generator).to(dtype)


def equivalence(student: Any, *, case: dict[str, Any], ways: Sequence[Any]) -> dict[str, Any]:
    """Outputs and gradients in training, in float64, per interval, and whether the input requires a gradient.

    The third of each way says how many forward passes precede the backward pass of all of them; between them others
    draw random numbers. `after` is what the generators of the device and of the CPU give once all is done.
    """
    runs = []
    for interval, requires_grad, passes in ways:
        model = _filled(student, case, interval)
        inputs = _input(case).to(student.device).requires_grad_(requires_grad)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(case["seed"])
        outputs, given = [], []
        for number in range(passes):
            given.append(inputs * (number + 1))
            outputs.append(_run(student, model, given[-1]))
            torch.rand(number + 1, device=student.device)
        output = torch.cat(outputs)
        weighted = output * torch.linspace(-1, 1, output.numel(), device=student.device).view(output.shape)
        if output.requires_grad:  # else there are no gradients, which is for the judge to say
            weighted.sum().backward()
        after = torch.cat([torch.rand(3, device=student.device).cpu(), torch.rand(3)])
        grads = [parameter.grad for parameter in model.parameters()]
        runs.append(
            {
                "output": output.detach(),
                "input_changed": any(each.requires_grad != requires_grad for each in given),
                "names": [name for name, _ in model.named_parameters()],
                "missing": sum(grad is None for grad in grads),
                "gradients": torch.cat([grad.flatten() for grad in grads if grad is not None] or [output.detach()]),
                "input_gradient": inputs.grad if inputs.grad is not None else torch.zeros(1),
                "after": after,
            }
        )
    return {"runs": runs}


def evaluation(student: Any, *, case: dict[str, Any], intervals: Sequence[int | None]) -> dict[str, Any]:
    """The model in evaluation mode, with gradients (backward included) and without: outputs, and work in products."""
    runs = []
    for interval in intervals:
        model = _filled(student, case, interval).eval()
        inputs = _input(case).to(student.device).requires_grad_()
        with watch_products(student.gpu) as products:
            output = _run(student, model, inputs)
            if output.requires_grad:  # else the judge says that there are no gradients
                output.sum().backward()
            with_gradients = products.flops()
        with watch_products(student.gpu) as products:
            with torch.no_grad():
                again = _run(student, model, inputs)
            without = products.flops()
        runs.append(
            {"output": output.detach(), "again": again, "flops": with_gradients, "flops_without_gradients": without}
        )
    return {"runs": runs}


def saved(student: Any, *, case: dict[str, Any], ways: Sequence[Any]) -> dict[str, Any]:
    """Bytes that a forward pass keeps: what it leaves allocated, and what passes the hooks of saved tensors.

    Each way is an interval, and whether the input requires a gradient.
    """
    runs = []
    for interval, requires_grad in ways:
        with torch.device(student.device):
            model = _build(student, case, interval)
        inputs = _input(case, torch.float32).to(student.device).requires_grad_(requires_grad)
        first = _run(student, model, inputs).sum()
        if first.requires_grad:
            first.backward()  # first use of the libraries
        del first
        model.zero_grad(set_to_none=True)
        inputs.grad = None
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, own: set[int] = own, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        before = torch.cuda.memory_allocated()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = _run(student, model, inputs)
        held = torch.cuda.memory_allocated() - before
        runs.append({"held_bytes": held, "saved_bytes": sum(kept.values())})
        del output
    return {"runs": runs, "input_bytes": inputs.numel() * 4}


@measures("time")
def measured(
    student: Any, *, intervals: Sequence[int | None], sizes: dict[str, int], steps: int, warmup: int
) -> dict[str, Any]:
    """`measure_checkpointing`, beside an independent measurement of the student's own model, and once on the CPU.

    On a real GPU what watches products costs the host more time than a step has, so the rows are those of a second
    call, which nothing watches; and the independent measurement is made before that call and after it: clocks change.
    """
    module = student.module(MODULE)
    kind = module.CheckpointedTransformer

    def measure() -> Sequence[Any]:
        return sequence(
            module.measure_checkpointing(intervals, steps=steps, warmup=warmup, **sizes, **on_device(student)),
            "measure_checkpointing()",
        )

    with watch_products(student.gpu) as products, _blocks() as counts, _forwards(kind) as forwards:
        rows = measure()
        flops = products.flops()
    truths = [_truth(student, kind, sizes, interval) for interval in intervals] if student.gpu is None else []
    if student.gpu is None:
        rows = measure()
    before = [truth["seconds"] for truth in truths]
    truths = [_truth(student, kind, sizes, interval) for interval in intervals]
    for truth, earlier in zip(truths, before, strict=False):
        truth["seconds"] += earlier
    tiny = {"num_layers": 2, "width": 8, "heads": 2, "batch": 1, "length": 4}
    on_cpu = sequence(
        module.measure_checkpointing([2], device="cpu", steps=1, warmup=0, **tiny), "measure_checkpointing()"
    )
    return {
        "flops": flops,
        "most_blocks": max(counts, default=0),
        "forwards": forwards,
        "on_cpu": [fields(row, CheckpointingResult, "measure_checkpointing()[0], on the CPU") for row in on_cpu],
        "rows": [fields(row, CheckpointingResult, f"measure_checkpointing()[{i}]") for i, row in enumerate(rows)],
        "truths": truths,
        "device": student.device,
    }


def _truth(student: Any, kind: Any, sizes: dict[str, int], interval: int | None) -> dict[str, Any]:
    """Seconds, peak and work in products of a step of the student's model."""
    gc.collect()
    with torch.device(student.device):
        options = {"width": sizes["width"], "heads": sizes["heads"], "checkpoint_every": interval}
        model = instance(kind(sizes["num_layers"], **options), nn.Module, "CheckpointedTransformer()")
    inputs = torch.randn(sizes["batch"], sizes["length"], sizes["width"], device=student.device)
    _run(student, model, inputs)  # is what it gives a tensor at all?
    seconds, peak = _measure(model, inputs)
    with watch_products(student.gpu) as products:
        model(inputs).square().mean().backward()
        flops = products.flops()
    return {"seconds": [seconds], "peak_bytes": peak, "flops": flops}


@contextlib.contextmanager
def _blocks() -> Iterator[list[int]]:
    """Yield a list that gets, whenever a transformer block is made, how many there are then."""
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    counts: list[int] = []

    def made(parent: nn.Module, name: str, submodule: Any) -> None:
        if isinstance(parent, TransformerBlock) and parent not in alive:
            gc.collect()  # what nobody can reach is gone
            alive.add(parent)
            counts.append(len(alive))

    handle = register_module_module_registration_hook(made)
    try:
        yield counts
    finally:
        handle.remove()


@contextlib.contextmanager
def _forwards(kind: Any) -> Iterator[list[list[dict[str, Any]]]]:
    """Yield a list that gets, for each model of `kind`, what there is when each of its forward passes begins."""
    forwards: list[list[dict[str, Any]]] = []
    rows: weakref.WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = weakref.WeakKeyDictionary()

    def begins(model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(kind, type) and isinstance(model, kind):
            if model not in rows:
                forwards.append(rows.setdefault(model, []))
            needed = any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
            gradients = sum(parameter.grad is not None for parameter in model.parameters())
            rows[model].append({"input_requires_gradient": needed, "gradients": gradients})

    handle = register_module_forward_pre_hook(begins)
    try:
        yield forwards
    finally:
        handle.remove()


def _measure(model: nn.Module, inputs: Tensor) -> tuple[float, int]:
    def step() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    step()
    torch.cuda.reset_peak_memory_stats()
    return statistics.median(step() for _ in range(3)), torch.cuda.max_memory_allocated()


def best(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`best_interval` on made-up results: rows of (interval, seconds, peak) and a budget; an error by its name."""
    find: Callable[..., Any] = student.module(MODULE).best_interval
    chosen: list[Any] = []
    for case in cases:
        results = [
            CheckpointingResult(device="cuda", checkpoint_every=every, step_seconds=seconds, peak_bytes=peak)
            for every, seconds, peak in case["rows"]
        ]
        try:
            chosen.append(fields(find(results, budget_bytes=case["budget"]), CheckpointingResult, "best_interval()"))
        except ValueError as error:
            chosen.append(type(error).__name__)
    return {"chosen": chosen}
