"""A custom spec from what was measured: the figures that are modelled in the built-in one, fitted.

Pure Python. Not here: figures of the data sheet (peak rates, bandwidth), which stay as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vgpu.device.spec import Spec, list_specs
from vgpu.tools.calibrate.compare import Row

_BIG_PRODUCTS = ("(4096, 4096) @ (4096, 4096)", "(8192, 1024) @ (1024, 8192)")


def fitted(spec: Spec, rows: Sequence[Row], measured: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """New value and its source for each figure that the rows say something about.

    An efficiency is scaled by how much the prediction of work that it bounds was off; times and rates are taken as
    measured. Ratios end at 1.
    """
    figures: dict[str, tuple[float, str]] = {}

    def take(figure: str, value: float | None, source: str) -> None:
        if value is not None and value > 0:
            figures[figure] = (min(value, 1.0) if figure.endswith("_ratio") else value, f"measured: {source}")

    products = _ratio(row for row in rows if row.group == "matmul" and row.name.startswith(_BIG_PRODUCTS))
    traffic = _ratio(row for row in rows if row.group == "elementwise" and "64M" in row.name)
    take("product_efficiency_ratio", products and spec.product_efficiency_ratio * products, "large matrix products")
    take("bandwidth_efficiency_ratio", traffic and spec.bandwidth_efficiency_ratio * traffic, "256 MiB elementwise")
    take("launch_seconds", _value(rows, "host", "launch of "), "host time of small launches")
    take("metadata_seconds", _value(rows, "host", "view"), "host time of a view")
    take("synchronize_seconds", _value(rows, "host", "synchronize"), "host time of an idle synchronize")
    take("minimum_kernel_seconds", _value(rows, "small kernel", ""), "device time of an 8-element kernel")
    take("context_seconds", _value(rows, "start-up", "CUDA context"), "first use in a fresh process")
    take("blas_handle_seconds", _value(rows, "start-up", "cuBLAS"), "first use in a fresh process")
    take("cudnn_handle_seconds", _value(rows, "start-up", "cuDNN"), "first use in a fresh process")
    for kind in ("pageable", "pinned"):
        rate = _transfer_rate(measured, kind)
        take(f"{kind}_bytes_per_second", rate, f"256 MiB copies of {kind} memory, both ways")
    for figure, name in (("context_bytes", "CUDA context"), ("blas_workspace_bytes", "cuBLAS workspace")):
        take(figure, _value(rows, "memory", name), "around first use in a fresh process")
    take("memory_bytes", float(measured["machine"]["memory_bytes"]), "total_memory of its device properties")
    return figures


def _ratio(rows: Iterable[Row]) -> float | None:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return statistics.median(ratios) if ratios else None


def _value(rows: Sequence[Row], group: str, beginning: str) -> float | None:
    values = [
        row.measured for row in rows
        if row.group == group and row.name.startswith(beginning) and row.measured is not None
    ]  # fmt: skip
    return statistics.median(values) if values else None


def _transfer_rate(measured: Mapping[str, Any], kind: str) -> float | None:
    """Bytes/s of the largest copies."""
    entries = [
        entry for entry in measured["entries"]
        if entry["group"] == "transfer" and entry["name"].endswith(kind) and "value" in entry
    ]  # fmt: skip
    largest = max((entry["moved_bytes"] for entry in entries), default=0)
    rates = [entry["moved_bytes"] / entry["value"] for entry in entries if entry["moved_bytes"] == largest]
    return statistics.median(rates) if rates else None


def toml(spec: Spec, rows: Sequence[Row], measured: Mapping[str, Any]) -> str:
    """A file that `--gpu` takes. Raises ValueError for a spec that is not built in: it cannot be a base."""
    if spec.name not in list_specs():
        raise ValueError(f"{spec.name} is a spec of your own: suggestions build on one of {', '.join(list_specs())}")
    machine = measured["machine"]
    figures = fitted(spec, rows, measured)
    number: Callable[[str, float], str] = lambda figure, value: (  # noqa: E731
        str(round(value)) if figure.endswith("_bytes") else f"{value:.4g}" if value < 1 else f"{value:.4e}"
    )
    lines = [
        f"# Fitted by `python -m vgpu calibrate` to {machine['gpu']}, driver {machine['driver']}, "
        f"torch {machine['torch']}.",
        "schema = 1",
        "",
        f"[gpu.{spec.name}-measured]",
        f'base = "{spec.name}"',
        f'title = "{machine["gpu"]}"',
    ]
    lines += [f"{figure} = {number(figure, value)}" for figure, (value, _) in figures.items()]
    lines += ["", f"[gpu.{spec.name}-measured.sources]"]
    lines += [f'{figure} = "{source}"' for figure, (_, source) in figures.items()]
    return "\n".join(lines) + "\n"
