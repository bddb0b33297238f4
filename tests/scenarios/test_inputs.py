"""Gradings ask each value of each declared input, and within ten of them each pair of values (`inputs/space.py`)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

import pytest

from tests.scenarios.grading import Bench
from tests.scenarios.inputs.asked import requests_of
from tests.scenarios.inputs.space import Coverage, Space

LABS = (1, 2, 3, 4, 5)
SEEDS = range(10)


def declared(lab: int) -> tuple[tuple[Space, ...], Mapping[str, str]]:
    """The spaces of a lab's probes, and why other probes have none."""
    module: Any = importlib.import_module(f"tests.scenarios.inputs.lab{lab}")
    return module.SPACES, module.WITHOUT


def covered(bench: Bench, lab: int, seeds: range) -> list[Coverage]:
    found = [Coverage(space) for space in declared(lab)[0]]
    for request in requests_of(bench, lab, seeds):
        for one in found:
            one.add(request)
    return found


def probes_of(lab: int) -> set[str]:
    """Every public probe of a lab that is given inputs."""
    package = importlib.import_module(f"grader.lab{lab}.probes")
    found = set()
    for entry in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{entry.name}")
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
                parameters = inspect.signature(function).parameters
                if "student" in parameters and len(parameters) > 1:
                    found.add(f"lab{lab}.{entry.name}.{name}")
    return found


@pytest.mark.parametrize("lab", LABS)
def test_each_probe_that_is_given_inputs_has_a_space_or_a_reason(lab: int) -> None:
    spaces, without = declared(lab)
    named = {probe for space in spaces for probe in space.probes}
    assert named & set(without) == set()
    assert named | set(without) == probes_of(lab)
    assert all(without.values())


@pytest.mark.parametrize("lab", LABS)
def test_a_grading_asks_each_value(lab: int, bench: Bench) -> None:
    for one in covered(bench, lab, range(bench.seed, bench.seed + 1)):
        assert one.missing_values() == [], one.space.probes


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_ten_gradings_ask_each_pair_of_values(lab: int, bench: Bench) -> None:
    for one in covered(bench, lab, SEEDS):
        assert one.missing_pairs() == [], one.space.probes
        assert one.idle_excuses() == [], one.space.probes
