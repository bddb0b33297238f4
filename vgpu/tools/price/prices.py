"""What a recorded run takes on a card: time, memory, utilisation, the costliest operations, money.

Not here: the command (`vgpu.tools.price.command`), and pictures (`vgpu.tools.price.picture`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from vgpu.device.errors import SpecError
from vgpu.device.recording.file import Recording
from vgpu.device.recording.replay import Replay, replay
from vgpu.device.spec import Interconnect, Spec, get_interconnect
from vgpu.runtime.views import panels
from vgpu.runtime.views.report import costs
from vgpu.runtime.views.thinning import bytes_text, seconds_text

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Conditions:
    """What is otherwise than it was: the link, the pace of all devices, that of single ranks, money."""

    interconnect: str | None = None
    pace: float = 1.0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    dollars_per_hour: Mapping[str, float] = field(default_factory=dict)
    """By card, for one GPU."""


@dataclass(frozen=True)
class OperationPrice:
    """All calls of one operation in one precision, on all ranks."""

    name: str
    precision: str
    calls: int
    seconds: float
    share: float
    """Of the devices' busy time."""
    bound: str


@dataclass(frozen=True)
class Price:
    """A run on one card. Without `problem` it can run there."""

    gpu: str
    title: str
    interconnect: str
    problem: str = ""
    seconds: float = 0.0
    """From attach to the end, on the last rank."""
    start_up_seconds: float = 0.0
    """Of the host's time, to create the context and to load libraries."""
    busy_ratio: float = 0.0
    """Share of the time since its first kernel in which the busiest device worked; of several ranks, their mean."""
    needed_bytes: int = 0
    """Reserved at most, with the context."""
    memory_bytes: int = 0
    dollars: float | None = None
    operations: tuple[OperationPrice, ...] = ()

    @property
    def working_seconds(self) -> float:
        """What is left without start-up, which is the same for a short run and a long one."""
        return max(self.seconds - self.start_up_seconds, 0.0)

    @property
    def fits(self) -> bool:
        """Whether it can run there, and the card has the memory that was needed."""
        return not self.problem and self.needed_bytes <= self.memory_bytes


def price(recordings: Sequence[Recording], spec: Spec, conditions: Conditions) -> tuple[Price, list[Replay]]:
    """Replay a run, one recording for each process. Where the card cannot do it, the price says why."""
    link = _link(spec, conditions)
    try:
        runs = replay(recordings, spec, link, pace=conditions.pace, slow=dict(conditions.slow_ranks))
    except SpecError as error:
        return Price(spec.name, spec.title, link.name, problem=str(error)), []
    seconds = max(run.seconds for run in runs)
    rate = conditions.dollars_per_hour.get(spec.name)
    gpus = sum(max(sum(bool(queue.timeline) for queue in run.queues), 1) for run in runs)
    result = Price(
        gpu=spec.name,
        title=spec.title,
        interconnect=link.name,
        seconds=seconds,
        start_up_seconds=max(run.start_up_seconds for run in runs),
        busy_ratio=sum(run.busy_ratio for run in runs) / len(runs),
        needed_bytes=max(recording.reserved_bytes for recording in recordings) + spec.context_bytes,
        memory_bytes=spec.memory_bytes,
        dollars=None if rate is None else rate * gpus * seconds / _SECONDS_PER_HOUR,
        operations=_operations(runs),
    )
    return result, runs


def _link(spec: Spec, conditions: Conditions) -> Interconnect:
    return get_interconnect(conditions.interconnect or spec.interconnect, spec)


def _operations(runs: Sequence[Replay]) -> tuple[OperationPrice, ...]:
    kernels = [kernel for run in runs for kernel in run.kernels]
    whole = sum(kernel.seconds for kernel in kernels) or 1.0
    return tuple(
        OperationPrice(cost.name, cost.precision, cost.calls, cost.seconds, cost.seconds / whole, cost.bound)
        for cost in costs(runs[0].spec, kernels)
    )


def table(prices: Sequence[Price], recordings: Sequence[Recording]) -> Table:
    """For people; the one that is fastest after start-up, among those that fit, is in bold."""
    first = recordings[0]
    ranks = f", {len(recordings)} ranks" if len(recordings) > 1 else ""
    title = f"{first.program or 'a run'} (recorded on {first.gpu}{ranks})"
    made = Table(
        title=title, caption="modelled, not measured", title_justify="left", caption_justify="left", box=SIMPLE
    )
    with_link = len(recordings) > 1
    with_cost = any(card.dollars is not None for card in prices)
    made.add_column("GPU", no_wrap=True)
    if with_link:
        made.add_column("link", no_wrap=True)
    for name in ("start-up", "then", "GPU busy", "memory", "needed", *(["cost"] if with_cost else [])):
        made.add_column(name, justify="right", no_wrap=True)
    able = [card.working_seconds for card in prices if card.fits]
    for card in prices:
        cells = [card.gpu, card.interconnect] if with_link else [card.gpu]
        if card.problem:
            made.add_row(*cells, "cannot", style="dim")
            continue
        share = f"{card.needed_bytes / card.memory_bytes:.0%}"
        cells += [seconds_text(card.start_up_seconds), seconds_text(card.working_seconds), f"{card.busy_ratio:.0%}"]
        cells += [bytes_text(card.memory_bytes), share if card.fits else f"[red]{share}[/red]"]
        if with_cost:
            cells.append("-" if card.dollars is None else f"${card.dollars:.2g}")
        made.add_row(*cells, style="bold" if card.fits and card.working_seconds == min(able) else "")
    return made


def remarks(prices: Sequence[Price], operations: int) -> list[str]:
    """A line for each card: what it spends its time with, or why it cannot run this."""
    lines = []
    for card in prices:
        text = ", ".join(_told(each) for each in card.operations[:operations]) or "nothing ran on a GPU"
        if card.problem:
            text = f"cannot run it: {card.problem}"
        elif not card.fits:
            text += f"; needs {bytes_text(card.needed_bytes)}, which it does not have"
        lines.append(f"{card.gpu}: {text}")
    return lines


def _told(operation: OperationPrice) -> str:
    precision = f" {operation.precision}" if operation.precision else ""
    return f"{panels.short_name(operation.name)}{precision} {operation.share:.0%}"


def document(prices: Sequence[Price], recordings: Sequence[Recording], conditions: Conditions) -> dict[str, Any]:
    """For programs: seconds, bytes, ratios."""
    first = recordings[0]
    return {
        "simulated": True,
        "recorded": {
            "program": first.program, "gpu": first.gpu, "torch": first.torch, "processes": len(recordings),
            "seconds": max(recording.seconds for recording in recordings),
        },
        "conditions": asdict(conditions),
        "prices": [{**asdict(card), "working_seconds": card.working_seconds, "fits": card.fits} for card in prices],
    }  # fmt: skip
