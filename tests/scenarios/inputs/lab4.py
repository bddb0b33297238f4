"""Input spaces of Lab 4's probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradebox.sandbox import Request
from grader.shared.dimensions import Case, Dimension, Space


def _either(name: str, of: str) -> Dimension:
    """A flag of the case; where it is not there it is no."""
    return Dimension(name, ("no", "yes"), lambda case: "yes" if case.get(of) else "no")


_CAUSAL = _either("causal", "causal")


def _lengths(case: Case) -> str:
    queries, keys = case["queries"], case["keys"]
    return "as many" if queries == keys else "fewer queries" if queries < keys else "more queries"


# Attention: a case is one call.


def _calls(function: str) -> Any:
    def calls(request: Request) -> Iterator[Case]:
        if request.params["function"] == function:
            yield from request.params["calls"]

    return calls


def _ends(case: Case) -> str:
    return "one query" if case["queries"] == 1 else "one key" if case["keys"] == 1 else _lengths(case)


def _tiles(case: Case) -> str:
    block, keys = case["block_size"], case["keys"]
    return "of one key" if block == 1 else "one" if block >= keys else "several"


_ATTENTION = (
    Dimension("lengths", ("as many", "fewer queries", "more queries", "one query", "one key"), _ends),
    _CAUSAL,
    Dimension("dtype", ("float64", "float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
    Dimension("scores", ("small", "large"), lambda case: "large" if case.get("factor", 1) > 1 else "small"),
    Dimension("operands", ("contiguous", "views"), lambda case: "views" if case["transposed"] else "contiguous"),
    Dimension("gradients of", ("all", "queries", "keys and values"), lambda case: (
        {"QKV": "all", "Q": "queries", "KV": "keys and values"}[case.get("needed", "QKV")]
    )),
    Dimension("heads", ("one", "several"), lambda case: "one" if case.get("alone") else "several"),
)  # fmt: skip
_ROUNDED = "scores may be rounded to 16 bits, which tells large ones apart no more"
_LOW_SCORES: Mapping[tuple[str, str], str] = {
    ("dtype=float16", "scores=large"): _ROUNDED,
    ("dtype=bfloat16", "scores=large"): _ROUNDED,
}
STANDARD, FLASH = (
    Space(
        probes=("lab4.attention.attend",),
        cases=_calls(f"{name}_attention"),
        dimensions=_ATTENTION,
        apart=_LOW_SCORES,
    )
    for name in ("standard", "flash")
)
TILED = Space(
    probes=("lab4.attention.attend",),
    cases=_calls("tiled_attention"),
    dimensions=(*_ATTENTION, Dimension("tiles", ("of one key", "several", "one"), _tiles)),
    apart={("lengths=one key", "tiles=several"): "one key is one tile"},
)


def _changes(request: Request) -> Iterator[Case]:
    for function in request.params["functions"]:
        for case in request.params["cases"]:
            for how in ("in training", "without gradients"):
                yield {**case, "function": function, "how": how}


FUTURE = Space(
    probes=("lab4.attention.future",),
    cases=_changes,
    dimensions=(
        Dimension("function", ("flash_attention", "tiled_attention"), lambda case: str(case["function"])),
        Dimension("lengths", ("as many", "fewer queries", "more queries"), _lengths),
        Dimension("how", ("in training", "without gradients"), lambda case: str(case["how"])),
    ),
)


def _sized(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        yield {**case, "function": request.params["function"]}


LARGEST = Space(
    probes=("lab4.attention.largest",),
    cases=_sized,
    dimensions=(
        Dimension("function", ("flash_attention", "tiled_attention"), lambda case: str(case["function"])),
        Dimension("lengths", ("as many", "fewer queries", "more queries"), _lengths),
        _CAUSAL,
        Dimension("dtype", ("float32", "float16"), lambda case: str(case["dtype"])),
    ),
)


def _installed(request: Request) -> Iterator[Case]:
    if not request.params.get("benchmarks"):
        yield {**request.params, "gpu": request.device.removeprefix("vgpu:")}


def _modules(case: Case) -> str:
    return "both" if len(case["modules"]) == 2 else "version 4" if "flash_attn.cute" in case["modules"] else "version 2"


INSTALLED = Space(
    probes=("lab4.attention.installed",),
    cases=_installed,
    dimensions=(
        Dimension("GPU", ("T4", "A100-80GB", "H100"), lambda case: str(case["gpu"])),
        Dimension("installed", ("version 2", "version 4", "both"), _modules),
        Dimension("dtype", ("float16", "bfloat16", "float32"), lambda case: str(case["dtype"])),
        _CAUSAL,
    ),
    apart={
        ("GPU=T4", "dtype=float32"): "either of the two rules the library out",
        ("GPU=T4", "installed=version 4"): "either of the two rules the library out",
    },
)


def _benchmarks(request: Request) -> Iterator[Case]:
    for name in ("arguments", "counted", "on_cpu"):
        yield {**request.params[name], "device": "cpu" if name == "on_cpu" else "gpu"}


BENCHMARK = Space(
    probes=("lab4.attention.benchmark",),
    cases=_benchmarks,
    dimensions=(
        Dimension("device", ("gpu", "cpu"), lambda case: str(case["device"])),
        Dimension("dtype", ("float16", "float32"), lambda case: str(case["dtype"])),
        _CAUSAL,
        Dimension("batch", ("one", "several"), lambda case: "one" if case["batch"] == 1 else "several"),
    ),
    apart={
        ("device=cpu", "dtype=float16"): "the program takes float32 there",
        ("device=cpu", "batch=one"): "the figures of a CPU are not compared",
        ("dtype=float16", "batch=several"): "batch and heads count as one product, of which the figures depend",
        ("dtype=float32", "batch=one"): "batch and heads count as one product, of which the figures depend",
    },
)


# Checkpointing: a case is one model.


def _ways(request: Request) -> Iterator[Case]:
    for interval, needed, *passes in request.params["ways"]:
        layers = request.params["case"]["layers"]
        yield {"interval": interval, "needed": needed, "passes": (passes or [1])[0], "layers": layers}


def _interval(case: Case) -> str:
    every, layers = case["interval"], case["layers"]
    if every is None:
        return "none"
    return "each block" if every == 1 else "one segment" if every >= layers else "short last"


_NEEDED = _either("the input needs a gradient", "needed")
EQUIVALENCE = Space(
    probes=("lab4.checkpointing.equivalence",),
    cases=_ways,
    dimensions=(
        Dimension("interval", ("none", "each block", "short last", "one segment"), _interval),
        _NEEDED,
        Dimension("forward passes", ("one", "two"), lambda case: "two" if case["passes"] == 2 else "one"),
    ),
)
SAVED = Space(
    probes=("lab4.checkpointing.saved",),
    cases=_ways,
    dimensions=(Dimension("interval", ("none", "each block", "short last"), _interval), _NEEDED),
    apart={("interval=none", "the input needs a gradient=yes"): "nothing is cut"},
)


def _evaluated(request: Request) -> Iterator[Case]:
    for interval in request.params["intervals"]:
        for how in ("with gradients", "without"):
            yield {"interval": interval, "how": how}


EVALUATION = Space(
    probes=("lab4.checkpointing.evaluation",),
    cases=_evaluated,
    dimensions=(
        Dimension("interval", ("none", "some"), lambda case: "none" if case["interval"] is None else "some"),
        Dimension("how", ("with gradients", "without"), lambda case: str(case["how"])),
    ),
)


def _measured(request: Request) -> Iterator[Case]:
    for place, interval in enumerate(request.params["intervals"]):
        yield {"interval": interval, "place": ("first", "later")[place]}


MEASURED = Space(
    probes=("lab4.checkpointing.measured",),
    cases=_measured,
    dimensions=(
        Dimension("interval", ("none", "some"), lambda case: "none" if case["interval"] is None else "some"),
        Dimension("place", ("first", "later"), lambda case: str(case["place"])),
    ),
)


def _fitting(case: Case) -> list[list[Any]]:
    return [row for row in case["rows"] if row[2] <= case["budget"]]


def _fits(case: Case) -> str:
    fitting = len(_fitting(case))
    return "none" if not fitting else "one" if fitting == 1 else "all" if fitting == len(case["rows"]) else "some"


def _equally_fast(case: Case) -> str:
    took = sorted(row[1] for row in _fitting(case))
    return "yes" if took[:1] == took[1:2] and took else "no"


def _plain(case: Case) -> str:
    return "fits" if any(row[0] is None for row in _fitting(case)) else "does not"


BEST = Space(
    probes=("lab4.checkpointing.best",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("fits", ("none", "one", "some", "all"), _fits),
        Dimension("budget", ("exact", "roomy"), lambda case: (
            "exact" if any(row[2] == case["budget"] for row in case["rows"]) else "roomy"
        )),
        Dimension("two are equally fast", ("no", "yes"), _equally_fast),
        Dimension("without checkpointing", ("fits", "does not"), _plain),
    ),
    apart={
        ("fits=none", "budget=exact"): "who has a peak of exactly the budget fits",
        ("fits=none", "two are equally fast=yes"): "none fits",
        ("fits=none", "without checkpointing=fits"): "none fits",
        ("fits=one", "two are equally fast=yes"): "one has no other",
        ("fits=all", "without checkpointing=does not"): "all fit",
    },
)  # fmt: skip


# Running out of memory: a case is one training, or one attempt that is tried again.


def _trainings(request: Request) -> Iterator[Case]:
    params = request.params
    yield {"sequence": False, "given": False, "streamed": False, "micro": "several", "epochs": params["epochs"]}
    yield {"sequence": True, "given": True, "streamed": False, "micro": "several", "epochs": 1}  # in float32
    for other in params["others"]:
        yield {**other, "micro": "one" if other["micro_batch"] == 1 else "all"}


TWIN = Space(
    probes=("lab4.oom.clone",),
    cases=_trainings,
    dimensions=(
        Dimension("micro-batch", ("one", "several", "all"), lambda case: str(case["micro"])),
        Dimension("epochs", ("one", "more"), lambda case: "one" if case["epochs"] == 1 else "more"),
        _either("sequences", "sequence"),
        _either("criterion given", "given"),
        _either("loaders without a length", "streamed"),
    ),
    apart={
        ("micro-batch=several", "loaders without a length=yes"): "who cuts one batch cuts it whence it comes",
    },
)


def _attempts(request: Request) -> Iterator[Case]:
    yield from request.params["cases"]


def _succeeds(case: Case) -> str:
    return "never" if case["fits"] == 0 else "at once" if case["fits"] >= case["start"] else "later"


def _words(case: Case) -> str | None:
    if not case.get("raises"):
        return None
    return "of shapes" if "shapes" in case["message"] else "of memory"


RETRY = Space(
    probes=("lab4.oom.retry",),
    cases=_attempts,
    dimensions=(
        Dimension("begins with", ("one", "several"), lambda case: "one" if case["start"] == 1 else "several"),
        Dimension("fits", ("at once", "later", "never"), _succeeds),
        Dimension(
            "raises",
            ("nothing", "RuntimeError", "ValueError", "MemoryError"),
            lambda case: case.get("raises") or "nothing",
        ),
        Dimension("says", ("of shapes", "of memory"), _words),
        _either("objects hold each other", "cycle"),
        Dimension("returns", ("something", "nothing"), lambda case: (
            None if case.get("raises") or case["fits"] == 0
            else "nothing" if case.get("returns_nothing") else "something"
        )),
    ),
    apart={
        ("begins with=one", "fits=later"): "one is not halved",
        ("fits=never", "raises=RuntimeError"): "the attempt does not come so far",
        ("fits=never", "raises=ValueError"): "the attempt does not come so far",
        ("fits=never", "raises=MemoryError"): "the attempt does not come so far",
        ("fits=never", "says=*"): "the attempt does not come so far",
        ("fits=never", "returns=*"): "the attempt does not come so far",
        ("raises=nothing", "says=*"): "an error says it",
        ("raises=RuntimeError", "returns=*"): "who raises returns nothing",
        ("raises=ValueError", "returns=*"): "who raises returns nothing",
        ("raises=MemoryError", "returns=*"): "who raises returns nothing",
        ("says=*", "returns=*"): "who raises returns nothing",
    },
)  # fmt: skip


# Prediction: a case is one setup.


def _segments(case: Case) -> str:
    every, layers = case["checkpoint_every"], case["layers"]
    if every is None:
        return "none"
    return "each block" if every == 1 else "one segment" if every >= layers else "short last"


_NO_SEGMENTS = "an mlp with checkpointing is refused"
PREDICTIONS = Space(
    probes=("lab4.analysis.predictions",),
    cases=lambda request: request.params["setups"],
    dimensions=(
        Dimension("model", ("mlp", "transformer"), lambda case: str(case["model"])),
        Dimension("optimizer", ("sgd", "momentum", "adam"), lambda case: str(case["optimizer"])),
        Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("checkpointing", ("none", "each block", "short last", "one segment"), _segments),
    ),
    apart={
        ("model=mlp", "checkpointing=each block"): _NO_SEGMENTS,
        ("model=mlp", "checkpointing=short last"): _NO_SEGMENTS,
        ("model=mlp", "checkpointing=one segment"): _NO_SEGMENTS,
    },
)

SPACES: tuple[Space, ...] = (
    STANDARD,
    FLASH,
    TILED,
    FUTURE,
    LARGEST,
    INSTALLED,
    BENCHMARK,
    EQUIVALENCE,
    SAVED,
    EVALUATION,
    MEASURED,
    BEST,
    TWIN,
    RETRY,
    PREDICTIONS,
)
WITHOUT: dict[str, str] = {
    "lab4.analysis.truth": "our own truth of `predictions`",
    "lab4.oom.fits": "the sizes are the task's own: they just do not fit",
    "lab4.oom.steady": "observes what is held from step to step, which needs equal steps",
    "lab4.pictures.plots": "rows of made-up results, each of which must be seen in the picture",
    "lab4.pictures.program": "a program that is given a command line",
}
