"""Input spaces of Lab 1's probes."""

from __future__ import annotations

from collections.abc import Iterator

from gradebox.sandbox import Request
from grader.shared.dimensions import Case, Dimension, Space

_DTYPES = ("not given", "float16", "bfloat16", "float64")


def _calls(request: Request) -> Iterator[Case]:
    """Calls on a GPU, with what their request says for all of them."""
    params = request.params
    disturbed = {one["stage"] for one in request.conditions if "stage" in one}  # the first call's is 1
    for stage, call in enumerate(params["calls"], 1):
        if call.get("device") != "cpu":
            warm = "warm" if params.get("warm") else "cold"
            busy = call.get("busy", params.get("busy_products", 0))
            yield {**call, "busy": busy, "disturbed": stage in disturbed, "start": warm}


def _iterations(case: Case) -> str:
    count = case.get("iterations")
    if count is None:
        return "not given"
    if count < 5:
        return "1" if count == 1 else "a few"
    return "no fives" if count % 5 else "fives"


def _warmup(case: Case) -> str:
    return "not given" if "warmup" not in case else "some" if case["warmup"] else "0"


def _name(case: Case) -> str:
    return f"{case.get('device', 'cuda')}{' as an object' * bool(case.get('as_object'))}"


_DOZENS = "five measurements at least can bear two disturbed ones"
PRODUCTS = Space(
    probes=("lab1.gpu_basics.matmul",),
    cases=_calls,
    dimensions=(
        Dimension("dtype", _DTYPES, lambda case: told if (told := case.get("dtype", "not given")) in _DTYPES else None),
        Dimension("GPU", ("cuda", "cuda as an object", "cuda:0", "cuda:0 as an object"), _name),
        Dimension("size", ("some hundreds", "more"), lambda case: "some hundreds" if case["size"] < 1000 else "more"),
        Dimension("iterations", ("not given", "1", "a few", "fives", "no fives"), _iterations),
        Dimension("warmup", ("not given", "0", "some"), _warmup),
        Dimension("before", ("idle", "busy"), lambda case: "busy" if case["busy"] else "idle"),
        Dimension("disturbed", ("no", "yes"), lambda case: "yes" if case["disturbed"] else "no"),
    ),
    apart={
        ("iterations=1", "disturbed=yes"): _DOZENS,
        ("iterations=a few", "disturbed=yes"): _DOZENS,
    },
)

REFUSED = Space(
    probes=("lab1.gpu_basics.matmul_refusals",),
    cases=lambda request: map(_nonsense, request.params["cases"]),
    dimensions=(
        Dimension("argument", ("size", "iterations", "warmup"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: "0" if case["value"] == 0 else "negative"),
        Dimension("device", ("cuda", "cuda:0", "cpu"), lambda case: str(case["device"])),
    ),
    apart={("argument=warmup", "value=0"): "no warm-up is allowed"},
)


def _nonsense(case: Case) -> Case:
    argument, value = next((name, case[name]) for name in ("warmup", "iterations", "size") if case.get(name, 1) < 1)
    return {"argument": argument, "value": value, "device": case.get("device", "cuda")}


def _sizes(case: Case) -> str | None:
    sizes = case.get("sizes")
    if sizes is None:
        return "not given"
    if len(sizes) == 1:
        return "one"
    return "ascending" if list(sizes) == sorted(sizes) else "in another order"


def _count(name: str) -> Dimension:
    return Dimension(
        name,
        ("not given", "1", "some"),
        lambda case: "not given" if name not in case else "1" if case[name] == 1 else "some",
    )


_DEFAULT = "the sizes by default are asked once, with nothing else: they take long"
COMPARED = Space(
    probes=("lab1.gpu_basics.compare",),
    cases=lambda request: request.params["calls"],
    dimensions=(
        Dimension(
            "dtype", ("not given", "float16", "bfloat16", "float64"), lambda case: case.get("dtype", "not given")
        ),
        Dimension("device", ("cuda", "cuda:0"), lambda case: case.get("device", "cuda")),
        Dimension("sizes", ("not given", "one", "ascending", "in another order"), _sizes),
        _count("iterations"),
        _count("cpu_iterations"),
    ),
    apart={
        ("sizes=not given", "dtype=float16"): _DEFAULT,
        ("sizes=not given", "dtype=bfloat16"): _DEFAULT,
        ("sizes=not given", "dtype=float64"): _DEFAULT,
        ("sizes=not given", "device=cuda:0"): _DEFAULT,
        ("sizes=not given", "iterations=1"): _DEFAULT,
        ("sizes=not given", "iterations=some"): _DEFAULT,
        ("sizes=not given", "cpu_iterations=1"): _DEFAULT,
        ("sizes=not given", "cpu_iterations=some"): _DEFAULT,
    },
)


def _described(request: Request) -> Iterator[Case]:
    machine = "without a GPU" if request.device == "cpu" else "with a GPU"
    for device in request.params["devices"]:
        yield {"device": "not given" if device is None else device, "machine": machine}


ENVIRONMENT = Space(
    probes=("lab1.gpu_basics.environment",),
    cases=_described,
    dimensions=(
        Dimension("device", ("not given", "cuda", "cpu"), lambda case: str(case["device"])),
        Dimension("machine", ("with a GPU", "without a GPU"), lambda case: str(case["machine"])),
    ),
    apart={("device=cuda", "machine=without a GPU"): "that is refused"},
)


def _speedups(request: Request) -> Iterator[Case]:
    for rows in request.params["cases"]:
        ordered = sorted(rows)
        yield {"sizes": [row[0] for row in rows], "speedups": [cpu / gpu for _, cpu, gpu in ordered]}


def _order(case: Case) -> str | None:
    sizes = list(case["sizes"])
    if len(sizes) < 2:
        return None
    return {True: "ascending"}.get(sizes == sorted(sizes), "descending" if sizes == sorted(sizes)[::-1] else "mixed")


def _wins(case: Case) -> str | None:
    faster = [ratio > 1 for ratio in case["speedups"]]
    if not faster:
        return None
    if len(set(faster)) == 1:
        return "always" if faster[0] else "never"
    if not faster[-1]:
        return None
    return "from one on" if faster == sorted(faster) else "a lucky one"


def _how_many(case: Case) -> str:
    return ("none", "one")[len(case["sizes"])] if len(case["sizes"]) < 2 else "several"


_ALL_FASTER = "none is as fast there"
CROSSOVER = Space(
    probes=("lab1.gpu_basics.crossover",),
    cases=_speedups,
    dimensions=(
        Dimension("sizes", ("none", "one", "several"), _how_many),
        Dimension("order", ("ascending", "descending", "mixed"), _order),
        Dimension("faster", ("never", "always", "from one on", "a lucky one"), _wins),
        Dimension("as fast", ("none", "one"), lambda case: "one" if 1.0 in case["speedups"] else "none"),
    ),
    apart={
        **{(f"sizes={few}", "order=*"): "there is no order" for few in ("none", "one")},
        ("sizes=none", "faster=*"): "nothing was measured",
        ("sizes=none", "as fast=one"): "nothing was measured",
        ("sizes=one", "faster=from one on"): "that takes several",
        ("sizes=one", "faster=a lucky one"): "that takes several",
        ("faster=always", "as fast=one"): _ALL_FASTER,
    },
)


def _limits(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        size, element = case["size"], case.get("bytes_per_element", 4)
        took = {
            "launch": case["launch_seconds"],
            "memory": 3 * size**2 * element / case["bandwidth_bytes_per_second"],
            "compute": 2 * size**3 / case["peak_tflops"] / 1e12,
        }
        longest = max(took.values())
        equal = [name for name, value in took.items() if abs(value / longest - 1) < 1e-9]
        yield {**case, "answer": equal[0], "equal": len(equal)}


BOUNDS = Space(
    probes=("lab1.gpu_basics.bounds",),
    cases=_limits,
    dimensions=(
        Dimension("answer", ("launch", "memory", "compute"), lambda case: str(case["answer"])),
        Dimension(
            "bytes_per_element",
            ("not given", "1", "2", "4", "8"),
            lambda case: str(case.get("bytes_per_element", "not given")),
        ),
        Dimension(
            "size",
            ("small", "usual", "large"),
            lambda case: "small" if case["size"] < 64 else "usual" if case["size"] < 10**5 else "large",
        ),
        Dimension("equally long", ("none", "two", "three"), lambda case: ("none", "two", "three")[case["equal"] - 1]),
    ),
    apart={
        ("answer=compute", "equally long=two"): "the first of equal ones is taken",
        **{(f"answer={name}", "equally long=three"): "then it is the launch" for name in ("memory", "compute")},
        **{
            (f"equally long={how}", f"{name}={value}"): "equal to the last bit are only limits of such figures"
            for how in ("two", "three")
            for name, value in (
                ("size", "small"),
                ("size", "large"),
                ("bytes_per_element", "not given"),
                ("bytes_per_element", "1"),
            )
        },
    },
)

PEAK_SHARE = Space(
    probes=("lab1.gpu_basics.peak_share",),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension(
            "share",
            ("below 1", "1", "above 1"),
            lambda case: _share(2 * case["size"] ** 3 / case["seconds"] / case["peak_tflops"] / 1e12),
        ),
    ),
)


def _share(ratio: float) -> str:
    return "1" if abs(ratio - 1) < 1e-9 else "below 1" if ratio < 1 else "above 1"


def _network(case: Case) -> str:
    return "deep" if case["batch"] < 3000 else "wide"


_KIND = Dimension("network", ("deep", "wide"), _network)
_GPU = Dimension("GPU", ("cuda", "cuda:0"), lambda case: "cuda:0" if case.get("indexed") else "cuda")
MEMORY = Space(
    probes=("lab1.memory.memory",),
    cases=lambda request: request.params["runs"],
    dimensions=(
        _KIND,
        _GPU,
        Dimension("dtype", ("not given", "float16", "bfloat16"), lambda case: case.get("dtype", "not given")),
    ),
)
PRECISIONS = Space(
    probes=("lab1.memory.memory_precisions",),
    cases=lambda request: request.params["networks"],
    dimensions=(_KIND, _GPU),
)


def _profiles(request: Request) -> Iterator[Case]:
    for peaks in request.params["peaks"]:
        largest = [place for place, peak in enumerate(peaks) if peak == max(peaks)]
        yield {"winner": largest[0], "equal": len(largest) > 1, "count": len(peaks)}


BOTTLENECK = Space(
    probes=("lab1.memory.bottleneck",),
    cases=_profiles,
    dimensions=(
        Dimension(
            "stage",
            ("first", "between", "last"),
            lambda case: {0: "first", case["count"] - 1: "last"}.get(case["winner"], "between"),
        ),
        Dimension("equal ones", ("none", "later"), lambda case: "later" if case["equal"] else "none"),
    ),
    apart={("stage=last", "equal ones=later"): "none comes later"},
)


def _recordings(request: Request) -> Iterator[Case]:
    yield request.params


OPERATIONS = Space(
    probes=("lab1.operations.operations",),
    cases=_recordings,
    dimensions=(
        Dimension("slowest", ("mm", "exp"), lambda case: "mm" if case["size"] > 500 else "exp"),
        Dimension("steps", ("1", "several"), lambda case: "1" if case["steps"] == 1 else "several"),
        Dimension("warmup", ("0", "some"), lambda case: "some" if case["warmup"] else "0"),
        _GPU,
    ),
)


def _lists(request: Request) -> Iterator[Case]:
    for rows, count in zip(request.params["cases"], request.params["counts"], strict=True):
        launching = sum(row[2] > 0 for row in rows)
        yield {"rows": len(rows), "launching": launching, "count": count}


def _asked_for(case: Case) -> str:
    count, rows = case["count"], case["rows"]
    if count is None:
        return "not given"
    return "1" if count == 1 else "some" if count < rows else "all" if count == rows else "more"


SLOWEST = Space(
    probes=("lab1.operations.slowest",),
    cases=_lists,
    dimensions=(
        Dimension("on", ("GPU", "CPU"), lambda case: "GPU" if case["launching"] else "CPU"),
        Dimension("count", ("not given", "1", "some", "all", "more"), _asked_for),
        Dimension("launching", ("all", "some"), lambda case: "some" if 0 < case["launching"] < case["rows"] else "all"),
    ),
    apart={
        ("on=CPU", "launching=some"): "nothing launches on a CPU",
        ("launching=some", "count=all"): "what launches nothing has no order",
        ("launching=some", "count=more"): "what launches nothing has no order",
    },
)


def _comparisons(request: Request) -> Iterator[Case]:
    for rows in request.params["plots"]:
        yield {"sizes": [row[0] for row in rows], "speedups": [cpu / gpu for _, cpu, gpu in rows]}


SPEEDUP_PLOTS = Space(
    probes=("lab1.pictures.benchmark",),
    cases=_comparisons,
    dimensions=(
        Dimension("sizes", ("two or three", "more"), lambda case: "more" if len(case["sizes"]) > 3 else "two or three"),
        Dimension(
            "order",
            ("ascending", "another"),
            lambda case: "ascending" if list(case["sizes"]) == sorted(case["sizes"]) else "another",
        ),
        Dimension("speedups", ("above 1", "on both sides"), lambda case: _sides(case["speedups"])),
    ),
)


def _sides(speedups: list[float]) -> str:
    return "above 1" if min(speedups) > 1 else "on both sides"


MEMORY_PLOTS = Space(
    probes=("lab1.pictures.memory",),
    cases=lambda request: ({"profiles": profiles} for profiles in request.params["plots"]),
    dimensions=(
        Dimension("profiles", ("1", "several"), lambda case: "1" if len(case["profiles"]) == 1 else "several"),
        Dimension(
            "at first",
            ("nothing", "something"),
            lambda case: "something" if case["profiles"][0]["stages"][0]["reserved_bytes"] else "nothing",
        ),
    ),
)

SPACES: tuple[Space, ...] = (
    PRODUCTS,
    REFUSED,
    COMPARED,
    ENVIRONMENT,
    CROSSOVER,
    BOUNDS,
    PEAK_SHARE,
    MEMORY,
    PRECISIONS,
    BOTTLENECK,
    OPERATIONS,
    SLOWEST,
    SPEEDUP_PLOTS,
    MEMORY_PLOTS,
)
WITHOUT: dict[str, str] = {
    "lab1.memory_truth.memory": "our own steps, without the submission",
    "lab1.operations.on_cpu": "one recording on a CPU: how steps and warm-ups differ is asked of a GPU",
    "lab1.products_truth.matmul": "our own products, without the submission, for a picture",
    "lab1.slow_cpu.matmul": "one measurement on a CPU that waits: calls differ in lab1.gpu_basics.matmul",
}
