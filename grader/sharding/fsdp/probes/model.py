"""Probes of the exercise's model under FSDP2; each runs in every rank."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradebox.sandbox.probe_loader import Student
from grader.sharding.fsdp.cases import (
    CHANGED,
    GatherAndLoad,
    Refuse,
    StatesReply,
    Train,
    TrainCase,
    TrainedRun,
    TrainReply,
)
from grader.sharding.fsdp.probes.network import Network, half_squares, make_optimizer
from grader.sharding.shared.cases import RefusalsReply
from grader.sharding.shared.probes import Memory, on_own_gpu, recorded
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, memory_since_now, reading
from grader.shared.probes.support import exact, finite_or_text, instance, plain, tensor
from grader.shared.readings import ProductCount

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

MODULE = "sharding_exercise.fsdp"


def train(student: Student, inputs: Train) -> TrainReply:
    """For each case training steps of a sharded network: losses, weights, bytes held and at most, what ranks sent."""
    with on_own_gpu(student) as gpu:
        # As CUBLAS_WORKSPACE_CONFIG=:0:0 does: what each product takes for a moment would hide all that is smaller.
        gpu.workspaces.blas_bytes = gpu.workspaces.lt_bytes = 0
        module = student.module(MODULE)
        return TrainReply(runs=[_train(student, gpu, module, case, inputs) for case in inputs.cases])


def _train(student: Student, gpu: VirtualGPU, module: ModuleType, case: TrainCase, data: Train) -> TrainedRun:
    inputs, targets = data.inputs, data.targets
    memory = Memory(gpu)
    model = Network(inputs.shape[-1], case["width"], case["blocks"], case["seed"])
    sharded = module.shard(model, list(model.blocks), **_options(case))
    model = instance(sharded, nn.Module, "shard()")  # type: ignore[assignment]  # lets go of the network
    shard_peak = memory.added()
    sharded_at = mark(gpu)
    optimizer = make_optimizer(case, model)
    losses: list[float | str] = []
    for step in range(case["steps"]):
        x, y = (part[step][student.rank :: student.ranks].contiguous().cuda() for part in (inputs, targets))
        in_step, begun = memory_since_now(gpu), mark(gpu)
        losses.append(
            finite_or_text(module.train_step(model, optimizer, x, y, half_squares, **_limit(case)), "train_step()")
        )
        end = mark(gpu)
        step_peak = in_step.added()
    collectives = recorded(gpu, begun, end)
    turns = cast("list[str]", reading(gpu, "turns", begun, end))  # the judge gets it
    products = cast("list[ProductCount]", reading(gpu, "products", begun, end))  # and so it does this
    gradients = sum(parameter.grad is not None for parameter in model.parameters())
    del x, y
    held, elsewhere = memory.held(), memory.elsewhere()
    copied = cast(int, reading(gpu, "copied_bytes", sharded_at, end))
    weights = _whole(model)
    weight_dtypes = sorted({plain(_local(parameter).dtype, "dtype") for parameter in model.parameters()})
    with torch.no_grad():
        output_dtype = plain(exact(model(inputs[0].cuda()), "the model's output").dtype, "")
    return TrainedRun(
        losses=losses,
        gradients=gradients,
        products=products,
        output_dtype=output_dtype,
        weights=weights,
        weight_dtypes=weight_dtypes,
        held=held,
        shard_peak=shard_peak,
        step_peak=step_peak,
        elsewhere=elsewhere,
        copied_bytes=copied,
        collectives=collectives,
        turns=turns,
    )


def states(student: Student, inputs: GatherAndLoad) -> StatesReply:
    """`gather_state` after a step, and what a network of other weights is once `load_state` has given it that."""
    module, case = student.module(MODULE), inputs.case
    with on_own_gpu(student):
        features = inputs.inputs.shape[-1]
        model = Network(features, case["width"], case["blocks"], case["seed"])
        sharded = module.shard(model, list(model.blocks), **_options(case))
        model = instance(sharded, nn.Module, "shard()")  # type: ignore[assignment]  # lets go of the network
        optimizer = make_optimizer(case, model)
        x, y = (part[0][student.rank :: student.ranks].contiguous().cuda() for part in (inputs.inputs, inputs.targets))
        module.train_step(model, optimizer, x, y, half_squares)
        weights = _whole(model)
        state = instance(module.gather_state(model), dict, "gather_state()")
        states = [tensor(value, f"gather_state()[{name!r}]") for name, value in state.items()]
        kinds = sorted({"DTensor" if isinstance(value, DTensor) else "Tensor" for value in state.values()})
        places = sorted({str(value.device.type) for value in states})
        copies = {str(name): value.detach().cpu().double() for name, value in state.items() if kinds == ["Tensor"]}
        other = Network(features, case["width"], case["blocks"], inputs.other_seed)
        sharded = module.shard(other, list(other.blocks), **_options(case))
        other = instance(sharded, nn.Module, "shard()")  # type: ignore[assignment]  # lets go of the network
        whole = [kinds == ["Tensor"] and state.keys() == model.state_dict().keys()]
        dist.broadcast_object_list(whole, 0)
        values = dict(state)
        if whole[0]:  # else there is nothing that could be loaded
            # What is remembered of `gather_state` will not do.
            values = {name: value * CHANGED for name, value in state.items()}
            state.update(values)
            module.load_state(other, state)
        return StatesReply(
            weights=weights,
            names=[str(name) for name in state],
            kinds=kinds,
            places=places,
            state=copies,
            untouched=state.keys() == values.keys() and all(state[name] is values[name] for name in values),
            loaded=_whole(other),
            factors=exact(next(iter(other.buffers())), "a buffer").detach().cpu().double(),
            sharded=all(_is_sharded(parameter) for parameter in other.parameters()),
            local=sum(_local(parameter).numel() for parameter in other.parameters()),
        )


def refusals(student: Student, inputs: Refuse) -> RefusalsReply:
    """How calls of `shard` end that make no sense, and neighbours of them that do."""
    module, width = student.module(MODULE), inputs.width

    def shard(blocks: Callable[[Network], list[nn.Module]], **options: int) -> str:
        model = Network(width, width, 2, 1)
        return ending(lambda: module.shard(model, blocks(model), **options))

    with on_own_gpu(student):
        return RefusalsReply(
            calls={
                "shard() without blocks": shard(lambda model: []),
                "shard() with a block of another model": shard(
                    lambda model: [*model.blocks, *Network(width, width, 1, 1).blocks]
                ),
                "shard() with the model itself for a block": shard(lambda model: [model]),
                "shard() with prefetch=-1": shard(lambda model: list(model.blocks), prefetch=-1),
            },
            sensible={
                "shard() with one of two blocks": shard(lambda model: [model.blocks[1]]),
                "shard() with prefetch=5 of two blocks": shard(lambda model: list(model.blocks), prefetch=5),
            },
        )


def _options(case: TrainCase) -> dict[str, object]:
    """The arguments of `shard` that are not the default ones."""
    options: dict[str, object] = {} if case["reshard"] else {"reshard_after_forward": False}
    if case["prefetch"]:
        options["prefetch"] = case["prefetch"]
    if case["compute_dtype"]:
        options["compute_dtype"] = getattr(torch, case["compute_dtype"])
    return options


def _limit(case: TrainCase) -> dict[str, float]:
    return {} if case["max_norm"] is None else {"max_norm": case["max_norm"]}


def _is_sharded(value: object) -> bool:
    """A class of the submission's could say so as well."""
    return type(value) is DTensor


def _local(value: Tensor) -> Tensor:
    return cast(DTensor, value).to_local() if _is_sharded(value) else exact(value, "a parameter")


def _whole(model: nn.Module) -> Tensor:
    """All parameters, gathered from all ranks, in float64, on the CPU."""
    parts = [
        cast(DTensor, parameter).full_tensor() if _is_sharded(parameter) else exact(parameter, "a parameter")
        for parameter in model.parameters()
    ]
    return torch.cat([part.detach().cpu().double().reshape(-1) for part in parts])
