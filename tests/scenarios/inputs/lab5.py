"""Input spaces of Lab 5's probes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradebox.sandbox import Request
from gradebox.sandbox.codec import put_back
from grader.lab5.truth.monitor import TURNS
from grader.lab5.truth.timelines import SPARSE
from tests.scenarios.inputs.space import Case, Dimension, Space

IGNORED = -100


def _when(name: str, key: str, yes: str, no: str) -> Dimension:
    """Whether something is there, and not False."""
    return Dimension(name, (yes, no), lambda case: no if case.get(key) in (None, False) else yes)


def _plain(name: str, *values: str) -> Dimension:
    """A value of the case as it is."""
    return Dimension(name, values, lambda case: None if name not in case else str(case[name]))


def _given(request: Request) -> dict[str, Any]:
    """The arguments of a request, arrays where they stand."""
    own = {name: array for name, array in request.tensors.items() if "/" not in name}
    return {**put_back(request.params, request.tensors), **own, "ranks": request.ranks}


# --- the trainer's epochs -----------------------------------------------------------------------------------------


def _runs(request: Request) -> Iterator[Case]:
    given = _given(request)
    for run in ({**given, "dtype": "float64"}, *given["runs"]):
        yield {**run, **run["config"], "ranks": request.ranks}


def _batches(case: Case) -> int:
    return int(-(-_share(case) // case["batch_size"]))


def _share(case: Case) -> int:
    """Samples of a rank, some of them drawn twice if need be."""
    return int(-(-len(case["inputs"]) // case["ranks"]))


def _window(case: Case) -> str:
    size, batches = case["accumulation_steps"], _batches(case)
    if size == 1:
        return "one batch"
    return "longer than the epoch" if size > batches else "short last" if batches % size else "divides"


def _targets(case: Case) -> str:
    targets = np.asarray(case["targets"])
    if targets.dtype.kind == "f":
        return "numbers"
    if (targets != IGNORED).all():
        return "classes"
    first = targets[: case["ranks"] * case["batch_size"] : case["ranks"]]
    return "a batch without" if (first == IGNORED).all() else "some ignored"


def _limit(case: Case) -> str:
    limit = case["max_grad_norm"]
    return "none" if limit is None else "never reached" if limit >= 1e5 else "a limit"


def _optimizer(case: Case) -> str:
    if case.get("optimizer") == "adamw":
        return "adamw"
    if case.get("weight_decay"):
        return "sgd with weight decay"
    return "sgd with momentum"


def _last(case: Case) -> str:
    if len(case["inputs"]) % case["ranks"]:
        return "padded"
    return "smaller" if _share(case) % case["batch_size"] else "full"


def _logs(case: Case) -> str | None:
    return {1: "each step", 2: "every other"}.get(case.get("log_every_steps", 10))


EPOCHS = Space(
    probes=("lab5.pipeline.steps",),
    cases=_runs,
    dimensions=(
        _plain("ranks", "1", "2"),
        Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window),
        Dimension("targets", ("numbers", "classes", "some ignored", "a batch without"), _targets),
        Dimension("clipping", ("none", "never reached", "a limit"), _limit),
        Dimension("optimizer", ("sgd with momentum", "sgd with weight decay", "adamw"), _optimizer),
        _plain("dtype", "float64", "float32"),
        Dimension("last batch", ("full", "smaller", "padded"), _last),
        _plain("epochs", "1", "2"),
        Dimension("log", ("each step", "every other"), _logs),
    ),
    apart={
        ("optimizer=adamw", "dtype=float32"): "it divides a gradient by its own size: rounding decides the first steps",
        ("last batch=padded", "ranks=1"): "one rank has all samples",
    },
)


def _mixed(request: Request) -> Iterator[Case]:
    given = _given(request)
    for dtype, settings in given["settings"].items():
        yield {**given, **given["config"], **settings, "dtype": dtype}


MIXED = Space(
    probes=("lab5.pipeline.mixed",),
    cases=_mixed,
    dimensions=(
        _plain("dtype", "float16", "bfloat16"),
        Dimension("window", ("one batch", "short last"), _window),
        Dimension("clipping", ("none", "a limit"), _limit),
        Dimension("log", ("each step", "every other"), _logs),
    ),
)

RESUME = Space(
    probes=("lab5.resume.resume",),
    cases=lambda request: [{"dtype": "float32", **_given(request), **request.params["config"]}],
    dimensions=(
        _plain("ranks", "1", "2"),
        _plain("dtype", "float32", "float16"),
        _plain("optimizer", "sgd", "adamw"),
        _when("place", "middle", "in the middle of an epoch", "between two epochs"),
    ),
    apart={("ranks=2", "dtype=float16"): "the grading device is one GPU"},
)

LOGGED = Space(
    probes=("lab5.counting.logged",),
    cases=lambda request: [{**_given(request), **request.params["config"]}],
    dimensions=(
        _plain("ranks", "1", "2"),
        Dimension("window", ("one batch", "short last"), _window),
        Dimension("clipping", ("none", "a limit"), _limit),
        Dimension("log", ("each step", "every other"), _logs),
    ),
)


# --- validations --------------------------------------------------------------------------------------------------


def _validations(request: Request) -> Iterator[Case]:
    for case in _given(request)["cases"]:
        yield {**case, "ranks": request.ranks}


def _kind(case: Case) -> str:
    targets = np.asarray(case["targets"])
    return "numbers" if targets.dtype.kind == "f" else "sequences" if targets.ndim > 1 else "classes"


def _counted(case: Case) -> str:
    targets = np.asarray(case["targets"])
    if targets.dtype.kind == "f" or (targets != IGNORED).all():
        return "all"
    first = next(sizes[0] for sizes in case["sizes"] if sizes)
    return "a batch without" if (targets[:first] == IGNORED).all() else "some"


def _shares(case: Case) -> str:
    if not all(case["sizes"]):
        return "a rank without"
    return "equal" if len({size for sizes in case["sizes"] for size in sizes}) == 1 else "unequal"


VALIDATIONS = Space(
    probes=("lab5.counting.validate",),
    cases=_validations,
    dimensions=(
        _plain("ranks", "1", "2"),
        Dimension("targets", ("classes", "sequences", "numbers"), _kind),
        Dimension("counted", ("all", "some", "a batch without"), _counted),
        Dimension("batches", ("equal", "unequal", "a rank without"), _shares),
        _plain("dtype", "float64", "float32", "bfloat16"),
    ),
    apart={
        ("targets=numbers", "counted=some"): "all numbers count",
        ("targets=numbers", "counted=a batch without"): "all numbers count",
        ("batches=a rank without", "ranks=1"): "refused, which is asked as well",
    },
)


# --- runs ---------------------------------------------------------------------------------------------------------


def _until(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        losses = case["losses"]
        whole = (
            0 if losses[0] is None else losses.index(min(loss for loss in losses if loss is not None and loss > 0.2))
        )
        none = all(loss is None or loss < 0.2 for loss in losses)
        then = None if none else losses[whole + 1]
        yield {
            "patience": case["patience"],
            "best": "none" if none else "first" if whole == 0 else "later",
            "then": "no number" if then is None else "equal" if then == losses[whole] else "higher",
            "left": losses[-1] == 0.1,
        }


EARLY = Space(
    probes=("lab5.resume.early",),
    cases=_until,
    dimensions=(
        _plain("patience", "1", "2", "3"),
        _plain("best", "none", "first", "later"),
        _plain("then", "no number", "equal", "higher"),
        _when("epochs", "left", "left", "over"),
    ),
    apart={
        ("best=none", "then=equal"): "where none is a number, none is equal",
        ("best=none", "then=higher"): "where none is a number, none is higher",
    },
)

TERMINATED = Space(
    probes=("lab5.stopping.terminated",),
    cases=lambda request: [
        {"ranks": request.ranks, "place": place} for place in (*request.params["places"], "again", "between")
    ],
    dimensions=(_plain("ranks", "1", "2"), _plain("place", "window", "last", "validation", "again", "between")),
)


# --- configuration, schedule, files -------------------------------------------------------------------------------


def _name(case: Case) -> str:
    text = case["output_dir"]
    return "quotes" if '"' in text else "letters" if text.isascii() else "umlauts"


def _size(case: Case) -> str:
    return "whole" if case["learning_rate"] == 1.0 else "tiny" if case["learning_rate"] < 1e-4 else "some"


def _norm(case: Case) -> str:
    limit = case["max_grad_norm"]
    return "none" if limit is None else "whole" if limit == int(limit) else "some"


CONFIGURATION = Space(
    probes=("lab5.pipeline.configuration",),
    cases=lambda request: request.params["settings"],
    dimensions=(
        Dimension("output_dir", ("letters", "quotes", "umlauts"), _name),
        Dimension("learning_rate", ("tiny", "some", "whole"), _size),
        Dimension("max_grad_norm", ("none", "some", "whole"), _norm),
        _plain("dtype", "float32", "float16", "bfloat16"),
        _plain("optimizer", "sgd", "adamw"),
        Dimension("momentum", ("0", "some"), lambda case: "some" if case["momentum"] else "0"),
        _when("deterministic", "deterministic", "yes", "no"),
        _when("patience", "patience", "some", "none"),
        _when("save_every_steps", "save_every_steps", "some", "none"),
    ),
)


def _warmup(case: Case) -> str:
    warmup, total = case["warmup_steps"], case["total_steps"]
    return "none" if not warmup else "all" if warmup == total else "one" if warmup == 1 else "some"


def _minimum(case: Case) -> str:
    lowest = case.get("minimum_ratio")
    return "not given" if lowest is None else {0.0: "0", 1.0: "1"}.get(lowest, "some")


def _step(case: Case) -> str:
    step, total = case["step"], case["total_steps"]
    if step >= total:
        return "after the end" if step == total else "long after"
    return "first" if step == 0 else "last" if step == total - 1 else "in the middle"


SCHEDULE = Space(
    probes=("lab5.pipeline.schedule",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("warm-up", ("none", "one", "some", "all"), _warmup),
        Dimension("steps", ("one", "several"), lambda case: "one" if case["total_steps"] == 1 else "several"),
        Dimension("minimum", ("not given", "0", "some", "1"), _minimum),
        Dimension("step", ("first", "in the middle", "last", "after the end", "long after"), _step),
    ),
    apart={
        ("steps=one", "warm-up=one"): "then it is all",
        ("steps=one", "warm-up=some"): "there is one",
        ("steps=one", "step=in the middle"): "there is one",
        ("steps=one", "step=last"): "it is the first",
    },
)


def _file(name: str) -> str:
    return name if name == "best.pt" else "a checkpoint" if name.startswith("step-") else "another"


SWEPT = Space(
    probes=("lab5.saving.saving",),
    cases=lambda request: [{"killed": _file(a), "written": _file(b)} for a, b in request.params["pairs"]],
    dimensions=tuple(_plain(name, "a checkpoint", "best.pt", "another") for name in ("killed", "written")),
)


# --- profiling ----------------------------------------------------------------------------------------------------


def _has(kind: str) -> Dimension:
    return Dimension(kind, ("some", "none"), lambda case: "some" if {**case, **case["regions"]}.get(kind) else "none")


TIMELINES = Space(
    probes=("lab5.profiling.attribute",),
    cases=lambda request: request.params["timelines"],
    dimensions=(
        *map(_has, SPARSE),
        Dimension("steps", ("one", "several"), lambda case: "one" if case["steps"] == 1 else "several"),
    ),
)
_LOSSES = ("data", "transfer", "sync", "communication", "launch")


def _judged(request: Request) -> Iterator[Case]:
    for times, target in zip(request.params["times"], request.params["targets"], strict=True):
        losses = {name: times[f"{name}_seconds"] for name in _LOSSES}
        most = max(losses.values())
        share = times["compute_seconds"] / sum(times.values())
        limit = 0.8 if target is None else target
        yield {
            "largest": next(name for name in _LOSSES if losses[name] == most),
            "equal": sum(value == most for value in losses.values()) > 1,
            "computing": "as much" if share == limit else "more" if share > limit else "less",
            "target": target,
        }


BOTTLENECKS = Space(
    probes=("lab5.profiling.bottlenecks",),
    cases=_judged,
    dimensions=(
        _plain("largest", *_LOSSES),
        _when("equal to it", "equal", "another", "none"),
        _plain("computing", "less", "as much", "more"),
        _when("target", "target", "given", "default"),
    ),
    apart={
        ("target=default", "computing=as much"): "no number is 0.8 to the last bit",
        ("largest=launch", "equal to it=another"): "the first of equal ones is told, and launch is the last",
    },
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


# --- the monitor --------------------------------------------------------------------------------------------------


def _gpus(request: Request) -> Iterator[Case]:
    for index, gpu in enumerate(request.params["gpus"]):
        state = "lost" if index in request.params.get("lost", ()) else "whole" if "ecc" in gpu else "poor"
        yield {"gpu": state, "named": "uuid" in gpu, "dcgm_names": request.params.get("dcgm_names", False)}


EXPORTED = Space(
    probes=("lab5.monitoring.exported",),
    cases=_gpus,
    dimensions=(
        _plain("gpu", "whole", "lost", "poor"),
        _when("uuid and name", "named", "told", "unknown"),
        _when("names", "dcgm_names", "DCGM's", "its own"),
    ),
)


def _evaluated(request: Request) -> Iterator[Case]:
    for snapshot in request.params["snapshots"]:
        last = snapshot.get("step_time")
        loss = snapshot.get("metrics", {}).get("loss")
        for gpu in snapshot.get("gpus", ()):
            yield {
                **gpu,
                "loss": "absent" if loss is None else "a number" if isinstance(loss, float) else "no number",
                "step": "absent" if last is None else "long ago" if snapshot["time"] - last > 300 else "just now",
            }


def _compared(name: str, key: str, limit: float) -> Dimension:
    def of(case: Case) -> str:
        value = case.get(key)
        return "absent" if value is None else "at" if value == limit else "above" if value > limit else "below"

    return Dimension(name, ("absent", "below", "at", "above"), of)


def _memory(case: Case) -> str:
    used, total = case.get("memory_used_bytes"), case.get("memory_total_bytes")
    if used is None:
        return "absent"
    return "no total" if total is None else "full" if used == total else "some"


def _reasons(case: Case) -> str:
    reasons = case.get("throttle_reasons")
    if reasons is None:
        return "absent"
    return "none" if not reasons else "slowed" if set(reasons) - {"idle", "power_cap"} else "harmless"


def _errors(name: str) -> Dimension:
    def of(case: Case) -> str:
        value = case.get(f"{name}_errors")
        return "absent" if value is None else "some" if value else "none"

    return Dimension(f"{name} errors", ("absent", "none", "some"), of)


ALERTS = Space(
    probes=("lab5.monitoring.evaluate",),
    cases=_evaluated,
    dimensions=(
        _compared("temperature", "temperature_celsius", 85.0),
        _compared("utilization", "utilization_ratio", 0.5),
        Dimension("memory", ("absent", "no total", "some", "full"), _memory),
        Dimension("reasons", ("absent", "none", "harmless", "slowed"), _reasons),
        _errors("ecc"),
        _errors("xid"),
        _plain("loss", "absent", "a number", "no number"),
        _plain("step", "absent", "just now", "long ago"),
    ),
)


def _turns(request: Request) -> Iterator[Case]:
    hot = [[each > 85 for each in column] for column in zip(*request.params["celsius"], strict=True)]
    columns: Mapping[str, Any] = {"GPU 0": hot[0], "GPU 1": hot[1], "loss": request.params["lost"]}
    for before, now in itertools.pairwise(zip(*columns.values(), strict=True)):
        pairs = zip(columns, zip(before, now, strict=True), strict=True)
        yield {name: TURNS[pair] for name, pair in pairs if pair in TURNS}


RAISED = Space(
    probes=("lab5.monitoring.raised",),
    cases=_turns,
    dimensions=tuple(_plain(name, *TURNS.values()) for name in ("GPU 0", "GPU 1", "loss")),
)


def _level(key: str) -> Any:
    def of(case: Case) -> str:
        value = case["gpus"][0][key]
        return "absent" if value is None else "some" if value else "0"

    return of


HISTORY = Space(
    probes=("lab5.watching.watched",),
    cases=lambda request: request.params["snapshots"],
    dimensions=(
        Dimension("loss", ("some", "absent"), lambda case: "some" if "loss" in case["metrics"] else "absent"),
        Dimension("utilization", ("absent", "0", "some"), _level("utilization_ratio")),
        Dimension("power", ("absent", "0", "some"), _level("power_watts")),
        Dimension("limit", ("absent", "some"), _level("power_limit_watts")),
    ),
)

SPACES: tuple[Space, ...] = (
    EPOCHS,
    MIXED,
    RESUME,
    LOGGED,
    VALIDATIONS,
    EARLY,
    TERMINATED,
    CONFIGURATION,
    SCHEDULE,
    SWEPT,
    TIMELINES,
    BOTTLENECKS,
    RECORD,
    CHOSEN,
    EXPORTED,
    ALERTS,
    RAISED,
    HISTORY,
)
_HELPER = "a helper of other probes"
_TRUTH = "our own truth, without the submission"
WITHOUT: dict[str, str] = {
    "lab5.counting.kinds": "three fixed situations on the grading device; `validate` and `steps` vary them",
    "lab5.counting.scaled": "one run in float16; batches, classes and the scale are drawn",
    "lab5.counting.tokens": "one epoch with a window in which nothing counts; `steps` varies it",
    "lab5.monitoring.background": "one course of events of one GPU; what it is about is threads",
    "lab5.monitoring.on_this_device": "only observes this machine's GPU",
    "lab5.monitoring.without_nvml": "four reasons, all of them in every grading",
    "lab5.monitoring_care.refused": "one course of events; which GPUs it happens to is drawn",
    "lab5.monitoring_care.unharmed": "one course of events; its numbers are drawn",
    "lab5.pipeline.ranks_of": _HELPER,
    "lab5.profiling.breakdown": "one job, whose parts are drawn: it takes seconds of virtual time",
    "lab5.profiling.communication": "two jobs, slower with and without exchange, both in every grading",
    "lab5.profiling.planted": "five faults, all of them in every grading",
    "lab5.profiling.replicated": _HELPER,
    "lab5.profiling_truth.breakdown_truth": _TRUTH,
    "lab5.profiling_truth.communication_truth": _TRUTH,
    "lab5.profiling_truth.planted_truth": _TRUTH,
    "lab5.tuning.staged": "three or four stages, every share of which is drawn",
    "lab5.tuning.tuned": "five settings, all of them in every grading: each starts a loader",
    "lab5.tuning_truth.tuned_truth": _TRUTH,
    "lab5.watching.program": "a program run with its command line",
}
