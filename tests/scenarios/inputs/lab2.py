"""Input spaces of Lab 2's probes."""

from __future__ import annotations

from collections.abc import Iterator

from gradebox.sandbox import Request
from tests.scenarios.inputs.space import Case, Dimension, Space


def _runs(request: Request) -> Iterator[Case]:
    yield from request.params["runs"]


def _window(case: Case) -> str:
    steps = case.get("accumulation_steps", 1)
    if steps == 1:
        return "one batch"
    if len(case["sizes"]) < steps:
        return "longer than the epoch"
    return "short last" if len(case["sizes"]) % steps else "divides"


def _clipping(case: Case) -> str:
    limit = case.get("max_grad_norm")
    return "none" if limit is None else "never" if limit >= 1e5 else "a limit"


def _sizes(case: Case) -> str:
    sizes = case["sizes"]
    if len(sizes) == 1:
        return "one batch"
    return "equal" if len(set(sizes)) == 1 else "unequal"


TRAINING = Space(
    probes=("lab2.training.train",),
    cases=_runs,
    dimensions=(
        Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window),
        Dimension("clipping", ("none", "never", "a limit"), _clipping),
        Dimension("sizes", ("one batch", "unequal"), _sizes),
        Dimension("epochs", ("1", "several"), lambda case: "1" if case.get("epochs", 1) == 1 else "several"),
        Dimension("overflow", ("none", "some"), lambda case: "some" if case.get("spoiled") else "none"),
        Dimension("scheduler", ("none", "decays"), lambda case: "decays" if case.get("decay") else "none"),
        Dimension(
            "batches come as", ("a list", "a loader"), lambda case: "a loader" if case.get("loader") else "a list"
        ),
    ),
    apart={
        ("sizes=one batch", "window=divides"): "a window of several batches needs them",
        ("sizes=one batch", "window=short last"): "a window of several batches needs them",
    },
)

SPACES: tuple[Space, ...] = (TRAINING,)
WITHOUT: dict[str, str] = {}
