"""Probes of the exercise's tensor-parallel MLP; each runs in every rank."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from gradebox.sandbox.probe_loader import Student
from grader.sharding.shared.cases import RefusalsReply
from grader.sharding.shared.probes import Memory, host_bytes, on_own_gpu, recorded
from grader.sharding.tensor_parallel.cases import (
    FUNCTIONS,
    HOST_HIDDEN,
    HOST_WIDTH,
    KINDS,
    CopyAndSum,
    FunctionRun,
    FunctionsReply,
    LayersCase,
    LayersReply,
    LayersRun,
    Refuse,
    ShareLayers,
)
from grader.shared.probes.endings import ending, run_backward
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import exact, instance, plain, tensor

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

MODULE = "sharding_exercise.tensor_parallel"
_NAMES = ("up_weight", "up_bias", "down_weight", "down_bias")


def functions(student: Student, inputs: CopyAndSum) -> FunctionsReply:
    """`copy_to_ranks` and `sum_over_ranks` of this rank's part of the numbers, and of the gradients.

    Once as they are, once transposed both, once with a gradient of which only one number is in memory (strides of 0).
    """
    module = student.module(MODULE)
    numbers, slopes = inputs.numbers, inputs.slopes
    runs = {}
    with on_own_gpu(student) as gpu:
        for name in FUNCTIONS:
            function = getattr(module, name)
            for kind in KINDS:
                x, gradient = numbers[student.rank].cuda(), slopes[student.rank].cuda()
                if kind == "transposed":
                    x, gradient = x.t().contiguous().t(), gradient.t().contiguous().t()
                if kind == "expanded":
                    gradient = gradient[:1, :1].expand(x.shape)
                kept = gradient.clone()
                leaf = x.requires_grad_()
                begun = mark(gpu)
                output = tensor(function(leaf), f"{name}()", leaf.shape)
                middle = mark(gpu)
                shown = output.detach().cpu().double()
                run_backward(output, gradient, of=f"{name}()")
                torch.cuda.synchronize()
                if leaf.grad is None:
                    raise RuntimeError(f"{name}() gave its input no gradient")
                runs[f"{name}, {kind}"] = FunctionRun(
                    output=shown,
                    gradient=leaf.grad.cpu().double(),
                    untouched=bool(torch.equal(leaf.detach().cpu(), numbers[student.rank]))
                    and bool(torch.equal(gradient, kept)),
                    forward=recorded(gpu, begun, middle),
                    backward=recorded(gpu, middle),
                )
    return FunctionsReply(runs=runs)


def layers(student: Student, inputs: ShareLayers) -> LayersReply:
    """For each case a `ParallelMLP`: its parts, output and gradients, what was sent, and the bytes that it holds."""
    module = student.module(MODULE)
    with on_own_gpu(student) as gpu:
        pairs = [dist.new_group([2 * pair, 2 * pair + 1]) for pair in range(student.ranks // 2)]
        runs = []
        for case in inputs.cases:
            own: Any = pairs[student.rank // 2] if case["pairs"] else None  # PyTorch's types name a number as well
            pair = student.rank // 2 if case["pairs"] else 0
            x, slopes = inputs.inputs[pair, ..., : case["features"]], inputs.slopes[pair, ..., : case["outputs"]]
            runs.append(_run(gpu, module, case, _whole(case, inputs), own, x, slopes))
        return LayersReply(runs=runs, host_bytes=_taken_of_the_host(module))


def _taken_of_the_host(module: ModuleType) -> int | None:
    first, second = nn.Linear(HOST_WIDTH, HOST_HIDDEN), nn.Linear(HOST_HIDDEN, HOST_WIDTH)
    before = host_bytes()
    mlp = module.ParallelMLP(first, second)
    after = host_bytes()
    del mlp
    return None if before is None or after is None else after - before


def _whole(case: LayersCase, inputs: ShareLayers) -> tuple[nn.Linear, nn.Linear]:
    hidden, features, outputs = case["hidden"], case["features"], case["outputs"]
    first = nn.Linear(features, hidden, bias=case["up_bias"])
    second = nn.Linear(hidden, outputs, bias=case["down_bias"])
    with torch.no_grad():
        first.weight.copy_(inputs.up[:hidden, :features])
        second.weight.copy_(inputs.down[:outputs, :hidden])
        for layer, values in ((first, inputs.biases[0]), (second, inputs.biases[1])):
            if layer.bias is not None:
                layer.bias.copy_(values[: layer.bias.numel()])
    kind = getattr(torch, case["dtype"])
    return first.to(kind), second.to(kind)


def _run(
    gpu: VirtualGPU,
    module: ModuleType,
    case: LayersCase,
    whole: tuple[nn.Linear, nn.Linear],
    group: dist.ProcessGroup | None,
    inputs: Tensor,
    slopes: Tensor,
) -> LayersRun:
    first, second = whole
    memory, started = Memory(gpu), mark(gpu)
    kept = [exact(parameter, "a weight").detach().clone() for layer in whole for parameter in layer.parameters()]
    options: dict[str, object] = {} if case["activation"] == "gelu" else {
        "activation": getattr(functional, case["activation"])
    }  # fmt: skip
    if group is not None:
        options["group"] = group
    mlp = instance(module.ParallelMLP(first, second, **options), nn.Module, "ParallelMLP()")
    held = memory.held()
    kind = getattr(torch, case["dtype"])
    x = inputs.to(kind).cuda().requires_grad_()
    begun = mark(gpu)
    output = tensor(mlp(x), "ParallelMLP.forward()", (*x.shape[:-1], case["outputs"]))
    middle = mark(gpu)
    copied: Any = reading(gpu, "copied_bytes", started, middle)
    shown = output.detach().cpu().double()
    run_backward(output, slopes.to(kind).cuda(), of="ParallelMLP")
    torch.cuda.synchronize()
    end = mark(gpu)
    parts: dict[str, Tensor] = {}
    gradients: dict[str, Tensor | None] = {}
    for name in _NAMES:
        part = getattr(mlp, name)
        if part is not None:
            part = instance(part, nn.Parameter, f"ParallelMLP.{name}")
            parts[name] = part.detach().cpu().double()
            gradients[name] = None if part.grad is None else part.grad.cpu().double()
    now = [exact(parameter, "a weight").detach() for layer in whole for parameter in layer.parameters()]
    untouched = all(torch.equal(before, after) for before, after in zip(kept, now, strict=True))
    parameters = [exact(parameter, "a parameter") for parameter in mlp.parameters()]
    storages = [StorageWeakRef(each.untyped_storage()) for each in now]
    del first, second, whole, now  # the caller has no use for them any more; `mlp` lives on
    gc.collect()
    return LayersRun(
        layers_kept=sum(not each.expired() for each in storages),
        held=held,
        elsewhere=memory.elsewhere(),
        copied_bytes=copied,
        output=shown,
        input_gradient=None if x.grad is None else x.grad.cpu().double(),
        parts=parts,
        gradients=gradients,
        count=sum(parameter.numel() for parameter in parameters),
        dtypes=sorted({plain(parameter.dtype, "dtype") for parameter in parameters}),
        untouched=untouched,
        forward=recorded(gpu, begun, middle),
        backward=recorded(gpu, middle, end),
    )


def refusals(student: Student, inputs: Refuse) -> RefusalsReply:
    """How calls end that make no sense, and neighbours of them that do."""
    make, hidden = student.module(MODULE).ParallelMLP, inputs.hidden

    def made(first: int, second: int, **options: object) -> str:
        return ending(lambda: make(nn.Linear(3, first), nn.Linear(second, 5), **options))

    with on_own_gpu(student):
        more = hidden + 1
        own = [dist.new_group([rank]) for rank in range(student.ranks)][student.rank]
        return RefusalsReply(
            calls={
                f"ParallelMLP() of {more} hidden features on {student.ranks} ranks": made(more, more),
                f"ParallelMLP() of layers with {hidden} and {2 * hidden} hidden features": made(hidden, 2 * hidden),
            },
            sensible={
                f"ParallelMLP() of {hidden} hidden features on {student.ranks} ranks": made(hidden, hidden),
                f"ParallelMLP() of {more} hidden features in a group of one rank": made(more, more, group=own),
            },
        )
