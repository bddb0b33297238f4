"""One real card, measured by ourselves, and the virtual one of the same name next to it.

`python -m benchmarks.measured record FILE` measures on this machine's NVIDIA GPU. `python -m benchmarks.measured
compare FILE` runs the same on the virtual GPU, writes how far it is off, and a table of `docs/how-we-know-figures.md`.
Constants of `vgpu/` that are fitted to such a file say so. `python -m benchmarks.measured.cross_validation` shows what
they are worth for kernels that had no part in the fit.
"""

from __future__ import annotations

from pathlib import Path


def main() -> Path:
    """Compare the committed record of an H100; returns the result's path."""
    import json

    from benchmarks.measure import RESULTS
    from benchmarks.measured import compare

    record = json.loads((RESULTS / "h100.json").read_text(encoding="utf-8"))
    rows = compare.rows_of(record, compare.simulate(record))
    return compare.write("h100_compared", record, rows, compare.drawn(record))
