"""Probes of the exercise's sharded optimizer. No answers here; each runs in every rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grader.sharding.probes.course import follow
from grader.sharding.probes.parameters import Parameters, optimizer_class
from grader.sharding.probes.ranks import allocated, on_own_gpu
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import made

MODULE = "sharding_exercise.zero"


def train(student: Any, *, cases: Sequence[dict[str, Any]], numbers: Tensor, slopes: Tensor) -> dict[str, Any]:
    """For each case what an optimizer made of the weights on this rank: see `course.follow`."""
    with on_own_gpu(student):
        make = functools.partial(made, student.module(MODULE).ShardedOptimizer, "ShardedOptimizer()")
        return {"runs": [follow(case, numbers, slopes, make) for case in cases]}


def held(student: Any, *, cases: Sequence[dict[str, Any]], numbers: Tensor, slopes: Tensor) -> dict[str, Any]:
    """For each case the bytes that this rank holds more after a first step than before, and what a second one sends."""
    make = functools.partial(made, student.module(MODULE).ShardedOptimizer, "ShardedOptimizer()")
    with on_own_gpu(student) as gpu:
        return {"runs": [_held(gpu, make, case, numbers, slopes) for case in cases]}


def _held(gpu: Any, make: Any, case: dict[str, Any], numbers: Tensor, slopes: Tensor) -> dict[str, Any]:
    parameters = Parameters(case["parameters"], numbers)
    before = allocated()
    groups = [{"params": parameters.of_group(number), **one} for number, one in enumerate(case["groups"])]
    optimizer = make(groups, optimizer_class(case["optimizer"]), **case["options"])
    for step in range(2):
        parameters.set_gradients(slopes[step], step)
        begun = mark(gpu)
        optimizer.step()
        told = reading(gpu, "collectives", begun)
    for parameter in parameters.all:
        parameter.grad = None
    return {"bytes": allocated() - before, "collectives": told}


def refusals(student: Any, *, case: dict[str, Any], numbers: Tensor) -> dict[str, Any]:
    """By call the error that it raised; `sensible` are neighbours that make sense."""
    with on_own_gpu(student):
        make = functools.partial(made, student.module(MODULE).ShardedOptimizer, "ShardedOptimizer()")
        parameters = Parameters(case["parameters"], numbers).all

        def of(count: int) -> Any:
            return make(parameters[:count], torch.optim.SGD, lr=0.1)

        def both(first: int, second: int) -> Any:
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
        return {
            "calls": {name: ending(call) for name, call in calls.items()},
            "sensible": {name: ending(call) for name, call in sensible.items()},
        }


def _unsharded(parameters: Any) -> dict[str, Any]:
    return torch.optim.SGD(parameters, lr=0.1).state_dict()
