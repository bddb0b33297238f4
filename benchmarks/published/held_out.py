"""Tables of single kernels that others published: other cards, other shapes, of which a part has no part in a fit.

`python -m benchmarks.published.held_out` prices them and writes `benchmarks/results/published_held_out.json` and two
tables of `docs/how-we-know-figures.md`. Constants of convolutions on a T4 and a V100 were fitted to one of them, and
are fitted again without some of its rows here (`older_cards`), and so are four of kernels that work on rows, which came
from the layers. Nothing was fitted to the others: what a fit of the cards' peaks and memory to a part of them would
bring is shown only. The tables are in `benchmarks/published/tables/`:

- `deepbench_*.csv`: baidu-research/DeepBench@da81ba7 (Apache-2.0), results/train/DeepBench_NV_T4.xlsx and
  DeepBench_NV_V100.xlsx: products and convolutions of speech, vision and translation. Convolutions in 16 bits are in
  NHWC, and sides in 16 bits are rounded up to eight, as its programs do (code/nvidia/conv_bench.cu, gemm_bench.cu).
- `liger.csv`: linkedin/Liger-Kernel@ead96b6 (BSD-2-Clause), benchmark/data/all_benchmark_data.csv: PyTorch's and
  Hugging Face's own layers on an A100 and an H100. It empties the L2 cache before each run, so shapes of which the
  cache could hold much are left out.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor, nn

import vgpu
from benchmarks.measure import percent, save
from benchmarks.measured import captured
from benchmarks.measured.fitting import Constant
from benchmarks.published import contradictions, older_cards, older_pytorch, report
from benchmarks.published.timing import device_seconds
from vgpu.device import convolution_cost, cost
from vgpu.device.kernel_work import PASSES, Convolution
from vgpu.device.pricing import Pricing

_TABLES = Path(__file__).with_name("tables")
_DEEPBENCH, _LIGER = "DeepBench", "Liger-Kernel"
_FFN = 11008
_VOCABULARY = 131072
# Timed with a PyTorch before 2.8; and those whose whole step adds the gradient to that of the step before
# (benchmark/scripts/benchmark_cross_entropy.py: no `grad_to_none`).
_OLDER, _ACCUMULATES = ("cross_entropy", "embedding"), ("cross_entropy",)
Row = Mapping[str, str]
_Version = Callable[[], AbstractContextManager[None]]


class Compared(NamedTuple):
    """One published time of `group` on `gpu`, and what the virtual GPU says, both in seconds.

    `left_out`: the logarithms of published over predicted where a row was left out of a fit, by how it was. `fitted`:
    whether the constants were fitted to its table. `kind` and `sides`: see `contradictions.Kernel`.
    """

    source: str
    gpu: str
    group: str
    name: str
    published: float
    simulated: float
    left_out: Mapping[str, float] = MappingProxyType({})
    fitted: bool = False
    kind: str = ""
    sides: tuple[int, ...] = ()
    contradicted: bool = False

    @property
    def error(self) -> float:
        """Logarithm of published over simulated."""
        return math.log(self.published / self.simulated)

    @property
    def held_out_error(self) -> float:
        """The same of a row that had no part in a fit."""
        return self.left_out["half left out"] if self.fitted else self.error


def main() -> Path:
    """Price all, write the result and the page's table; returns the result's path."""
    cards = older_cards.Cards()
    convolutions = left_out([*_convolutions()], [*_timed_convolutions()], older_cards.of_convolutions())
    products = left_out([*_products()], [*_timed_products(cards)], cards.constants())
    layers, timed = zip(*_layers(cards), strict=True)
    compared = [*products, *(row._replace(fitted=True) for row in convolutions)]
    of_cards = [*compared, *left_out(layers, timed, [*cards.constants(), *older_cards.of_rows()])]
    compared += (row._replace(fitted=True) for row in left_out(layers, timed, older_cards.of_rows()))
    compared = _with_contradictions(compared)
    groups = _groups(compared)
    report.replace("held out", table(groups))
    report.replace("older cards", table_of_fits(_groups(of_cards)))
    return save(
        "published_held_out",
        {
            "groups": {name: _summary(members) for name, members in groups.items()},
            "rows": [
                {
                    "source": row.source, "gpu": row.gpu, "group": row.group, "name": row.name,
                    "published_seconds": row.published, "ratio": older_cards.ratio(row.error),
                    "fitted": row.fitted, "contradicted": row.contradicted,
                    "left_out": {name: older_cards.ratio(error) for name, error in row.left_out.items()},
                }
                for row in compared
            ],
        },
    )  # fmt: skip


def _with_contradictions(compared: Sequence[Compared]) -> list[Compared]:
    kernels = [
        contradictions.Kernel(f"{row.source}, {row.gpu}: {row.group}, {row.kind}", row.sides, row.published)
        for row in compared
    ]
    return [row._replace(contradicted=is_so) for row, is_so in zip(compared, contradictions.of(kernels), strict=True)]


def _groups(compared: Iterable[Compared]) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for row in compared:
        groups.setdefault(f"{row.source}, {row.gpu}: {row.group}", []).append(row)
    return groups


def _summary(rows: Sequence[Compared]) -> dict[str, float]:
    sizes = [abs(row.held_out_error) for row in rows]
    far = [row for row, size in zip(rows, sizes, strict=True) if size > math.log(2)]
    return {
        "values": len(rows),
        "median_error": round(math.expm1(statistics.median(sizes)), 4),
        "within_a_fifth": round(sum(size <= math.log(1.2) for size in sizes) / len(sizes), 4),
        "beyond_a_factor_of_two": len(far),
        "contradicted": sum(row.contradicted for row in rows),
        "beyond_and_not_contradicted": sum(not row.contradicted for row in far),
        "median_ratio": round(math.exp(statistics.median(row.held_out_error for row in rows)), 4),
    }


def table(groups: Mapping[str, Sequence[Compared]]) -> list[str]:
    """Lines of Markdown: a row for each group, one for each source, and one for all."""
    lines = [
        "| what | times | median error | within 20 % | beyond a factor of two | contradicted | "
        "beyond, not contradicted | median ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    everything = [row for members in groups.values() for row in members]
    by_source = {
        f"**all of {source}**": [row for row in everything if row.source == source]
        for source in dict.fromkeys(row.source for row in everything)
    }
    for name, members in {**groups, **by_source, "**all**": everything}.items():
        summary = _summary(members)
        lines.append(
            f"| {name} | {summary['values']} | {percent(summary['median_error'])} "
            f"| {percent(summary['within_a_fifth'])} | {summary['beyond_a_factor_of_two']} "
            f"| {summary['contradicted']} | {summary['beyond_and_not_contradicted']} "
            f"| {summary['median_ratio']:.2f} |"
        )
    return lines


def table_of_fits(groups: Mapping[str, Sequence[Compared]]) -> list[str]:
    """Lines of Markdown: the median error of each group by what was left out of a fit."""
    groups = {name: rows for name, rows in groups.items() if rows[0].gpu in older_cards.PRECISIONS}
    by_card: dict[str, list[Compared]] = {}
    for row in (row for rows in groups.values() for row in rows):
        by_card.setdefault(f"**{row.gpu}, all**", []).append(row)
    columns = ["as it is", "nothing fitted", *older_cards.SPLITS]
    lines = ["| what | times | " + " | ".join(columns) + " |", "|---|---:|" + "---:|" * len(columns)]
    for name, rows in {**groups, **by_card}.items():
        errors = [[row.error for row in rows], *([row.left_out[column] for row in rows] for column in columns[1:])]
        cells = " | ".join(percent(math.expm1(statistics.median(map(abs, column)))) for column in errors)
        lines.append(f"| {name} | {len(rows)} | {cells} |")
    return lines


def _read(name: str) -> list[dict[str, str]]:
    with (_TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _precision(dtype: str) -> str:
    return "FP32" if dtype == "float32" else "FP16"


# ---- DeepBench: products and convolutions ----------------------------------------------------------------------------


def left_out(
    rows: Sequence[Compared], timed: Sequence[older_cards.Timed], known: Sequence[Constant]
) -> Iterator[Compared]:
    """The rows, each with its errors where it had no part in a fit of these constants."""
    errors = older_cards.errors(timed, known)
    for index, row in enumerate(rows):
        yield row._replace(left_out={name: float(values[index]) for name, values in errors.items()})


def _products() -> Iterator[Compared]:
    for timed, row in zip(_timed_products(None), _read("deepbench_products.csv"), strict=True):
        group = f"products {_precision(row['dtype'])}"
        yield Compared(_DEEPBENCH, row["gpu"], group, timed.shape, timed.measured, timed.price(), sides=_sides(row))


def _sides(row: Row) -> tuple[int, ...]:
    sides = (int(row[name]) for name in ("m", "n", "k"))
    return tuple(_rounded(side) if row["dtype"] == "float16" else side for side in sides)


def _timed_products(cards: older_cards.Cards | None) -> Iterator[older_cards.Timed]:
    """Priced on these cards; None: as they are."""
    spec = cards.spec if cards else vgpu.get_spec
    for row in _read("deepbench_products.csv"):
        sides = _sides(row)

        def price(gpu: str = row["gpu"], sides: Sequence[int] = sides, dtype: str = row["dtype"]) -> float:
            return cost.matmul_seconds(spec(gpu), sides[0], sides[1], sides[2], dtype)

        name = f"{row['m']} x {row['n']} x {row['k']} {row['transposed']}"
        yield older_cards.Timed(name, row["transposed"], row["gpu"], float(row["ms"]) / 1e3, price)


def _rows_of_convolutions() -> Iterator[tuple[Row, str]]:
    for row in _read("deepbench_convolutions.csv"):
        for kind in PASSES:
            if row[f"{kind}_ms"]:
                yield row, kind


def _convolutions() -> Iterator[Compared]:
    for row, kind in _rows_of_convolutions():
        timed = _timed(row, kind)
        group = f"convolutions {_precision(row['dtype'])}, {_TITLES[kind]}"
        work = convolution_of(row, kind)
        yield Compared(
            _DEEPBENCH, row["gpu"], group, timed.shape, timed.measured, timed.price(), kind=f"{work.window}",
            sides=(work.images, work.channels, work.filters, work.input_places, work.result_places),
        )  # fmt: skip


def _timed_convolutions() -> Iterator[older_cards.Timed]:
    return (_timed(row, kind) for row, kind in _rows_of_convolutions())


def _timed(row: Row, kind: str) -> older_cards.Timed:
    spec, work = vgpu.get_spec(row["gpu"]), convolution_of(row, kind)
    shape = (
        f"{row['window_width']}x{row['window_height']}, {row['channels']} to {row['filters']}, "
        f"{row['images']} of {row['width']} x {row['height']}"
    )
    window = f"{work.window}, strided" if work.strided else f"{work.window}"
    seconds = float(row[f"{kind}_ms"]) / 1e3
    return older_cards.Timed(
        shape, window, row["gpu"], seconds, lambda: convolution_cost.seconds(spec, work, row["dtype"], tf32=False)
    )


_TITLES = {"forward": "forward", "input": "gradient of images", "weight": "gradient of filters"}


def convolution_of(row: Row, kind: str) -> Convolution:
    """A row of the table as work: FP32 in NCHW, 16 bits in NHWC with channels rounded up to eight."""
    sides = []
    for axis in ("width", "height"):
        room = int(row[axis]) + 2 * int(row[f"pad_{axis}"]) - int(row[f"window_{axis}"])
        sides.append(room // int(row[f"stride_{axis}"]) + 1)
    channels, filters = int(row["channels"]), int(row["filters"])
    planar = row["dtype"] == "float32"
    if not planar:
        channels, filters = _rounded(channels), _rounded(filters)
    return Convolution(
        (kind,), int(row["images"]), channels, filters, int(row["width"]) * int(row["height"]), sides[0] * sides[1],
        int(row["window_width"]) * int(row["window_height"]),
        strided=(row["stride_width"], row["stride_height"]) != ("1", "1"), planar_input=planar, planar_result=planar,
    )  # fmt: skip


def _rounded(side: int) -> int:
    return -(-side // 8) * 8


# ---- Liger-Kernel: layers as PyTorch and Hugging Face have them ------------------------------------------------------


class _RMSNorm(nn.Module):
    """Hugging Face's, with weights in FP32."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class _GatedFFN(nn.Module):
    """Llama's, without biases."""

    def __init__(self, columns: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(columns, _FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(_FFN, columns, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return result


def _layer(kernel: str, rows: int, columns: int, dtype: torch.dtype) -> tuple[Callable[[], Tensor], Tensor | None]:
    """The call, and the input whose gradient is cleared between calls."""
    if kernel == "embedding":
        table, tokens = nn.Embedding(_VOCABULARY, columns).cuda(), torch.zeros(rows, dtype=torch.long, device="cuda")
        return lambda: table(tokens), None
    x = torch.randn(rows, columns, device="cuda", dtype=dtype, requires_grad=True)
    if kernel == "cross_entropy":
        labels = torch.zeros(rows, dtype=torch.long, device="cuda")
        return lambda: F.cross_entropy(x, labels), x
    if kernel == "relu_squared":
        return lambda: torch.square(F.relu(x)), x
    if kernel == "rms_norm":
        norm = _RMSNorm(columns).cuda()
        return lambda: norm(x), x
    if kernel == "layer_norm":
        layer = nn.LayerNorm(columns).cuda().to(dtype)
        return lambda: layer(x), x
    gelu: Callable[[Tensor], Tensor] = lambda y: F.gelu(y, approximate="tanh")  # noqa: E731
    ffn = _GatedFFN(columns, gelu if kernel == "geglu" else F.silu).cuda().to(dtype)
    return lambda: ffn(x), x


def _layers(cards: older_cards.Cards) -> Iterator[tuple[Compared, older_cards.Timed]]:
    """Each layer, and the same to be priced on these cards."""
    for row in _read("liger.csv"):
        rows, columns = int(row["rows"]), int(row["columns"])
        dtype: torch.dtype = getattr(torch, row["dtype"])
        spec = vgpu.get_spec(row["gpu"])
        if 2 * rows * columns * dtype.itemsize < 2 * spec.l2_bytes:
            continue
        version = older_pytorch.before_2_8 if row["kernel"] in _OLDER else nullcontext
        with version(), vgpu.attach(row["gpu"], values=False):
            step = _step(row, rows, columns, dtype)
            seconds = device_seconds(step, times=2, warmup=1)
            with captured.watched() as pieces:
                step()
        group = row["kernel"].replace("_", " ")
        name = f"{row['mode']}, {rows} x {columns} {row['dtype']}"
        measured = float(row["ms"]) / 1e3

        def price(
            gpu: str = row["gpu"], pieces: Sequence[captured.Piece] = pieces, version: _Version = version
        ) -> float:
            spec = cards.spec(gpu)
            pricing = Pricing(spec, vgpu.get_interconnect(spec.interconnect))
            with version():
                return sum(pricing.seconds(piece.now()) for piece in pieces)

        kind, sides = f"{row['mode']} {row['dtype']}", (rows, columns)
        compared = Compared(_LIGER, row["gpu"], group, name, measured, seconds, kind=kind, sides=sides)
        yield compared, older_cards.Timed(f"{group}, {rows} x {columns}", group, row["gpu"], measured, price)


def _step(row: Row, rows: int, columns: int, dtype: torch.dtype) -> Callable[[], object]:
    call, x = _layer(row["kernel"], rows, columns, dtype)
    if row["mode"] == "forward":
        return call
    result = call()
    gradient = torch.randn_like(result)

    def backward(of: Tensor) -> None:
        if x is not None and not (row["kernel"] in _ACCUMULATES and row["mode"] == "full"):
            x.grad = None
        of.backward(gradient, retain_graph=True)

    if row["mode"] == "backward":
        return lambda: backward(result)
    return lambda: backward(call())


if __name__ == "__main__":
    print(main())
