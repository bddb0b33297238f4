"""Input spaces of Lab 3's probes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradebox.sandbox import Request
from grader.lab3.truth.steps import split
from grader.shared.dimensions import Case, Dimension, Space

_DEBUGGING = "lab3_distributed.ddp_debugging.train_two_heads"


def _either(name: str, of: str) -> Dimension:
    """A flag of the case."""
    return Dimension(name, ("no", "yes"), lambda case: "yes" if case[of] else "no")


def _one(request: Request) -> Iterator[Case]:
    yield request.params


# Gradient accumulation: a case is one pass over the batches of all ranks.


def _passes(request: Request) -> Iterator[Case]:
    for each in request.params["passes"]:
        yield {**each, "targets": request.tensors[each["targets"]], "outputs": request.tensors[each["weight"]].shape[0]}


def _window(case: Case) -> str:
    batches, steps = len(case["sizes"][0]), case["steps"]
    if batches < steps:
        return "longer than the epoch"
    return "one batch" if steps == 1 else "short last" if batches % steps else "divides"


def _batch_sizes(case: Case) -> str:
    sizes = {size for rank in case["sizes"] for size in rank}
    return "one sample each" if sizes == {1} else "equal" if len(sizes) == 1 else "unequal"


def _targets(case: Case) -> str:
    return "tokens" if case["tokens"] else "classes" if case["targets"].dtype.kind == "i" else "numbers"


def _place(case: Case) -> str:
    return "2 ranks" if len(case["sizes"]) > 1 else "alone on a GPU" if case["kind"] == "cuda" else "alone"


ACCUMULATION = Space(
    probes=("lab3.accumulation.accumulate",),
    cases=_passes,
    dimensions=(
        Dimension("place", ("2 ranks", "alone", "alone on a GPU"), _place),
        Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window),
        Dimension("sizes", ("one sample each", "equal", "unequal"), _batch_sizes),
        Dimension("targets", ("numbers", "classes", "tokens"), _targets),
        Dimension("ignored", ("none", "some"), lambda case: "some" if (case["targets"] == -100).any() else "none"),
        _either("momentum", "momentum"),
        _either("default optimizer", "default_optimizer"),
        _either("default criterion", "default_criterion"),
        Dimension("dtype", ("float32", "float64"), lambda case: str(case["dtype"])),
        _either("frozen part", "frozen"),
        _either("gradients from before", "stale"),
        _either("a list", "as_list"),
    ),
    apart={
        ("targets=numbers", "ignored=some"): "only classes can be left out",
        ("targets=numbers", "default criterion=yes"): "cross entropy is of classes",
        ("default optimizer=yes", "momentum=yes"): "the default is plain SGD",
    },
)


# Training: a case is one call of `train`, or of the script of Task 3.5.


def _trainings(request: Request) -> Iterator[Case]:
    if request.params.get("function") == _DEBUGGING:
        return
    samples = len(request.tensors["inputs"]) - request.params["tests"]
    for changed in ({}, *request.params["again"]):
        arguments = {**request.params["arguments"], **changed}
        yield {**request.params, **arguments, "ranks": request.ranks, "samples": samples}


def _scripts(request: Request) -> Iterator[Case]:
    if request.params.get("function") == _DEBUGGING:
        for changed in ({"by_address": False}, *request.params["again"]):
            arguments = {**request.params["arguments"], **changed}
            yield {**arguments, "ranks": request.ranks, "samples": len(request.tensors["inputs"])}


def _last_batch(case: Case) -> str:
    return "short" if -(-case["samples"] // case["ranks"]) % case["batch_size"] else "full"


_LAST_BATCH = Dimension("last batch", ("short", "full"), _last_batch)
TRAINING = Space(
    probes=("lab3.training.train",),
    cases=_trainings,
    dimensions=(
        Dimension("ranks", ("2", "3"), lambda case: str(case["ranks"])),
        Dimension(
            "shares", ("even", "filled up"), lambda case: "filled up" if case["samples"] % case["ranks"] else "even"
        ),
        _LAST_BATCH,
        Dimension("loss", ("the default", "given"), lambda case: "the default" if case["classes"] else "given"),
        _either("test set", "tests"),
        _either("momentum", "momentum"),
        Dimension("dtype", ("float32", "float64"), lambda case: str(case["dtype"])),
        Dimension("epochs", ("1", "several"), lambda case: "1" if case["epochs"] == 1 else "several"),
    ),
    apart={
        ("ranks=3", "epochs=1"): "epochs follow each other as they do on two ranks",
        ("loss=given", "test set=yes"): "an accuracy is one of classes, whose loss is the default",
        ("loss=the default", "test set=no"): "a test set comes when all is trained",
    },
)
SCRIPT = Space(
    probes=("lab3.training.train",),
    cases=_scripts,
    dimensions=(
        Dimension("meets", ("where it is told", "by environment"), lambda case: (
            "where it is told" if case["by_address"] else "by environment"
        )),
        _LAST_BATCH,
    ),
)  # fmt: skip


# Evaluation: a case is one set of samples.


def _evaluations(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        samples = len(request.tensors[case["logits"]])
        yield {"samples": samples, "ranks": request.ranks, "batch_size": case["batch_size"]}


def _share(case: Case) -> str:
    if case["samples"] < case["ranks"]:
        return "none for some"
    return "uneven" if case["samples"] % case["ranks"] else "even"


def _batches(case: Case) -> str:
    share, size = -(-case["samples"] // case["ranks"]), case["batch_size"]
    if size == 1:
        return "one sample each"
    return "one, not full" if size > share else "short last" if share % size else "full"


EVALUATION = Space(
    probes=("lab3.training.evaluate",),
    cases=_evaluations,
    dimensions=(
        Dimension("ranks", ("2", "3"), lambda case: str(case["ranks"])),
        Dimension("shares", ("none for some", "uneven", "even"), _share),
        Dimension("batches", ("one sample each", "short last", "full", "one, not full"), _batches),
    ),
    apart={
        ("shares=none for some", "batches=short last"): "a rank has one sample or none",
        ("shares=none for some", "batches=full"): "a rank has one sample or none",
    },
)


# Checkpoints: a case is one call.


def _resumed(request: Request) -> Iterator[Case]:
    params = request.params
    for place, epochs in enumerate(params["until"]):
        if not params["checkpointed"]:
            there = "none asked for"
        elif "content" not in request.tensors:
            there = "not there yet"
        else:
            there = ("half-way", "complete", "beyond")[place]
        path = None if not params["checkpointed"] else "a Path" if params["path_objects"][place] else "a text"
        yield {"there": there, "path": path, "epochs": epochs}


_PATH = Dimension("path", ("a text", "a Path"), lambda case: "a Path" if case["path_object"] else "a text")
SAVING = Space(
    probes=("lab3.checkpoints.save",),
    cases=_one,
    dimensions=(
        _either("replicated", "replicated"),
        _PATH,
        _either("Adam", "adam"),
        _either("frozen part", "frozen"),
    ),
)
LOADING = Space(
    probes=("lab3.checkpoints.load",),
    cases=_one,
    dimensions=(
        _either("replicated", "replicated"),
        _PATH,
        _either("Adam", "adam"),
        _either("frozen part", "frozen"),
    ),
)
RESUMING = Space(
    probes=("lab3.checkpoints.resume",),
    cases=_resumed,
    dimensions=(
        Dimension(
            "checkpoint",
            ("none asked for", "not there yet", "half-way", "complete", "beyond"),
            lambda case: str(case["there"]),
        ),
        Dimension("path", ("a text", "a Path"), lambda case: case["path"]),
    ),
    apart={
        ("checkpoint=none asked for", "path=*"): "no path is given",
        ("checkpoint=not there yet", "path=a Path"): "the file that is then written is read by both",
    },
)


# Joining: a case is one meeting.


def _meetings(request: Request) -> Iterator[Case]:
    machine = 0 if request.device == "cpu" else request.ranks
    for case in request.params["cases"]:
        yield {"gpus": machine, "here": case.get("machine", request.ranks), **case}


def _gpus(case: Case) -> str:
    return "none" if case["gpus"] == 0 else "too few" if case["gpus"] < case["here"] else "one for each"


JOINING = Space(
    probes=("lab3.joining.setup",),
    cases=_meetings,
    dimensions=(
        Dimension("meets by", ("file", "tcp", "environment"), lambda case: str(case["way"])),
        Dimension("device", ("cpu", "cuda", "None"), lambda case: str(case["device"])),
        Dimension("LOCAL_RANK", ("no", "yes"), lambda case: "yes" if "local" in case else "no"),
        Dimension("GPUs", ("none", "too few", "one for each"), _gpus),
    ),
    apart={
        ("device=cuda", "GPUs=none"): "there is nothing to compute on",
        ("device=cpu", "GPUs=too few"): "GPUs are not asked for",
    },
)


# Scaling: cases are made-up steps, and steps measured.


def _answers(request: Request) -> Iterator[Case]:
    for kind in request.params["kinds"]:
        for function in ("speedup", "efficiency"):
            for alone in ("measured", "of the other kind only"):
                yield {"kind": kind, "function": function, "alone": alone}


RATIOS = Space(
    probes=("lab3.scaling.analyse",),
    cases=_answers,
    dimensions=(
        Dimension("kind", ("strong", "weak"), lambda case: str(case["kind"])),
        Dimension("function", ("speedup", "efficiency"), lambda case: str(case["function"])),
        Dimension("one process", ("measured", "of the other kind only"), lambda case: str(case["alone"])),
    ),
)


def _profiles(request: Request) -> Iterator[Case]:
    thresholds = request.params.get("thresholds") or [None] * len(request.params["profiles"])
    for profile, threshold in zip(request.params["profiles"], thresholds, strict=True):
        yield {"profile": profile, "threshold": threshold}


def _ranks(case: Case) -> str:
    ranks = len(case["profile"]["data_seconds"])
    return "one" if ranks == 1 else "two" if ranks == 2 else "more"


def _largest(case: Case) -> str:
    parts = split(case["profile"])
    limit = 0.2 if case["threshold"] is None else case["threshold"]
    losses = {name: parts[name] for name in ("communication", "data", "imbalance")}
    name = max(losses, key=lambda each: losses[each])
    return name if losses[name] >= limit * sum(parts.values()) else "none"


def _waits(case: Case) -> str:
    figures: dict[str, Any] = case["profile"]
    return "yes" if max(figures["communication_seconds"]) > min(figures["communication_seconds"]) + 1e-12 else "no"


_RANKS = Dimension("ranks", ("one", "two", "more"), _ranks)
BOTTLENECKS = Space(
    probes=("lab3.scaling.bottlenecks",),
    cases=_profiles,
    dimensions=(
        Dimension("loss", ("communication", "data", "imbalance", "none"), _largest),
        Dimension(
            "threshold", ("the default", "given"), lambda case: "the default" if case["threshold"] is None else "given"
        ),
        _RANKS,
    ),
    apart={("loss=imbalance", "ranks=one"): "one rank waits for nobody"},
)
SHARES = Space(
    probes=("lab3.scaling.shares",),
    cases=_profiles,
    dimensions=(
        Dimension("ranks", ("one", "several"), lambda case: "one" if _ranks(case) == "one" else "several"),
        Dimension("some wait", ("no", "yes"), _waits),
    ),
    apart={("ranks=one", "some wait=yes"): "one rank waits for nobody"},
)
MEASURING = Space(
    probes=("lab3.scaling.measured",),
    cases=lambda request: [{**request.params, "ranks": request.ranks, "slow": bool(request.conditions)}],
    dimensions=(
        Dimension("ranks", ("1", "2", "4"), lambda case: str(case["ranks"])),
        Dimension("kind", ("strong", "weak"), lambda case: str(case["kind"])),
        Dimension("a slow GPU", ("no", "yes"), lambda case: "yes" if case["slow"] else "no"),
    ),
    apart={
        ("ranks=1", "a slow GPU=no"): "a slow GPU that is alone is a GPU",
        ("ranks=4", "a slow GPU=yes"): "who waits for a slow one waits on two ranks as on four",
    },
)
SEVERAL = Space(
    probes=("lab3.scaling.several",),
    cases=lambda request: request.params["asked"],
    dimensions=(
        Dimension("kind", ("strong", "weak"), lambda case: str(case["kind"])),
        Dimension(
            "world sizes", ("one", "several"), lambda case: "one" if len(case["world_sizes"]) == 1 else "several"
        ),
    ),
)

SPACES: tuple[Space, ...] = (
    ACCUMULATION,
    TRAINING,
    SCRIPT,
    EVALUATION,
    SAVING,
    LOADING,
    RESUMING,
    JOINING,
    RATIOS,
    BOTTLENECKS,
    SHARES,
    MEASURING,
    SEVERAL,
)
_PROGRAM = "a program that is given a command line"
WITHOUT: dict[str, str] = {
    "lab3.checkpoints.save_on_a_gpu": "the same network as elsewhere, once: what counts is where it was",
    "lab3.checkpoints.load_on_a_cpu": "the file of that one",
    "lab3.checkpoints.interrupted": "one story of one file: saved, saved again on a full disk, loaded",
    "lab3.launch.program": _PROGRAM,
    "lab3.launch.torchrun": _PROGRAM,
    "lab3.scaling.plotted": "the points of `analyse`, of both kinds and of one",
    "lab3.scaling_truth.truth": "our own truth of `measured`",
}
