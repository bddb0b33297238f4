"""The work of each recorded kernel, kept: so it can be priced again with other constants, without running PyTorch.

Not here: which constants (`benchmarks.measured.fitting`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

import vgpu
from benchmarks.measured import cases
from benchmarks.published.timing import allow_tf32
from vgpu.device.kernel_work import TRAFFIC, KernelWork
from vgpu.device.pricing import Pricing
from vgpu.runtime.operations import kernel_cost, traffic
from vgpu.runtime.operations.operation import Operation
from vgpu.tools.calibrate.compare import match_spec
from vgpu.torch_integration.dispatch import repeats

RECORD = Path(__file__).parents[1] / "results" / "h100.json"


class Piece(NamedTuple):
    """One kernel, with the call that it came from."""

    work: KernelWork
    operation: Operation
    args: Sequence[Any]
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]

    def now(self) -> KernelWork:
        """The work by the constants as they are now."""
        if self.work.kind != TRAFFIC:
            return self.work
        moving = traffic.of_kernel(self.operation, self.args, self.inputs, self.outputs)
        return self.work._replace(
            bytes=moving.bytes, cycles=moving.cycles, phases=moving.phases, blocks=moving.blocks, again=moving.again
        )


@dataclass(frozen=True)
class Kernel:
    """A recorded case: what the card took in seconds, and the kernels that the virtual one launches for it."""

    group: str
    name: str
    measured: float
    pieces: tuple[Piece, ...]

    def seconds(self, pricing: Pricing) -> float:
        """What the virtual GPU takes."""
        return sum(pricing.seconds(piece.now()) for piece in self.pieces)


def capture(path: Path = RECORD) -> tuple[vgpu.Spec, list[Kernel]]:
    """The card's spec, and each single kernel of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    spec = match_spec(record["machine"]["gpu"], record["machine"]["memory_bytes"])
    if spec is None:
        raise SystemExit(f"no built-in GPU is a {record['machine']['gpu']}")
    values = {(entry["group"], entry["name"]): entry["value"] for entry in record["entries"] if "value" in entry}
    kernels = []
    for group, name, precision, make in cases.makers():
        if (group, name) not in values:
            continue
        with vgpu.attach(spec.name, values=False):
            allow_tf32(precision)
            step = make()
            step()  # an optimizer makes its states at the first one
            with watched() as pieces:
                step()
        kernels.append(Kernel(group, name, values[group, name], tuple(pieces)))
    return spec, kernels


def _without_data(value: Any, kept: dict[int, torch.Tensor]) -> Any:
    """The same with tensors that only look like these: autograd copies a gradient that somebody else holds."""
    if isinstance(value, torch.Tensor):
        if id(value) not in kept:
            like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            kept[id(value)] = like
        return kept[id(value)]
    if isinstance(value, (list, tuple)):
        return [_without_data(item, kept) for item in value]
    return value


@contextmanager
def watched() -> Iterator[list[Piece]]:
    """Every kernel that is launched meanwhile, once: operations that were called before go the long way again."""
    pieces: list[Piece] = []
    before, short_way = kernel_cost.of_operation, repeats.run

    def watching(
        operation: Operation,
        args: Sequence[Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        with_elements: bool,
    ) -> KernelWork:
        work = before(operation, args, inputs, outputs, with_elements=with_elements)
        kept: dict[int, torch.Tensor] = {}
        pieces.append(Piece(work, operation, *(_without_data(part, kept) for part in (args, inputs, outputs))))
        return work

    kernel_cost.of_operation = watching
    repeats.run = lambda *_: NotImplemented
    try:
        yield pieces
    finally:
        kernel_cost.of_operation, repeats.run = before, short_way
