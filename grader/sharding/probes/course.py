"""What happens to an optimizer in a case, step by step: the same to the submission's and, elsewhere, to a whole one.

Imports nothing of the submission. No answers here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grader.sharding.probes.parameters import Parameters, optimizer_class
from grader.shared.probes.support import instance, mapping, plain, sequence

LOSS = 1.5
"""What closures return."""
_OTHER = 7.0
"""The learning rate of an optimizer that is about to get another one's state."""


def follow(case: dict[str, Any], numbers: Tensor, slopes: Tensor, make: Callable[..., Any]) -> dict[str, Any]:
    """Take `case["steps"]` steps with the optimizer that `make(groups, optimizer class, **options)` returns.

    On the way, where the case says so: a learning rate `scheduler` steps after each; after the first the last group's
    options are `changed`; `closure` steps with one; before
    step `late` the group of that name joins; before step `reloaded` another optimizer, of equal parameters and other
    options, goes on with the state of the first.

    Returns:
        The `weights`; `closures`, how often one was called and what the step with it returned; `options` and `counts`
        of parameters by group, after all; where it was saved `state`, tensors by number and name, the `places` where
        they are, `numbers` and `saved_options` by group.
    """
    parameters = Parameters(case["parameters"], numbers)
    optimizer, scheduler = _made(case, parameters, make), None
    if case["scheduler"]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    called, returned = 0, None
    saved: dict[str, Any] = {}
    for step in range(case["steps"]):
        if step == case["late"]:
            optimizer.add_param_group({"params": parameters.of_group(len(case["groups"])), **case["late_options"]})
        if step == case["reloaded"]:
            state = optimizer.state_dict()
            saved = _described(state)
            parameters = Parameters(case["parameters"], parameters.flat())
            optimizer = _made({**case, "groups": [{**one, "lr": _OTHER} for one in case["groups"]]}, parameters, make)
            optimizer.load_state_dict(state)
        if step == case["closure"]:

            def closure(step: int = step, parameters: Parameters = parameters) -> float:
                nonlocal called
                called += 1
                if not torch.is_grad_enabled():
                    raise RuntimeError("a closure computes gradients, and they are switched off")
                parameters.set_gradients(slopes[step], step)
                return LOSS

            returned = plain(optimizer.step(closure), "step(closure)")
        else:
            parameters.set_gradients(slopes[step], step)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if step == 0:
            optimizer.param_groups[-1].update(case["changed"])
    return {
        "weights": parameters.flat(),
        "closures": [called, returned],
        "options": [_options(one) for one in optimizer.param_groups],
        "counts": [len(one["params"]) for one in optimizer.param_groups],
        **saved,
    }


def _made(case: dict[str, Any], parameters: Parameters, make: Callable[..., Any]) -> Any:
    groups = [{"params": parameters.of_group(number), **one} for number, one in enumerate(case["groups"])]
    return make(groups, optimizer_class(case["optimizer"]), **case["options"])


def _options(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value, name) for name, value in sorted(entry.items()) if name != "params"}


def _described(state: Any) -> dict[str, Any]:
    state = instance(state, dict, "state_dict()")
    tensors, places = {}, set()
    groups = sequence(state.get("param_groups"), "state_dict()['param_groups']")
    for number, entry in sorted(mapping(state.get("state"), "state_dict()['state']").items()):
        for name, value in entry.items():
            if isinstance(value, Tensor):
                places.add(value.device.type)
            tensors[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().double()
    return {
        "state": tensors,
        "places": sorted(places),
        "numbers": [plain(one["params"], "params") for one in groups],
        "saved_options": [_options(one) for one in groups],
    }
