"""Published measurements of real GPUs, run on the virtual GPU: how good its times and its memory are.

`python -m benchmarks published` runs every figure of `figures.toml` and writes the table; `python -m
benchmarks.published --group matmul` prints some. `python -m benchmarks.published.cross_validation` fits the laws'
constants again without one source at a time. `python -m benchmarks.published.held_out` prices tables of kernels that no
constant was fitted to. A workload is ordinary PyTorch, run with shapes only.
"""

from __future__ import annotations

from pathlib import Path


def main() -> Path:
    """Run all, write `benchmarks/results/published.json`, the page's tables and picture; returns the first's path."""
    from benchmarks.published import report, run

    return report.write(run.run_all(run.figures.load()))
