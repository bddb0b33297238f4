"""How the inputs of Lab 4's attention are drawn: operands, lengths of queries and keys, and what calls differ in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from grader.lab4.attention.cases.types import (
    Attend,
    Benchmark,
    BenchmarkCall,
    Call,
    ChangedKey,
    DrawnCall,
    Future,
    Installed,
    Largest,
    Result,
)
from grader.lab4.shared.cases import flag
from grader.shared.cases import full_rows
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request


class Operands(TypedDict):
    """Query, key, value and the gradient of the output, by the names that probes have for them."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    gradient: NDArray[np.float32]


def as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to 8 significant bits, so that every format of the course holds them exactly."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def operands(generator: InputGenerator) -> Operands:
    """Operands that every format holds exactly, shared by all checks of one grading."""
    generator = generator.shared("lab4.attention")
    heads, width, longest = generator.integer(2, 3), generator.odd(9, 21), 45

    def drawn() -> NDArray[np.float32]:
        return as_bfloat16(generator.normal(2, heads, longest, width))

    return Operands(q=drawn(), k=drawn(), v=drawn(), gradient=drawn())


def calls_of(generator: InputGenerator, dtype: str, block_size: int | None = None) -> list[DrawnCall]:
    """Causal and not; as many keys as queries, more and fewer; all lengths odd."""
    generator = generator.shared("lab4.lengths")
    short, middle, long = generator.odd(9, 15), generator.odd(23, 31), generator.odd(37, 45)
    pairs = ((middle, middle), (short, long), (long, short), (1, middle))
    return [
        DrawnCall(dtype=dtype, queries=queries, keys=keys, causal=causal, block_size=block_size)
        for queries, keys in pairs
        for causal in (False, True)
    ]


def standard_calls(generator: InputGenerator) -> list[DrawnCall]:
    """Calls of standard attention: in float64, with large scores, and in both 16-bit types."""
    calls = calls_of(generator, "float64")
    large = [replace(call, factor=256) for call in calls[:2]]
    half = [replace(call, dtype="float16") for call in calls[4:6]]
    return [*calls, *large, *half, *(replace(call, dtype="bfloat16") for call in calls[:4])]


def flash_calls(generator: InputGenerator) -> list[DrawnCall]:
    """Calls of flash attention in the types that kernels have, some with a query that does not see everything."""
    calls = [*calls_of(generator, "float32"), *calls_of(generator, "float16")]
    few = replace(calls[-1], queries=2)
    return [*calls, few, *(replace(call, dtype="bfloat16") for call in calls[:2])]


def tiled_calls(generator: InputGenerator) -> list[DrawnCall]:
    """Calls of tiled attention: with several tiles and with one, with large scores, and in both 16-bit types."""
    # Equal, fewer and more queries, causal; once without a mask, once in a single tile, once in each 16-bit type.
    calls = calls_of(generator, "float64", block_size=generator.odd(7, 13))[:6]
    calls += calls_of(generator, "float64", block_size=128)[1:2]
    # Few queries, many tiles.
    many = replace(calls[0], dtype="float16", queries=5, keys=calls[2].keys, causal=True, block_size=3)
    calls += [many, replace(many, dtype="bfloat16", causal=False), replace(calls[0], dtype="bfloat16")]
    # Large scores; tiles of one key; more queries than a single key.
    calls.append(replace(calls[generator.integer(0, 3)], factor=256))
    calls.append(DrawnCall(dtype="float64", queries=5, keys=7, causal=True, block_size=1))
    calls.append(DrawnCall(dtype="float64", queries=2, keys=7, causal=True, block_size=4))
    causal = generator.integer(0, 1) == 1
    calls.append(DrawnCall(dtype="float64", queries=3, keys=1, causal=causal, block_size=4))
    # Many keys in one tile, so that nothing is added up over tiles and one rounding is left.
    low = generator.shuffled(["float16", "bfloat16"])[0]
    calls.append(replace(calls[0], dtype=low, keys=calls[2].keys, block_size=128))
    return calls


_LENGTHS = {
    "as many": (19, 19),
    "fewer queries": (9, 25),
    "more queries": (25, 9),
    "one query": (1, 17),
    "one key": (7, 1),
}
_SHORT = {"as many": (5, 5), "fewer queries": (4, 7), "more queries": (7, 4), "one query": (1, 6), "one key": (5, 1)}
"""With tiles of one key: a loop over these tiles, for strips of as many queries, takes long."""
_BLOCK_SIZES = ("1", "4", "9", "64")
_NEEDED = {"all": "QKV", "queries": "Q", "keys and values": "KV"}


def mixed_calls(generator: InputGenerator, function: str) -> list[DrawnCall]:
    """Calls in which lengths, types, large scores, views and needed gradients meet."""
    space = SPACES_OF_CALLS[function]
    values = space.values({"tiles": _BLOCK_SIZES} if space is TILED else {})
    rows = full_rows(generator.shared(f"lab4.mixed.{function}"), values, 7, space.allows)
    return [_mixed_call(row) for row in rows]


def _mixed_call(row: Mapping[str, str]) -> DrawnCall:
    block_size = int(row["tiles"]) if "tiles" in row else None
    queries, keys = (_SHORT if block_size == 1 else _LENGTHS)[row["lengths"]]
    return DrawnCall(
        dtype=row["dtype"],
        queries=queries,
        keys=keys,
        causal=row["causal"] == "yes",
        block_size=block_size,
        factor=256 if row["scores"] == "large" else 1,
        transposed=row["operands"] == "views",
        needed=_NEEDED[row["gradients of"]],
        alone=row["heads"] == "one",
    )


def changed_keys(generator: InputGenerator) -> list[ChangedKey]:
    """As many queries as keys, fewer and more, of which the first ones see nothing at all."""
    long, short = generator.odd(25, 31), generator.odd(9, 15)
    return [
        ChangedKey(queries=queries, keys=keys, changed=generator.integer(keys // 2, keys - 1))
        for queries, keys in ((long, long), (short, long), (long, short))
    ]


def square_calls(generator: InputGenerator, function: str, *, causal: bool) -> list[Call]:
    """As many keys as queries, fewer and more, of long sequences, in float32 and float16."""
    generator = generator.shared(f"lab4.largest.{function}.{causal}")
    long, short = generator.odd(3901, 4101), generator.odd(2701, 2901)
    block_size = 256 if function == "tiled_attention" else None
    lengths = generator.shuffled([(long, long), (short, long), (long, short)])
    dtypes = generator.shuffled(["float32", "float32", "float16"])
    return [
        Call(dtype=dtype, queries=queries, keys=keys, causal=causal, block_size=block_size)
        for (queries, keys), dtype in zip(lengths, dtypes, strict=True)
    ]


def benchmark(generator: InputGenerator, *, simulated: bool) -> Benchmark:
    """Benchmarks: one that is measured, one whose iterations are counted, and one on the CPU."""
    measured = BenchmarkCall(
        # Memory runs out at the one in the middle, and what follows is measured all the same.
        lengths=[generator.odd(3101, 3501), 40001, generator.odd(2101, 2501)],
        methods=generator.shuffled(["standard", "flash"]),
        dtype="float16",
        batch=1 if simulated else 2,  # so that a real GPU's times are long against its launches
        heads=generator.integer(9, 12),
        head_dim=64,
        causal=generator.integer(0, 1) == 1,
    )
    iterations = generator.integer(2, 3)
    counted = BenchmarkCall(
        lengths=[65],
        methods=["tiled", "standard"],
        dtype="float32",
        batch=2,
        heads=2,
        head_dim=8,
        causal=not measured.causal,
        iterations=iterations,
        warmup=2 * iterations + 1,  # exchanged, most of the timed ones would be such as wake the device up
    )
    on_cpu = replace(
        counted, lengths=[7], methods=["flash"], iterations=1, warmup=1, causal=generator.integer(0, 1) == 1
    )
    return Benchmark(measured=measured, counted=counted, on_cpu=on_cpu)


def made_up_results(generator: InputGenerator) -> list[Result]:
    """Results for the plot whose figures are all different, in bytes and seconds that no power of ten or two hides."""
    lengths = [generator.odd(400 * index, 500 * index) for index in (1, 2, 4)]
    return [_result(method, length, lengths, generator) for length in lengths for method in ("standard", "flash")]


def _result(method: str, length: int, lengths: list[int], generator: InputGenerator) -> Result:
    died = method == "standard" and length == max(lengths)
    return {
        "device": "cuda",
        "method": method,
        "backend": "sdpa" if method == "flash" else "torch",
        "dtype": "float16",
        "length": length,
        "seconds": None if died else generator.log_uniform(1e-4, 1e-1),
        "peak_bytes": None if died else generator.integer(10**6, 10**9),
    }


_CAUSAL = flag("causal", "causal")


def _lengths(case: Case) -> str:
    queries, keys = case["queries"], case["keys"]
    return "as many" if queries == keys else "fewer queries" if queries < keys else "more queries"


def _calls(function: str) -> Callable[[Request], Iterator[Case]]:
    def calls(request: Request) -> Iterator[Case]:
        if request.params["function"] == function:
            yield from request.params["calls"]

    return calls


def _ends(case: Case) -> str:
    return "one query" if case["queries"] == 1 else "one key" if case["keys"] == 1 else _lengths(case)


def _tiles(case: Case) -> str:
    block, keys = case["block_size"], case["keys"]
    return "of one key" if block == 1 else "one" if block >= keys else "several"


def _gradients(case: Case) -> str:
    return next(name for name, needed in _NEEDED.items() if needed == case["needed"])


_ATTENTION = (
    Dimension("lengths", tuple(_LENGTHS), _ends),
    _CAUSAL,
    Dimension("dtype", ("float64", "float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
    Dimension("scores", ("small", "large"), lambda case: "large" if case["factor"] > 1 else "small"),
    Dimension("operands", ("contiguous", "views"), lambda case: "views" if case["transposed"] else "contiguous"),
    Dimension("gradients of", tuple(_NEEDED), _gradients),
    Dimension("heads", ("several", "one"), lambda case: "one" if case["alone"] else "several"),
)
_ROUNDED = "scores may be rounded to 16 bits, after which large ones are equal"
STANDARD, FLASH = (
    Space(
        probes=(Attend.probe,),
        cases=_calls(f"{name}_attention"),
        dimensions=_ATTENTION,
        apart={("dtype=float16", "scores=large"): _ROUNDED, ("dtype=bfloat16", "scores=large"): _ROUNDED},
    )
    for name in ("standard", "flash")
)
TILED = Space(
    probes=(Attend.probe,),
    cases=_calls("tiled_attention"),
    dimensions=(*_ATTENTION, Dimension("tiles", ("of one key", "several", "one"), _tiles)),
    apart={("lengths=one key", "tiles=several"): "one key is one tile"},
)
SPACES_OF_CALLS = {"standard_attention": STANDARD, "flash_attention": FLASH, "tiled_attention": TILED}
_FUNCTION = Dimension("function", ("flash_attention", "tiled_attention"), lambda case: str(case["function"]))
_LENGTHS_COMPARED = Dimension("lengths", ("as many", "fewer queries", "more queries"), _lengths)


def _changes(request: Request) -> Iterator[Case]:
    for function in request.params["functions"]:
        for case in request.params["cases"]:
            for how in ("in training", "without gradients"):
                yield {**case, "function": function, "how": how}


FUTURE = Space(
    probes=(Future.probe,),
    cases=_changes,
    dimensions=(
        _FUNCTION,
        _LENGTHS_COMPARED,
        Dimension("how", ("in training", "without gradients"), lambda case: str(case["how"])),
    ),
)


def _sized(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        yield {**case, "function": request.params["function"]}


LARGEST = Space(
    probes=(Largest.probe,),
    cases=_sized,
    dimensions=(
        _FUNCTION,
        _LENGTHS_COMPARED,
        _CAUSAL,
        Dimension("dtype", ("float32", "float16"), lambda case: str(case["dtype"])),
    ),
)


def _installed(request: Request) -> Iterator[Case]:
    if not request.params["benchmarks"]:
        yield {**request.params, "gpu": request.device.removeprefix("vgpu:")}


def _modules(case: Case) -> str:
    return "both" if len(case["modules"]) == 2 else "version 4" if "flash_attn.cute" in case["modules"] else "version 2"


INSTALLED = Space(
    probes=(Installed.probe,),
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
    for name in ("measured", "counted", "on_cpu"):
        yield {**request.params[name], "device": "cpu" if name == "on_cpu" else "gpu"}


_PRODUCT = "batch and heads count as one product, on which the figures depend"
BENCHMARK = Space(
    probes=(Benchmark.probe,),
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
        ("dtype=float16", "batch=several"): _PRODUCT,
        ("dtype=float32", "batch=one"): _PRODUCT,
    },
)

SPACES = (STANDARD, FLASH, TILED, FUTURE, LARGEST, INSTALLED, BENCHMARK)
