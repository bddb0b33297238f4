"""Probes of the exercise's sharded optimizer; each runs in every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.sharding.shared.cases import RefusalsReply
from grader.sharding.shared.probes import Memory, on_own_gpu, recorded
from grader.sharding.zero.cases import HeldReply, HeldRun, HeldStates, Hold, OptimizerCase, Refuse, Train, TrainReply
from grader.sharding.zero.probes.parameters import Parameters, optimizer_class
from grader.sharding.zero.probes.steps import AnyOptimizer, follow
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import made

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

MODULE = "sharding_exercise.zero"


def train(student: Student, inputs: Train) -> TrainReply:
    """For each case what an optimizer made of the weights on this rank: see `steps.follow`."""
    make = _maker(student)
    with on_own_gpu(student) as gpu:
        watch = functools.partial(_watched, gpu)
        runs = [
            follow(case, inputs.numbers, inputs.slopes, make, None if case["late"] is None else watch)
            for case in inputs.cases
        ]
        return TrainReply(runs=runs)


def _watched(gpu: VirtualGPU) -> Callable[[], HeldStates]:
    """What an optimizer's states take that is made from now on."""
    memory = Memory(gpu)

    def look() -> HeldStates:
        return HeldStates(bytes=cast(int, memory.held()), elsewhere=cast("list[int]", memory.elsewhere()))

    return look


def _maker(student: Student) -> Callable[..., AnyOptimizer]:
    return functools.partial(made, student.module(MODULE).ShardedOptimizer, "ShardedOptimizer()")


def held(student: Student, inputs: Hold) -> HeldReply:
    """For each case the bytes that this rank holds more after a first step than before, and what a second one sends."""
    make = _maker(student)
    with on_own_gpu(student) as gpu:
        return HeldReply(runs=[_held(gpu, make, case, inputs.numbers, inputs.slopes) for case in inputs.cases])


def _held(
    gpu: VirtualGPU, make: Callable[..., AnyOptimizer], case: OptimizerCase, numbers: Tensor, slopes: Tensor
) -> HeldRun:
    parameters = Parameters(case["parameters"], numbers)
    memory, begun = Memory(gpu), mark(gpu)
    groups = [{"params": parameters.of_group(number), **group} for number, group in enumerate(case["groups"])]
    optimizer = make(groups, optimizer_class(case["optimizer"]), **case["options"])
    for step in range(case["steps"]):
        parameters.set_gradients(slopes[step], step)
        stepped = mark(gpu)
        optimizer.step()
        collectives, computed = recorded(gpu, stepped), reading(gpu, "computed_bytes", stepped)
    for parameter in parameters.all:
        parameter.grad = None
    held, elsewhere = memory.held(), memory.elsewhere()
    copied = cast(int, reading(gpu, "copied_bytes", begun))
    return HeldRun(
        weights=parameters.flat(),
        bytes=held,
        elsewhere=elsewhere,
        copied_bytes=copied,
        computed_bytes=cast(float, computed),
        collectives=collectives,
    )


def refusals(student: Student, inputs: Refuse) -> RefusalsReply:
    """How calls end that make no sense, and neighbours of them that do."""
    with on_own_gpu(student):
        make = _maker(student)
        parameters = Parameters(inputs.case["parameters"], inputs.numbers).all

        def of(count: int) -> AnyOptimizer:
            return make(parameters[:count], torch.optim.SGD, lr=0.1)

        def both(first: int, second: int) -> AnyOptimizer:
            return make([{"params": parameters[:first]}, {"params": parameters[second:]}], torch.optim.SGD, lr=0.1)

        calls = {
            "ShardedOptimizer() of no parameters": lambda: of(0),
            "ShardedOptimizer() of a parameter in two groups": lambda: both(2, 1),
            "add_param_group() of a parameter that is there": lambda: of(2).add_param_group(
                {"params": [parameters[1]]}
            ),
            "load_state_dict() of one parameter less": lambda: of(2).load_state_dict(_unsharded(parameters[:1])),
            "load_state_dict() of two groups instead of one": lambda: of(2).load_state_dict(
                _unsharded([{"params": parameters[:1]}, {"params": parameters[1:2]}])
            ),
        }
        sensible = {
            "ShardedOptimizer() of one parameter": lambda: of(1),
            "ShardedOptimizer() of two groups": lambda: both(1, 1),
            "load_state_dict() of an optimizer that has made no step": lambda: of(2).load_state_dict(
                _unsharded(parameters[:2])
            ),
        }
        return RefusalsReply(
            calls={name: ending(call) for name, call in calls.items()},
            sensible={name: ending(call) for name, call in sensible.items()},
        )


def _unsharded(parameters: Iterable[Any]) -> dict[str, Any]:
    return torch.optim.SGD(parameters, lr=0.1).state_dict()
