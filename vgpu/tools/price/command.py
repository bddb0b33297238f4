"""`python -m vgpu price`: what a recorded run takes on other cards and under other conditions.

Not here: `python -m vgpu record` (`vgpu.__main__`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from vgpu.device.errors import SpecError, Unsupported
from vgpu.device.recording.file import SUFFIX, Recording, RecordingError, load
from vgpu.device.spec import Spec, get_interconnect, get_spec, list_specs
from vgpu.runtime.outputs import OutputError, require_writable
from vgpu.runtime.views.picture import check_path
from vgpu.tools.price import picture, prices
from vgpu.tools.price.prices import Conditions

_Key = TypeVar("_Key")
_EPILOG = """examples:
  python -m vgpu record -o run.vgpu --shapes-only train.py
  python -m vgpu price run.vgpu                                  on every card that vgpu knows
  python -m vgpu price run.vgpu --gpu T4,H100 --picture two.png  two timelines above each other
  python -m vgpu price run.vgpu --gpu A100-80GB --slow-rank 1=1.3 --interconnect pcie4

The program does not run again: what it did is sent to other cards. A decision by a value or a time stays as it
was. Times are modelled, not measured."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 2 for bad options or files, 1 where no card can do it, else 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        specs = [get_spec(name.strip()) for name in options.gpu.split(",")] if options.gpu else _all_specs()
        conditions = Conditions(
            options.interconnect,
            _positive("--pace", options.pace),
            _pairs("--slow-rank", options.slow_rank, int),
            _pairs("--dollars", options.dollars, str),
        )
        for spec in specs:
            get_interconnect(conditions.interconnect or spec.interconnect, spec)
        _check_names("--dollars", set(conditions.dollars_per_hour), [spec.name for spec in specs])
        recordings = _load(options.recordings)
        known = [str(recording.rank or 0) for recording in recordings]
        _check_names("--slow-rank", {str(rank) for rank in conditions.slow_ranks}, known)
        for path in (options.picture, options.json if options.json != Path("-") else None):
            if path is not None:
                require_writable(path)
        if options.picture is not None:
            check_path(options.picture)
    except (SpecError, RecordingError, OutputError, ValueError) as error:
        print(f"python -m vgpu price: {error}", file=sys.stderr)
        return 2
    priced = [prices.price(recordings, spec, conditions) for spec in specs]
    results = [price for price, _ in priced]
    console = Console(stderr=options.json == Path("-"))
    console.print(prices.table(results, recordings))
    for line in prices.remarks(results, options.operations):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if options.json is not None:
        text = json.dumps(prices.document(results, recordings, conditions), indent=1)
        if options.json == Path("-"):
            print(text)
        else:
            options.json.write_text(text + "\n", encoding="utf-8")
    if options.picture is not None:
        # Of several ranks the first; of cards those that can run it.
        drawn = [runs[0] for _, runs in priced if runs]
        try:
            if drawn:
                picture.save(drawn, options.picture, title=recordings[0].program or "a recorded run")
        except Unsupported as error:
            print(f"python -m vgpu price: {error}", file=sys.stderr)
            return 2
    return 0 if any(not price.problem for price in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vgpu price",
        description="Price a recorded run on other cards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recordings", nargs="+", type=Path, metavar="FILE", help="run.vgpu; of several ranks, all their files"
    )
    parser.add_argument("--gpu", metavar="NAMES", help="names from `list`, or .toml files, with commas (default: all)")
    parser.add_argument("--interconnect", metavar="NAME", help="what joins the GPUs (default: as usual for each card)")
    parser.add_argument("--pace", type=float, default=1.0, metavar="X", help="all devices take X times as long")
    parser.add_argument(
        "--slow-rank", action="append", default=[], metavar="RANK=X", help="that rank's device takes X times as long"
    )
    parser.add_argument(
        "--dollars", action="append", default=[], metavar="GPU=D", help="what one GPU costs in an hour: adds a column"
    )
    parser.add_argument("--operations", type=int, default=3, metavar="N", help="how many operations are named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it all for programs (-: to stdout)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the timelines (.png, .svg, .pdf)")
    return parser


def _all_specs() -> list[Spec]:
    return [get_spec(name) for name in list_specs()]


def _load(paths: Sequence[Path]) -> list[Recording]:
    """The recordings, by rank; for `run.vgpu`, those of its ranks where there are such."""
    recordings: list[Recording] = []
    for path in paths:
        ranks = sorted(path.parent.glob(f"{path.stem}.rank*{SUFFIX}"))
        recordings += [load(file) for file in (ranks if ranks and not path.is_file() else [path])]
    recordings.sort(key=lambda recording: recording.rank or 0)
    if (
        len({(recording.rank, recording.ranks) for recording in recordings}) < len(recordings)
        or len({recording.ranks for recording in recordings}) > 1
    ):
        raise RecordingError("these files are not the ranks of one run: price one run at a time")
    return recordings


def _positive(option: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{option} {value:g}: a factor above 0, please")
    return value


def _pairs(option: str, texts: Sequence[str], kind: Callable[[str], _Key]) -> dict[_Key, float]:
    values = {}
    for text in ",".join(texts).split(",") if texts else ():
        name, equals, value = text.partition("=")
        try:
            values[kind(name.strip())] = _positive(option, float(value))
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"{option} {text}: expected a name, = and a number above 0")
    return values


def _check_names(option: str, names: set[str], known: Sequence[str]) -> None:
    for name in sorted(names - set(known)):
        raise ValueError(f"{option} {name}: there is only {', '.join(known)}")
