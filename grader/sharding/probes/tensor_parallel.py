"""Probes of the exercise's tensor-parallel MLP. No answers here; each runs in every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from grader.sharding.probes.ranks import allocated, on_own_gpu
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import instance, plain, tensor

MODULE = "sharding_exercise.tensor_parallel"
_NAMES = ("up_weight", "up_bias", "down_weight", "down_bias")


def functions(student: Any, *, numbers: Tensor, slopes: Tensor) -> dict[str, Any]:
    """`copy_to_ranks` and `sum_over_ranks` of this rank's part of `numbers` [ranks, rows, columns], and of `slopes`.

    Once as they are, once transposed both, once with a gradient of which only one number is in memory (strides of 0).
    """
    module = student.module(MODULE)
    seen = {}
    with on_own_gpu(student) as gpu:
        for name in ("copy_to_ranks", "sum_over_ranks"):
            function = getattr(module, name)
            for kind in ("contiguous", "transposed", "expanded"):
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
                output.backward(gradient)
                torch.cuda.synchronize()
                if leaf.grad is None:
                    raise RuntimeError(f"{name}() gave its input no gradient")
                seen[f"{name}, {kind}"] = {
                    "output": shown,
                    "gradient": leaf.grad.cpu().double(),
                    "untouched": bool(torch.equal(leaf.detach().cpu(), numbers[student.rank]))
                    and bool(torch.equal(gradient, kept)),
                    "forward": reading(gpu, "collectives", begun, middle),
                    "backward": reading(gpu, "collectives", middle),
                }
    return {"seen": seen}


def layers(
    student: Any,
    *,
    cases: Sequence[dict[str, Any]],
    up: Tensor,
    down: Tensor,
    biases: Tensor,
    inputs: Tensor,
    slopes: Tensor,
) -> dict[str, Any]:
    """For each case a `ParallelMLP`: its parts, output and gradients, what was told, and the bytes that it holds.

    The first `features` columns and `hidden` rows of `up` [hidden, in] are the first layer, and so on. With `pairs` two
    ranks each share the layers, and each pair has inputs of its own.
    """
    module = student.module(MODULE)
    with on_own_gpu(student) as gpu:
        pairs = [dist.new_group([2 * pair, 2 * pair + 1]) for pair in range(student.ranks // 2)]
        runs = []
        for case in cases:
            own = pairs[student.rank // 2] if case["pairs"] else None
            first, second = _whole(case, up, down, biases)
            pair = student.rank // 2 if case["pairs"] else 0
            where = inputs[pair, ..., : case["features"]], slopes[pair, ..., : case["outputs"]]
            runs.append(_run(gpu, module, case, first, second, own, *where))
        return {"runs": runs}


def _whole(case: dict[str, Any], up: Tensor, down: Tensor, biases: Tensor) -> tuple[nn.Linear, nn.Linear]:
    hidden, features, outputs = case["hidden"], case["features"], case["outputs"]
    first = nn.Linear(features, hidden, bias=case["up_bias"])
    second = nn.Linear(hidden, outputs, bias=case["down_bias"])
    with torch.no_grad():
        first.weight.copy_(up[:hidden, :features])
        second.weight.copy_(down[:outputs, :hidden])
        for layer, values in ((first, biases[0]), (second, biases[1])):
            if layer.bias is not None:
                layer.bias.copy_(values[: layer.bias.numel()])
    kind = getattr(torch, case["dtype"])
    return first.to(kind), second.to(kind)


def _run(
    gpu: Any,
    module: Any,
    case: dict[str, Any],
    first: nn.Linear,
    second: nn.Linear,
    group: Any,
    inputs: Tensor,
    slopes: Tensor,
) -> dict[str, Any]:
    before = allocated()
    kept = [one.detach().clone() for layer in (first, second) for one in layer.parameters()]
    options: dict[str, Any] = {} if case["activation"] == "gelu" else {
        "activation": getattr(functional, case["activation"])
    }  # fmt: skip
    if group is not None:
        options["group"] = group
    mlp = instance(module.ParallelMLP(first, second, **options), nn.Module, "ParallelMLP()")
    held = allocated() - before
    kind = getattr(torch, case["dtype"])
    x = inputs.to(kind).cuda().requires_grad_()
    begun = mark(gpu)
    output = tensor(mlp(x), "ParallelMLP.forward()", (*x.shape[:-1], case["outputs"]))
    middle = mark(gpu)
    shown = output.detach().cpu().double()
    output.backward(slopes.to(kind).cuda())
    torch.cuda.synchronize()
    end = mark(gpu)
    parts: dict[str, Any] = {}
    gradients: dict[str, Any] = {}
    for name in _NAMES:
        part = getattr(mlp, name)
        if part is not None:
            part = instance(part, nn.Parameter, f"ParallelMLP.{name}")
            parts[name] = part.detach().cpu().double()
            gradients[name] = None if part.grad is None else part.grad.cpu().double()
    now = [one.detach() for layer in (first, second) for one in layer.parameters()]
    return {
        "held": held,
        "output": shown,
        "input_gradient": None if x.grad is None else x.grad.cpu().double(),
        "parts": parts,
        "gradients": gradients,
        "count": sum(one.numel() for one in mlp.parameters()),
        "dtypes": sorted({plain(one.dtype, "dtype") for one in mlp.parameters()}),
        "untouched": all(torch.equal(one, other) for one, other in zip(kept, now, strict=True)),
        "forward": reading(gpu, "collectives", begun, middle),
        "backward": reading(gpu, "collectives", middle, end),
    }


def refusals(student: Any, *, hidden: int) -> dict[str, Any]:
    """By call the error that it raised; `sensible` ones make sense. `hidden` is a multiple of the ranks."""
    make = student.module(MODULE).ParallelMLP

    def made(first: int, second: int, **options: Any) -> str:
        return ending(lambda: make(nn.Linear(3, first), nn.Linear(second, 5), **options))

    with on_own_gpu(student):
        more = hidden + 1
        own = [dist.new_group([rank]) for rank in range(student.ranks)][student.rank]
        return {
            "calls": {
                f"ParallelMLP() of {more} hidden features on {student.ranks} ranks": made(more, more),
                f"ParallelMLP() of layers with {hidden} and {2 * hidden} hidden features": made(hidden, 2 * hidden),
            },
            "sensible": {
                f"ParallelMLP() of {hidden} hidden features on {student.ranks} ranks": made(hidden, hidden),
                f"ParallelMLP() of {more} hidden features in a group of one rank": made(more, more, group=own),
            },
        }
