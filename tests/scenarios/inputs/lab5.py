"""Input spaces of Lab 5's probes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradebox.sandbox import Request
from gradebox.sandbox.codec import put_back
from grader.shared.dimensions import Case, Dimension, Space


def _when(name: str, key: str, yes: str, no: str) -> Dimension:
    """Whether something is there, and not False."""
    return Dimension(name, (yes, no), lambda case: no if case.get(key) in (None, False) else yes)


def _plain(name: str, *values: str) -> Dimension:
    """A value of the case as it is."""
    return Dimension(name, values, lambda case: None if name not in case else str(case[name]))


def _trainings(request: Request) -> Iterator[Case]:
    """Each training of a request, with its configuration and what else the request says."""
    own = {name: array for name, array in request.tensors.items() if "/" not in name}
    given: dict[str, Any] = {**put_back(request.params, request.tensors), **own}
    for training in given.get("trainings", [given.get("training")]):
        yield {**given, **training, "dtype": "float32", **training["config"], "ranks": request.ranks}


def _share(case: Case) -> int:
    """Samples of a rank, some of them drawn twice if need be."""
    return int(-(-len(case["inputs"]) // case["ranks"]))


def _window(case: Case) -> str:
    size, batches = case["accumulation_steps"], int(-(-_share(case) // case["batch_size"]))
    if size == 1:
        return "one batch"
    return "longer than the epoch" if size > batches else "short last" if batches % size else "divides"


def _limit(case: Case) -> str:
    limit = case["max_grad_norm"]
    return "none" if limit is None else "never reached" if limit >= 1e5 else "a limit"


def _optimizer(case: Case) -> str:
    if case.get("optimizer") == "adamw":
        return "adamw"
    return "sgd with weight decay" if case.get("weight_decay") else "sgd with momentum"


def _last(case: Case) -> str:
    if len(case["inputs"]) % case["ranks"]:
        return "padded"
    return "smaller" if _share(case) % case["batch_size"] else "full"


def _logs(case: Case) -> str | None:
    return {1: "each step", 2: "every other"}.get(case.get("log_every_steps", 10))


EPOCHS = Space(
    probes=("lab5.trainer.epochs",),
    cases=_trainings,
    dimensions=(
        _plain("ranks", "1", "2"),
        Dimension("window", ("one batch", "short last", "longer than the epoch"), _window),
        Dimension("clipping", ("none", "never reached", "a limit"), _limit),
        Dimension("optimizer", ("sgd with momentum", "sgd with weight decay", "adamw"), _optimizer),
        Dimension("last batch", ("full", "smaller", "padded"), _last),
        _plain("epochs", "1", "2"),
    ),
    apart={
        ("last batch=padded", "ranks=1"): "one rank has all samples",
        ("optimizer=adamw", "clipping=a limit"): "it divides a gradient by its own size",
    },
)
MIXED = Space(
    probes=("lab5.trainer.mixed",),
    cases=_trainings,
    dimensions=(
        _plain("dtype", "float16", "bfloat16"),
        Dimension("window", ("one batch", "short last"), _window),
        Dimension("log", ("each step", "every other"), _logs),
    ),
)
RESUME = Space(
    probes=("lab5.trainer.resume",),
    cases=_trainings,
    dimensions=(
        _plain("ranks", "1", "2"),
        _plain("dtype", "float32", "float16"),
        _plain("optimizer", "sgd", "adamw"),
        _when("place", "middle", "in the middle of an epoch", "between two epochs"),
    ),
    apart={("ranks=2", "dtype=float16"): "the grading device is one GPU"},
)
LOGGED = Space(
    probes=("lab5.trainer.logged",),
    cases=_trainings,
    dimensions=(
        _plain("ranks", "1", "2"),
        Dimension("window", ("one batch", "short last"), _window),
        Dimension("clipping", ("none", "a limit"), _limit),
        Dimension("log", ("each step", "every other"), _logs),
    ),
)
RECORD = Space(
    probes=("lab5.profiling.record",),
    cases=lambda request: [request.params],
    dimensions=(
        _plain("suffix", ".json", ".json.gz"),
        _when("memory", "pinned", "pinned", "pageable"),
        Dimension("steps", ("one", "several"), lambda case: "one" if case["steps"] == 1 else "several"),
    ),
)

CHOSEN = Space(
    probes=("lab5.tuning.chosen",),
    cases=lambda request: [{"tolerance": tolerance} for tolerance in request.params["tolerances"]],
    dimensions=(_plain("tolerance", "None", "0.0", "0.002", "0.12"),),
)

SPACES: tuple[Space, ...] = (EPOCHS, MIXED, RESUME, LOGGED, RECORD, CHOSEN)
_HELPER = "a helper of other probes"
_TRUTH = "our own truth, without the submission"
WITHOUT: dict[str, str] = {
    "lab5.monitoring.background": "one course of events of one GPU; what it is about is threads",
    "lab5.monitoring.by_rank": "one course of events: this process is rank 1",
    "lab5.monitoring.evaluate": "each condition by itself, and rows of snapshots in which they come and go",
    "lab5.monitoring.exported": "three steps whose metrics are drawn, and two GPUs",
    "lab5.monitoring.failing": "one course of events; its numbers are drawn",
    "lab5.monitoring.moments": "one course of events: the same step, a smaller one, samples",
    "lab5.monitoring.monitored": _HELPER,
    "lab5.monitoring.raised": "three conditions whose times are drawn; each begins while another holds",
    "lab5.monitoring.without_nvml": "three reasons, all of them in every grading",
    "lab5.profiling.attribute": "many drawn timelines, and those in which one thing alone decides",
    "lab5.profiling.bottlenecks": "each loss as the largest, small ones, equal ones, limits: all in every grading",
    "lab5.profiling.planted": "five faults, all of them in every grading",
    "lab5.profiling_truth.planted_truth": _TRUTH,
    "lab5.trainer.make": _HELPER,
    "lab5.trainer.stopped": "two places on one rank and on two, all in every grading",
    "lab5.trainer.validate": "three ways to share samples out, all of them in every grading",
    "lab5.tuning.tuned": "five settings, all of them in every grading: each starts a loader",
    "lab5.tuning_truth.tuned_truth": _TRUTH,
}
