"""Input spaces of Lab 2's probes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradebox.sandbox import Request
from grader.shared.dimensions import Case, Dimension, Space


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


def _sizes(case: Case) -> str | None:
    if len(case["sizes"]) == 1:
        return "one batch"
    return "unequal" if len(set(case["sizes"])) > 1 else None


def _scaler(case: Case) -> str:
    settings = case.get("scaler")
    if settings is None:
        return "none"
    return "grows" if settings.get("growth_interval", 2000) < 1000 else "constant"


_WIDE_ENOUGH = "it has the range for what overflows in float16"
TRAINING = Space(
    probes=("lab2.training.train",),
    cases=_runs,
    dimensions=(
        Dimension(
            "dtype",
            ("float32", "float64", "float16", "bfloat16"),
            lambda case: "float64" if case.get("wide") else str(case["dtype"]),
        ),
        Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window),
        Dimension("clipping", ("none", "never", "a limit"), _clipping),
        Dimension("sizes", ("one batch", "unequal"), _sizes),
        Dimension("epochs", ("1", "several"), lambda case: "1" if case.get("epochs", 1) == 1 else "several"),
        Dimension(
            "overflow",
            ("none", "forward", "backward"),
            lambda case: "forward" if case.get("spoiled") else "backward" if case.get("far") else "none",
        ),
        Dimension("scheduler", ("none", "decays"), lambda case: "decays" if case.get("decay") else "none"),
        Dimension(
            "batches come as", ("a list", "a loader"), lambda case: "a loader" if case.get("loader") else "a list"
        ),
        Dimension("scaler", ("none", "constant", "grows"), _scaler),
        Dimension("optimizer", ("plain", "momentum"), lambda case: "momentum" if case.get("momentum") else "plain"),
        Dimension("device", ("of the model", "given"), lambda case: "given" if case.get("moved") else "of the model"),
    ),
    apart={
        ("sizes=one batch", "window=divides"): "a window of several batches needs them",
        ("sizes=one batch", "window=short last"): "a window of several batches needs them",
        **{
            (f"overflow={where}", f"dtype={wide}"): _WIDE_ENOUGH
            for where in ("forward", "backward")
            for wide in ("float32", "float64", "bfloat16")
        },
    },
)

EVALUATION = Space(
    probes=("lab2.training.evaluate",),
    cases=lambda request: request.params["calls"],
    dimensions=(
        Dimension(
            "dtype", ("not given", "float32", "float16", "bfloat16"), lambda case: case.get("dtype", "not given")
        ),
        Dimension("device", ("of the model", "given"), lambda case: "given" if case["given"] else "of the model"),
        Dimension("modes before", ("training", "evaluation", "mixed"), lambda case: str(case["modes"])),
        Dimension("sizes", ("one batch", "unequal"), _sizes),
        Dimension("batches come as", ("a list", "a loader"), lambda case: "a loader" if case["loader"] else "a list"),
        Dimension("right", ("all", "some", "none"), lambda case: str(case["targets"])),
    ),
)

DEFAULTS = Space(
    probes=("lab2.arguments.train",),
    cases=_runs,
    dimensions=(
        Dimension(
            "dtype", ("not given", "float32", "float16", "bfloat16"), lambda case: case.get("dtype", "not given")
        ),
        Dimension("epochs", ("not given", "given"), lambda case: "given" if "epochs" in case else "not given"),
    ),
)


def _refused(request: Request) -> Iterator[Case]:
    for case in request.params["refusals"]:
        for argument in ("epochs", "accumulation_steps"):
            if argument in case:
                yield {"argument": argument, "value": case[argument], "dtype": case.get("dtype", "not given")}


REFUSED = Space(
    probes=("lab2.arguments.train",),
    cases=_refused,
    dimensions=(
        Dimension("argument", ("epochs", "accumulation_steps"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: "0" if case["value"] == 0 else "negative"),
        Dimension("dtype", ("not given", "float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
    ),
)


def _settings_refused(request: Request) -> Iterator[Case]:
    for one in request.params["scales"][:-1]:
        (pair,) = one.items()
        yield {"argument": pair[0], "value": pair[1], "bounds": _BOUNDS[pair[0]]}
    for epochs in request.params["epochs"][:-1]:
        yield {"argument": "epochs", "value": epochs, "bounds": (0,)}


_BOUNDS = {"initial_scale": (0,), "growth_factor": (1,), "backoff_factor": (0, 1), "growth_interval": (0,)}
SETTINGS_REFUSED = Space(
    probes=("lab2.arguments.stability_refused",),
    cases=_settings_refused,
    dimensions=(
        Dimension("argument", (*_BOUNDS, "epochs"), lambda case: str(case["argument"])),
        Dimension(
            "value",
            ("just not allowed", "far from it"),
            lambda case: "just not allowed" if case["value"] in case["bounds"] else "far from it",
        ),
    ),
)


def _comparisons_refused(request: Request) -> Iterator[Case]:
    for call in request.params["compared"][:-1]:
        if "steps" in call or "warmup" in call:
            argument = "steps" if "steps" in call else "warmup"
            yield {"argument": argument, "value": "0" if call[argument] == 0 else "negative"}


COMPARISONS_REFUSED = Space(
    probes=("lab2.arguments.comparison_refused",),
    cases=_comparisons_refused,
    dimensions=(
        Dimension("argument", ("steps", "warmup"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: str(case["value"])),
    ),
    apart={("argument=warmup", "value=0"): "no warm-up is allowed"},
)


def _shapes(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        rank = request.tensors[case["name"]].ndim
        dim = case.get("dim")
        place = None if dim is None else dim % rank
        yield {**case, "rank": rank, "place": place}


def _along(case: Case) -> str:
    if case["place"] is None:
        return "not given"
    return {0: "the first", case["rank"] - 1: "the last"}.get(case["place"], "between")


SOFTMAX = Space(
    probes=("lab2.stability.softmax",),
    cases=_shapes,
    dimensions=(
        Dimension(
            "numbers",
            ("ordinary", "large", "huge", "far", "masked"),
            lambda case: name if (name := case["name"].removeprefix("flat_")) not in ("long", "flat") else None,
        ),
        Dimension("dtype", ("float16", "bfloat16", "float32", "float64"), lambda case: str(case["dtype"])),
        Dimension(
            "dim",
            ("not given", "the first", "between", "the last"),
            lambda case: _along(case) if case["rank"] > 1 else None,
        ),
        Dimension("rank", ("1", "3"), lambda case: str(case["rank"]) if case["rank"] != 2 else None),
        Dimension("in memory", ("in one piece", "transposed"), lambda case: _turned(case)),
    ),
    apart={
        ("numbers=huge", "dtype=float16"): "float16 does not hold them",
        ("rank=1", "dim=*"): "there is one dimension only",
        ("rank=1", "in memory=transposed"): "there is nothing to transpose",
    },
)


def _turned(case: Case) -> str:
    return "transposed" if case.get("turned") else "in one piece"


def _has(kind: str) -> Dimension:
    return Dimension(kind, ("no", "yes"), lambda case: "yes" if kind in case.values() else "no")


NONFINITE = Space(
    probes=("lab2.stability.nonfinite",),
    cases=lambda request: request.params["cases"],
    dimensions=tuple(map(_has, ("nan", "inf", "-inf", "large", "none", "weight"))),
)


def _source(case: Case) -> str | None:
    if "side" in case:
        return "inner tuple"
    owns = case.get("owns")
    if owns is None:
        return "layers" if max(case["factors"].values()) > 1e3 else "nothing"
    ((where, factor),) = owns.items()
    if where == "":
        return "model"
    return "block" if factor == 1e6 else "nan"


_SOURCES = ("layers", "nothing", "block", "model", "nan", "inner tuple")
TRACED = Space(
    probes=("lab2.stability.trace",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("source", _SOURCES, _source),
        Dimension("form", ("tensor", "pair", "nested"), lambda case: case.get("form", "tensor")),
        Dimension(
            "dtype", ("not given", "float16", "bfloat16", "float32"), lambda case: case.get("dtype", "not given")
        ),
        Dimension(
            "modes before", ("training", "evaluation"), lambda case: "training" if case["training"] else "evaluation"
        ),
    ),
    apart={
        ("source=inner tuple", "form=tensor"): "there is none",
        ("source=inner tuple", "form=pair"): "there is none",
    },
)


def _gradients(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        seen, reference = (
            np.concatenate([request.tensors[case[part][name]] for name in ("weight", "bias")])
            for part in ("gradients", "reference")
        )
        yield {**case, "seen": seen, "reference": reference}


def _vanished(case: Case) -> str | None:
    live = case["reference"] != 0
    share = (live & (case["seen"] == 0)).sum() / max(1, live.sum())
    return "none" if share == 0 else "few" if share < 0.05 else "many" if share > 0.1 else None


def _dead(case: Case) -> str:
    dead = int((case["reference"] == 0).sum())
    return "none" if dead == 0 else "all" if dead == len(case["reference"]) else "some"


def _planted(case: Case) -> str:
    bad = case["seen"][~np.isfinite(case["seen"])]
    return str(bad[0]) if len(bad) else "nothing"


CLASSIFIED = Space(
    probes=("lab2.stability.classify",),
    cases=_gradients,
    dimensions=(
        Dimension("vanished", ("none", "few", "many"), _vanished),
        Dimension("dead", ("none", "some", "all"), _dead),
        Dimension("planted", ("nothing", "inf", "-inf", "nan"), _planted),
        Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("share", ("not given", "given"), lambda case: "given" if "share" in case else "not given"),
    ),
    apart={
        ("vanished=few", "dead=all"): "what is dead cannot vanish",
        ("vanished=many", "dead=all"): "what is dead cannot vanish",
    },
)


def _given(name: str) -> Dimension:
    return Dimension(name, ("not given", "given"), lambda case: "given" if name in case["settings"] else "not given")


def _overflows(case: Case) -> str:
    happened = case["overflows"]
    return "none" if not any(happened) else "the first" if happened[0] else "later ones"


def _interval(case: Case) -> str:
    return {None: "not given", 1: "1"}.get(case["settings"].get("growth_interval"), "several")


SCALES = Space(
    probes=("lab2.unstable.loss_scale",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("growth_interval", ("not given", "1", "several"), _interval),
        _given("initial_scale"),
        _given("growth_factor"),
        _given("backoff_factor"),
        Dimension("overflows", ("none", "the first", "later ones"), _overflows),
    ),
)


def _trouble(case: Case) -> str:
    kinds = list(case.get("troubles", {}).values())
    return kinds[0] if kinds else "none"


UNSTABLE = Space(
    probes=("lab2.unstable.steps",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: case["arguments"].get("dtype", "float16")),
        Dimension("optimizer", ("default", "SGD"), lambda case: "default" if case.get("rate") is None else "SGD"),
        Dimension("scale", ("none", "given"), lambda case: "given" if case.get("scale") else "none"),
        Dimension("device", ("of the model", "given"), lambda case: "given" if case.get("moved") else "of the model"),
        Dimension(
            "epochs", ("not given", "given"), lambda case: "given" if "epochs" in case["arguments"] else "not given"
        ),
        Dimension("trouble", ("none", "bright", "spoiled"), _trouble),
    ),
    apart={
        ("trouble=bright", "dtype=float32"): "only float16 overflows in backward at that scale",
        ("trouble=bright", "dtype=bfloat16"): "only float16 overflows in backward at that scale",
        **{
            ("trouble=bright", f"{name}={value}"): "which parameters overflow there is known of one scale; the rest is "
            "asked with what overflows in forward"
            for name, value in (
                ("optimizer", "default"),
                ("scale", "none"),
                ("device", "given"),
                ("epochs", "not given"),
            )
        },
    },
)

_GAINS = {2.0**14: "large", 2.0**-14: "small", 2.0**-20: "very small"}
_ONE_OF_A_KIND = "such a training takes long; lab2.unstable.steps asks each scale in each dtype"
GAINS = Space(
    probes=("lab2.unstable.unstable",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("gain", ("large", "small", "very small"), lambda case: _GAINS[case["gain"]]),
        Dimension("dtype", ("float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("scale", ("none", "given"), lambda case: "given" if case["scale"] else "none"),
    ),
    apart={
        ("gain=large", "dtype=bfloat16"): _ONE_OF_A_KIND,
        ("gain=small", "dtype=bfloat16"): _ONE_OF_A_KIND,
        ("gain=large", "scale=none"): _ONE_OF_A_KIND,
        ("dtype=bfloat16", "scale=given"): _ONE_OF_A_KIND,
    },
)


def _compared(request: Request) -> Iterator[Case]:
    yield {**request.params, "gpu": request.device, "slow": bool(request.conditions)}


COMPARED = Space(
    probes=("lab2.comparison.compare",),
    cases=_compared,
    dimensions=(
        Dimension("GPU", ("T4", "H100"), lambda case: case["gpu"].partition(":")[2]),
        Dimension("first precision", ("float32", "float16", "bfloat16"), lambda case: case["accuracies"][0][0]),
        Dimension("steps", ("odd", "even"), lambda case: "odd" if case["steps"] % 2 else "even"),
        Dimension("warmup", ("none", "some"), lambda case: "some" if case["warmup"] else "none"),
        Dimension("a slow step", ("no", "yes"), lambda case: "yes" if case["slow"] else "no"),
    ),
    apart={("GPU=H100", "a slow step=yes"): "a median is a median on any GPU"},
)


def _results(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        rows = case["rows"]
        times = {row[0]: row[1] for row in rows}
        right = {row[0]: row[3] for row in rows}
        yield {
            "rows": "all" if len(rows) == 3 else ", ".join(sorted(times)),
            "place": "first" if rows[0][0] == "float32" else "last" if rows[-1][0] == "float32" else None,
            "fastest": min(times, key=times.__getitem__) if len(set(times.values())) == len(times) else None,
            "others": _others([took / min(times.values()) for took in times.values()]),
            "lossy": _lossy([name for name in right if right[name] - right["float32"] < -case.get("loss", 0.01)]),
            "loss": {None: "not given", 0: "0"}.get(case.get("loss"), "given"),
            "peaks": _peaks([row[0] for row in rows if row[2] is None], len(rows)),
        }


def _others(slower: list[float]) -> str | None:
    """How far those that are not the fastest lie behind it."""
    behind = sorted(ratio for ratio in slower if ratio > 1)
    if not behind:
        return None
    return "within 5 %" if behind[-1] < 1.05 else "slower" if behind[0] > 1.05 else None


def _lossy(names: list[str]) -> str:
    return "both" if len(names) == 2 else names[0] if names else "none"


def _peaks(unknown: list[str], rows: int) -> str:
    if not unknown:
        return "known"
    return "none" if len(unknown) == rows else "float32's unknown" if "float32" in unknown else "another unknown"


def _field(name: str, *values: str, field: str = "") -> Dimension:
    return Dimension(name, values, lambda case: case[field or name])


_NOT_THERE = "it is not among the results"
CONCLUDED = Space(
    probes=("lab2.comparison.conclude",),
    cases=_results,
    dimensions=(
        _field("rows", "float32", "float16, float32", "bfloat16, float32", "all"),
        _field("float32 comes", "first", "last", field="place"),
        _field("fastest", "float32", "float16", "bfloat16"),
        _field("others", "within 5 %", "slower"),
        _field("lossy", "none", "float16", "bfloat16", "both"),
        _field("accuracy_loss", "not given", "0", "given", field="loss"),
        _field("peaks", "known", "none", "float32's unknown", "another unknown"),
    ),
    apart={
        ("rows=float32", "float32 comes=last"): "there is one",
        ("rows=float32", "fastest=float16"): _NOT_THERE,
        ("rows=float32", "fastest=bfloat16"): _NOT_THERE,
        ("rows=float32", "others=*"): _NOT_THERE,
        ("rows=float32", "lossy=float16"): _NOT_THERE,
        ("rows=float32", "lossy=bfloat16"): _NOT_THERE,
        ("rows=float32", "lossy=both"): _NOT_THERE,
        ("rows=float32", "peaks=float32's unknown"): "then none is known",
        ("rows=float32", "peaks=another unknown"): _NOT_THERE,
        ("rows=float16, float32", "fastest=bfloat16"): _NOT_THERE,
        ("rows=float16, float32", "lossy=bfloat16"): _NOT_THERE,
        ("rows=float16, float32", "lossy=both"): _NOT_THERE,
        ("rows=bfloat16, float32", "fastest=float16"): _NOT_THERE,
        ("rows=bfloat16, float32", "lossy=float16"): _NOT_THERE,
        ("rows=bfloat16, float32", "lossy=both"): _NOT_THERE,
    },
)


def _drawn(request: Request) -> Iterator[Case]:
    for name, rows in request.params["rows"].items():
        if name.startswith("plot_precisions"):
            yield {"rows": rows}


PLOTTED = Space(
    probes=("lab2.plots.plots",),
    cases=_drawn,
    dimensions=(
        Dimension("device", ("cuda", "cpu"), lambda case: str(case["rows"][0]["device"])),
        Dimension(
            "peaks", ("known", "none"), lambda case: "none" if case["rows"][0]["peak_bytes"] is None else "known"
        ),
    ),
    apart={
        ("device=cuda", "peaks=none"): "a GPU's are known",
        ("device=cpu", "peaks=known"): "a CPU's are not",
    },
)

SPACES: tuple[Space, ...] = (
    TRAINING,
    EVALUATION,
    DEFAULTS,
    REFUSED,
    SETTINGS_REFUSED,
    COMPARISONS_REFUSED,
    SOFTMAX,
    NONFINITE,
    TRACED,
    CLASSIFIED,
    SCALES,
    UNSTABLE,
    GAINS,
    COMPARED,
    CONCLUDED,
    PLOTTED,
)
WITHOUT: dict[str, str] = {
    "lab2.training.precision": "it watches what runs in one training per precision; lab2.training.train asks the rest",
    "lab2.training.steps": "the document's call, whose other inputs are those of lab2.training.train",
    "lab2.training.digits_truth": "our own training, without the submission",
    "lab2.training.digits": "one training on real data per precision, for its accuracy alone",
    "lab2.comparison.accuracies": "the same of measure_accuracies(); the order of precisions is drawn",
    "lab2.comparison.accuracies_truth": "our own training, without the submission",
    "lab2.comparison.compare_truth": "our own measurement, without the submission",
    "lab2.plots.program": "a program, run with its command line only",
}
