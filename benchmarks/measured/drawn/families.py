"""All families of drawn cases."""

from __future__ import annotations

from benchmarks.measured.drawn import (
    attention,
    compiled,
    convolutions,
    graphs,
    host_calls,
    layouts,
    networks,
    optimizers,
    products,
    rows,
    triton_cases,
)
from benchmarks.measured.drawn.case import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        convolutions.CONVOLUTIONS,
        convolutions.LAYERS,
        rows.ROWS,
        rows.REDUCTIONS,
        products.PRODUCTS,
        layouts.LAYOUTS,
        attention.ATTENTION,
        networks.STEPS,
        host_calls.HOST_CALLS,
        compiled.COMPILED,
        graphs.GRAPHS,
        triton_cases.TRITON,
        optimizers.OPTIMIZERS,
    )
}
"""By name."""
