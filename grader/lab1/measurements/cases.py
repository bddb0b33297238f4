"""What is drawn for Lab 1's measurements: a CPU whose products wait, and products that are slow or fast on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.shared.cases.products import Hiccup, Matmul, Result

DISTURBED, RUN = 25, 5
"""Products of a call, and how many of them in a row are slow, and how many fast.

A run of five lies in two blocks of four or five products at most, in three of two or three: the median of five or more
single times or blocks stays what it is, wherever the runs begin. The mean, the smallest, the largest are wrong."""


@dataclass(frozen=True, kw_only=True)
class SlowCpuReply:
    """What `benchmark_matmul` returned, and the seconds of each product."""

    result: Result
    took: list[float]


@dataclass(frozen=True, kw_only=True)
class SlowCpu(ProbeInputs[SlowCpuReply], probe="lab1.measurements.slow_cpu"):
    """`benchmark_matmul` on a CPU on which each product sleeps first."""

    size: int
    iterations: int
    warmup: int
    nap_seconds: float


def hiccups(generator: InputGenerator) -> list[list[Hiccup]]:
    """A slow run and a fast one for each call. A product that is timed alone is in one of them in some call."""
    # Outermost, between and innermost: together they cover every product.
    pairs = [(0, 20), (5, 15), (10, generator.shuffled((0, 20))[0])]
    for _ in range(2):
        first = generator.integer(0, DISTURBED - 2 * RUN)
        pairs.append((first, generator.integer(first + RUN, DISTURBED - RUN)))
    calls: list[list[Hiccup]] = []
    # From call to call twice or three times as slow, so that no limit leaves all of them out, and no median.
    slower = generator.shuffled([generator.log_uniform(4.0, 5.0) * 2.5**step for step in range(len(pairs))])
    for pair, factor in zip(generator.shuffled(pairs), slower, strict=True):
        slow, fast = generator.shuffled(pair)
        quick = generator.log_uniform(0.05, 0.4)
        calls.append([{"first": slow, "count": RUN, "factor": factor}, {"first": fast, "count": RUN, "factor": quick}])
    return calls


WITHOUT: dict[str, str] = {
    SlowCpu.probe: f"one measurement on a CPU that waits: calls differ in {Matmul.probe}",
}
