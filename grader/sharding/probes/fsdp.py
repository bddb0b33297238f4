"""Probes of the exercise's model under FSDP2. No answers here; each runs in every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grader.sharding.probes.network import Network, half_squares, make_optimizer
from grader.sharding.probes.ranks import allocated, on_own_gpu
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import finite_or_text, instance, plain, tensor

MODULE = "sharding_exercise.fsdp"


def train(student: Any, *, cases: Sequence[dict[str, Any]], inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """For each case training steps of a sharded network: losses, weights, bytes held and at most, what ranks told."""
    module = student.module(MODULE)
    with on_own_gpu(student) as gpu:
        return {"runs": [_train(student, gpu, module, case, inputs, targets) for case in cases]}


def _train(
    student: Any, gpu: Any, module: Any, case: dict[str, Any], inputs: Tensor, targets: Tensor
) -> dict[str, Any]:
    before = allocated()
    model = Network(inputs.shape[-1], case["width"], case["blocks"], case["seed"])
    torch.cuda.reset_peak_memory_stats()
    sharded = module.shard(model, list(model.blocks), **_options(case))
    model = instance(sharded, nn.Module, "shard()")
    shard_peak = torch.cuda.max_memory_allocated() - before
    optimizer = make_optimizer(case, model)
    losses: list[Any] = []
    workspace = _workspace()
    for step in range(case["steps"]):
        x, y = (part[step][student.rank :: student.ranks].contiguous().cuda() for part in (inputs, targets))
        torch.cuda.reset_peak_memory_stats()
        start, begun = torch.cuda.memory_allocated(), mark(gpu)
        losses.append(
            finite_or_text(module.train_step(model, optimizer, x, y, half_squares, **_limit(case)), "train_step()")
        )
        end = mark(gpu)
        step_peak = torch.cuda.max_memory_allocated() - start - workspace
    told = reading(gpu, "collectives", begun, end)
    turns = reading(gpu, "turns", begun, end)
    gradients = sum(one.grad is not None for one in model.parameters())
    del x, y
    held = allocated() - before
    weights, weight_dtypes = _whole(model), sorted({plain(one.dtype, "dtype") for one in model.parameters()})
    with torch.no_grad():
        output_dtype = plain(model(inputs[0].cuda()).dtype, "the model's output")
    return {
        "losses": losses,
        "gradients": gradients,
        "dtypes": sorted(getattr(model, "dtypes", ())),
        "output_dtype": output_dtype,
        "weights": weights,
        "weight_dtypes": weight_dtypes,
        "held": held,
        "shard_peak": shard_peak,
        "step_peak": step_peak,
        "collectives": told,
        "turns": turns,
    }


def states(student: Any, *, case: dict[str, Any], other_seed: int, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """`gather_state` after a step, and what a network of other weights is once `load_state` has given it that."""
    module = student.module(MODULE)
    with on_own_gpu(student):
        features = inputs.shape[-1]
        model = Network(features, case["width"], case["blocks"], case["seed"])
        model = instance(module.shard(model, list(model.blocks), **_options(case)), nn.Module, "shard()")
        optimizer = make_optimizer(case, model)
        x, y = (part[0][student.rank :: student.ranks].contiguous().cuda() for part in (inputs, targets))
        module.train_step(model, optimizer, x, y, half_squares)
        weights = _whole(model)
        state = instance(module.gather_state(model), dict, "gather_state()")
        for name, value in state.items():
            tensor(value, f"gather_state()[{name!r}]")
        kinds = sorted({"DTensor" if isinstance(one, DTensor) else "Tensor" for one in state.values()})
        places = sorted({str(one.device.type) for one in state.values()})
        values = dict(state)
        copies = {name: value.detach().cpu().double() for name, value in state.items() if kinds == ["Tensor"]}
        other = Network(features, case["width"], case["blocks"], other_seed)
        other = instance(module.shard(other, list(other.blocks), **_options(case)), nn.Module, "shard()")
        whole = [kinds == ["Tensor"] and state.keys() == model.state_dict().keys()]
        dist.broadcast_object_list(whole, 0)
        if whole[0]:  # else there is nothing that could be loaded
            module.load_state(other, state)
        return {
            "weights": weights,
            "names": list(state),
            "kinds": kinds,
            "places": places,
            "state": copies,
            "untouched": state.keys() == values.keys() and all(state[name] is values[name] for name in values),
            "loaded": _whole(other),
            "factors": next(one.detach().cpu().double() for one in other.buffers()),
            "sharded": all(isinstance(one, DTensor) for one in other.parameters()),
            "local": sum(_local(one).numel() for one in other.parameters()),
        }


def refusals(student: Any, *, width: int) -> dict[str, Any]:
    """By call the error that it raised; `sensible` are neighbours that make sense."""
    module = student.module(MODULE)

    def shard(blocks: Any, **options: Any) -> str:
        model = Network(width, width, 2, 1)
        return ending(lambda: module.shard(model, blocks(model), **options))

    with on_own_gpu(student):
        return {
            "calls": {
                "shard() without blocks": shard(lambda model: []),
                "shard() with a block of another model": shard(
                    lambda model: [*model.blocks, *Network(width, width, 1, 1).blocks]
                ),
                "shard() with the model itself for a block": shard(lambda model: [model]),
                "shard() with prefetch=-1": shard(lambda model: list(model.blocks), prefetch=-1),
            },
            "sensible": {
                "shard() with one of two blocks": shard(lambda model: [model.blocks[1]]),
                "shard() with prefetch=5 of two blocks": shard(lambda model: list(model.blocks), prefetch=5),
            },
        }


def _options(case: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `shard` that are not the default ones."""
    options: dict[str, Any] = {} if case["reshard"] else {"reshard_after_forward": False}
    if case["prefetch"]:
        options["prefetch"] = case["prefetch"]
    if case["compute_dtype"]:
        options["compute_dtype"] = getattr(torch, case["compute_dtype"])
    return options


def _limit(case: dict[str, Any]) -> dict[str, Any]:
    return {} if case["max_norm"] is None else {"max_norm": case["max_norm"]}


def _workspace() -> int:
    """Bytes that a product takes for its own work and returns, where cuBLAS does not keep them."""
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(2, 2).cuda()
    layer(x).sum().backward()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(x).sum().backward()
    return int((torch.cuda.max_memory_allocated() - start) // 2**16 * 2**16)


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _whole(model: nn.Module) -> Tensor:
    """All parameters, gathered from all ranks, in float64, on the CPU."""
    parts = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return torch.cat([part.detach().cpu().double().reshape(-1) for part in parts])
