"""What happens to an optimizer in a case, step by step: the same to the submission's and, elsewhere, to a whole one.

Imports nothing of the submission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grader.sharding.zero.cases import HeldStates, OptimizerCase, Options, SavedState, TrainedRun
from grader.sharding.zero.probes.parameters import Parameters, optimizer_class
from grader.shared.probes.kept import function, notes
from grader.shared.probes.support import StudentObject, exact, instance, mapping, plain, sequence

AnyOptimizer: TypeAlias = Any
"""An optimizer that a submission made: what has its methods need not be one of PyTorch's."""

LOSS = 1.5
"""What closures return."""
_OTHER = 7.0
"""The learning rate of an optimizer that is about to get another one's state."""


def follow(
    case: OptimizerCase,
    numbers: Tensor,
    slopes: Tensor,
    make: Callable[..., AnyOptimizer],
    watch: Callable[[], Callable[[], HeldStates]] | None = None,
) -> TrainedRun:
    """Take the steps of a case with the optimizer that `make(groups, optimizer class, **options)` returns.

    A state is changed before it is loaded, so that nothing else than what is given will do.

    Args:
        watch: called before the optimizer is made; what it returns looks at what is held in the end.
    """
    parameters = Parameters(case["parameters"], numbers)
    look = None if watch is None else watch()
    optimizer, scheduler = _made(case, parameters, make), None
    if case["scheduler"]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    note, called = notes()
    returned = None
    saved: SavedState | None = None
    for step in range(case["steps"]):
        if step == case["late"]:
            optimizer.add_param_group({"params": parameters.of_group(len(case["groups"])), **case["late_options"]})
        if step == case["reloaded"]:
            state = optimizer.state_dict()
            saved = _described(state)
            _change(state)
            parameters = Parameters(case["parameters"], parameters.flat())
            others: list[Options] = [{**group, "lr": _OTHER} for group in case["groups"]]
            optimizer = _made({**case, "groups": others}, parameters, make)
            optimizer.load_state_dict(state)
        if step == case["closure"]:
            closure = _closure(parameters, slopes[step], step, note)
            returned = plain(optimizer.step(closure), "step(closure)")
        else:
            parameters.set_gradients(slopes[step], step)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if step == 0:
            optimizer.param_groups[-1].update(case["changed"])
    for parameter in parameters.all:
        parameter.grad = None
    held = None if look is None else look()
    return TrainedRun(
        weights=parameters.flat(),
        held=held,
        closures=[len(called()), returned],
        options=[_options(group) for group in optimizer.param_groups],
        counts=[len(group["params"]) for group in optimizer.param_groups],
        saved=saved,
    )


def _change(state: StudentObject) -> None:
    """Halve all states of parameters, and the learning rate of the first group."""
    for entry in state["state"].values():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.dim():
                entry[name] = value / 2
    state["param_groups"][0]["lr"] /= 2


def _closure(parameters: Parameters, slopes: Tensor, step: int, note: Callable[[None], None]) -> Callable[[], float]:
    """What computes the gradients of a step."""

    @function
    def closure() -> float:
        note(None)
        if not torch.is_grad_enabled():
            raise RuntimeError("a closure computes gradients, and they are switched off")
        parameters.set_gradients(slopes, step)
        return LOSS

    return closure


def _made(case: OptimizerCase, parameters: Parameters, make: Callable[..., AnyOptimizer]) -> AnyOptimizer:
    groups = [{"params": parameters.of_group(number), **group} for number, group in enumerate(case["groups"])]
    return make(groups, optimizer_class(case["optimizer"]), **case["options"])


def _options(entry: Mapping[str, object]) -> dict[str, object]:
    return {name: plain(value, name) for name, value in sorted(entry.items()) if name != "params"}


def _described(returned: object) -> SavedState:
    state = instance(returned, dict, "state_dict()")
    tensors, places = {}, set()
    groups = sequence(state.get("param_groups"), "state_dict()['param_groups']")
    for number, entry in sorted(mapping(state.get("state"), "state_dict()['state']").items()):
        for name, value in entry.items():
            if isinstance(value, Tensor):
                value = exact(value, f"a state {name!r}")
                places.add(value.device.type)
            tensors[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().double()
    return SavedState(
        state=tensors,
        places=sorted(places),
        numbers=[plain(group["params"], "params") for group in groups],
        options=[_options(group) for group in groups],
    )
