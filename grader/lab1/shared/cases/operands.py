"""What the probe of the operands of a product is given and returns."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.sandbox.probe_types import ProbeInputs


@dataclass(frozen=True, kw_only=True)
class OperandsReply:
    """The products that ran."""

    products: int
    of_one_matrix: int
    """How many of them multiplied a matrix with itself."""


@dataclass(frozen=True, kw_only=True)
class Operands(ProbeInputs[OperandsReply], probe="lab1.shared.operands.watched"):
    """One call of `benchmark_matmul` on the CPU or the GPU, whose products are watched."""

    size: int
    iterations: int
    place: str = "cpu"


WITHOUT: dict[str, str] = {
    Operands.probe: "whether there are two operands does not depend on what is called",
}
