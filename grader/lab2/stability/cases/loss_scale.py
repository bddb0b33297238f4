"""Inputs of the loss scale by hand: updates with overflows, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab2.shared.cases import NOT_GIVEN, OR_NOT
from grader.shared.cases import every_value
from grader.shared.dimensions import Case, Dimension, Space

# --- DynamicLossScale -------------------------------------------------------------------------------------------------


class ScaleSettings(TypedDict, total=False):
    """Arguments of `DynamicLossScale`: those that are there."""

    initial_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclass(frozen=True)
class ScaleCase:
    """A `DynamicLossScale` and what it is updated with."""

    settings: ScaleSettings
    overflows: list[bool]


@dataclass(frozen=True)
class LossScalesReply:
    """Of each case, the scale before and after each update."""

    scales: list[list[object]]


@dataclass(frozen=True)
class LossScales(ProbeInputs[LossScalesReply], probe="lab2.stability.tools.loss_scale"):
    """Loss scales that are updated."""

    cases: list[ScaleCase]


def _given(name: str) -> Dimension:
    return Dimension(name, OR_NOT, lambda case: OR_NOT[name in case["settings"]])


def _overflows(case: Case) -> str:
    overflows = case["overflows"]
    return "none" if not any(overflows) else "the first" if overflows[0] else "later ones"


def _interval(case: Case) -> str:
    return {None: NOT_GIVEN, 1: "1"}.get(case["settings"].get("growth_interval"), "several")


SCALES = Space(
    probes=(LossScales.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("growth_interval", (NOT_GIVEN, "1", "several"), _interval),
        _given("initial_scale"),
        _given("growth_factor"),
        _given("backoff_factor"),
        Dimension("overflows", ("none", "the first", "later ones"), _overflows),
    ),
)


def loss_scales(generator: InputGenerator) -> LossScales:
    """Loss scales of this grading: with all settings, with none, and with some of them."""
    cases = [
        ScaleCase(
            {
                "initial_scale": 2.0 ** generator.integer(8, 16),
                "growth_factor": generator.uniform(1.5, 3),
                "backoff_factor": generator.uniform(0.2, 0.7),
                "growth_interval": interval,
            },
            [generator.integer(0, 3) == 0 for _ in range(30)],
        )
        for interval in (1, generator.integer(2, 3), generator.integer(3, 5))
    ]
    cases.append(ScaleCase({}, [True, *[False] * 2001, True]))
    return LossScales(cases + [_scale_case(generator, row) for row in every_value(generator, SCALES.values(), 3)])


def _scale_case(generator: InputGenerator, row: Mapping[str, str]) -> ScaleCase:
    """Settings of which some are not given, and steps of which some overflow, once or several times in a row."""
    drawn: ScaleSettings = {
        "initial_scale": 2.0 ** generator.integer(8, 16),
        "growth_factor": generator.uniform(1.5, 3),
        "backoff_factor": generator.uniform(0.2, 0.7),
    }
    settings: ScaleSettings = {}
    if row["initial_scale"] == "given":
        settings["initial_scale"] = drawn["initial_scale"]
    if row["growth_factor"] == "given":
        settings["growth_factor"] = drawn["growth_factor"]
    if row["backoff_factor"] == "given":
        settings["backoff_factor"] = drawn["backoff_factor"]
    if row["growth_interval"] != NOT_GIVEN:
        settings["growth_interval"] = {"1": 1, "several": 2}[row["growth_interval"]]
    first = [True] * generator.integer(1, 2)
    bad: dict[str, list[bool]] = {"none": [], "the first": first, "later ones": [*[False] * 3, *first]}
    return ScaleCase(settings, [*bad[row["overflows"]], *[False] * 9])


# --- refusals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RefusedReply:
    """Whether each call raised a ValueError."""

    scales: list[bool]
    epochs: list[bool]


@dataclass(frozen=True, kw_only=True)
class Refused(ProbeInputs[RefusedReply], probe="lab2.stability.tools.refused"):
    """Settings of `DynamicLossScale`, and epochs of `train_unstable`. The last ones make sense."""

    scales: list[ScaleSettings]
    epochs: list[int]


def _settings(request: Request) -> Iterator[Case]:
    for settings in request.params["scales"][:-1]:
        ((argument, value),) = settings.items()
        yield {"argument": argument, "value": value, "bounds": _BOUNDS[argument]}
    for epochs in request.params["epochs"][:-1]:
        yield {"argument": "epochs", "value": epochs, "bounds": (0,)}


_BOUNDS = {"initial_scale": (0,), "growth_factor": (1,), "backoff_factor": (0, 1), "growth_interval": (0,)}
SETTINGS_REFUSED = Space(
    probes=(Refused.probe,),
    cases=_settings,
    dimensions=(
        Dimension("argument", (*_BOUNDS, "epochs"), lambda case: str(case["argument"])),
        Dimension(
            "value",
            ("just not allowed", "far from it"),
            lambda case: "just not allowed" if case["value"] in case["bounds"] else "far from it",
        ),
    ),
)


def refused(generator: InputGenerator) -> Refused:
    """Arguments that make no sense, and last some that do: who refuses everything has looked at nothing."""
    scales: list[ScaleSettings] = [
        {"initial_scale": 0.0},
        {"initial_scale": -generator.uniform(1, 9)},
        {"growth_factor": 1.0},
        {"growth_factor": generator.uniform(-1, 0.9)},
        {"backoff_factor": 0.0},
        {"backoff_factor": 1.0},
        {"backoff_factor": generator.shuffled((-generator.uniform(0.1, 2), generator.uniform(1.1, 3)))[0]},
        {"growth_interval": 0},
        {"growth_interval": -generator.integer(1, 9)},
    ]
    sensible: ScaleSettings = {
        "initial_scale": generator.uniform(0.1, 0.9),
        "growth_factor": generator.uniform(1.1, 3),
        "backoff_factor": generator.uniform(0.1, 0.9),
        "growth_interval": 1,
    }
    return Refused(scales=[*scales, sensible], epochs=[0, -generator.integer(1, 3), 1])


SPACES = (SCALES, SETTINGS_REFUSED)
