"""Judges the benchmark of Lab 4's attention, its program and its plot."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradebox.course.criterion import criterion
from gradebox.run.assertions import (
    Cause,
    mebibytes,
    number,
    picturing,
    recognising,
    require,
    require_between,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from grader.lab4.attention.cases.draws import benchmark, made_up_results
from grader.lab4.attention.cases.types import BenchmarkCall, BenchmarkReply, Installed, Result
from grader.lab4.shared.cases import Shown, ShownAxes
from grader.lab4.shared.checks import (
    MEBIBYTE,
    among,
    judge_plot,
    judge_program,
    judge_program_on_cpu,
    judge_refusals,
    memory_bars,
    near,
    require_named,
)
from grader.shared.cards import Card, card_of

MEASURED = 0.03
_SOME = 0.9
"""Of the products that no way of computing attention does without."""
UNSPLIT_BYTES = 3 * 2**20
"""The allocator leaves up to 1 MiB of a block unsplit, depending on what was freed before; inputs alone are 11 MiB."""

_HOST_SECONDS = 5e-4
"""By so much one call of a real GPU's host may be longer than another: seen on an H100 of a virtual machine."""
_REAL_TOLERANCE = 0.25
_REAL_FITS, _REAL_TENSORS = 0.4, 8
"""Of what is free of a real card's memory, the share that the shorter lengths may take, and how many tensors as large
as all scores standard attention and its gradients may be at once: three in the reference."""
_REAL_TOO_LARGE = 1.5
"""Times a real card's memory, what all scores of the longest take, each of them a single tensor."""
_ABOUT = {
    "MiB": re.compile(r"\b(mi?b|gi?b|bytes?|memory)\b", re.IGNORECASE),
    "milliseconds": re.compile(r"\b(ms|(milli)?seconds?|time|latency)\b", re.IGNORECASE),
}
"""What a label of each says, in the words that are usual; a label in other words says nothing wrong."""
_REAL_LIMITS = Limits(wall_seconds=180.0, cpu_seconds=180.0)
"""A slow card with much memory takes seconds for each pass of the longest."""


@criterion("lab4.attention")
class TestBenchmark:
    def test_benchmark_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, card = benchmark(generator, simulated=submission.device.simulated), card_of(submission)
        if card is not None:
            suited = replace(inputs.measured, lengths=_lengths_for(card, inputs.measured))
            inputs = replace(inputs, measured=suited)
        reply = submission.probe(
            inputs,
            values=False,  # the longest have tens of gigabytes, and seconds and peaks do not depend on them
            limits=None if card is None else _REAL_LIMITS,
        )
        _require_iterations(inputs.counted, reply)
        _require_measured(inputs.measured, reply, simulated=submission.device.simulated)
        require(
            reply.fits_again != [True, False, False],
            "benchmark_attention(): standard attention of a length runs out of memory if a longer one did before, "
            "although it fits alone",
            Cause(
                "failed_measurement_kept",
                "Keep neither the error nor its tensors: an exception holds its traceback, and that the local "
                "variables of all functions in it. Measure the next length after the except block.",
                mistake="benchmark_attention() still holds what was allocated when memory ran out",
            ),
        )
        _require_counted(inputs.counted, reply)
        (row,) = reply.on_cpu
        require_equal(
            [row["device"], row["backend"], row["peak_bytes"]],
            ["cpu", "sdpa", None],
            what='device, backend and peak of benchmark_attention(device="cpu")',
            hint="Report None: PyTorch does not count the memory of a CPU.",
        )
        require(
            reply.of_integers not in ("", "OutOfMemoryError"),
            "benchmark_attention(dtype=torch.int64) returned a result, but integers have no gradient: PyTorch "
            "refuses that with a RuntimeError",
            "Catch torch.OutOfMemoryError alone: other errors are the caller's.",
        )
        zeros = np.zeros((1, 1, 3, 8), dtype=np.float32)
        installed = Installed(
            modules=["flash_attn"],
            dtype="float16",
            causal=False,
            benchmarks=tuple(generator.shuffled(["float16", "float32"])),
            q=zeros,
            k=zeros,
            v=zeros,
        )
        for dtype, backend, expected in submission.probe(installed, device="vgpu:A100-80GB").benchmarked:
            require_equal(
                backend,
                expected,
                what=f"backend of benchmark_attention() in {dtype}, on a virtual A100-80GB with flash_attn installed",
                hint="Call attention_backend(device, dtype) with the dtype that is measured.",
            )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(submission, generator, "attention")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        rows = judge_program(submission, "flash_attention", ["--lengths", "128,256"])
        lengths = sorted({row.get("length", 0) for row in rows if isinstance(row, dict)})
        require_equal(lengths, [128, 256], what="lengths in the results")
        judge_program_on_cpu(submission, "flash_attention", ["--lengths", "16,32", "--device", "cpu"])
        judge_plot(submission, "attention", made_up_results(generator.shared("lab4.plots.attention")), require_shown)


def _require_measured(call: BenchmarkCall, reply: BenchmarkReply, *, simulated: bool) -> None:
    """Fail unless the rows of the benchmark, and of one length the other way, say what we measured."""
    lengths, methods = call.lengths, call.methods
    require_equal(
        [[row["length"], row["method"]] for row in reply.rows],
        [[length, method] for length in [*lengths, lengths[-1]] for method in methods],
        what="lengths and methods of benchmark_attention()",
        hint="Give every length with every method a row, in the order of the arguments, also if memory runs out.",
    )
    peaks = [
        (f"{row['method']}, {row['length']}", row["peak_bytes"], cost.peak_bytes)
        for row, cost in zip(reply.rows, reply.costs, strict=True)
    ]
    all_lengths = [length for length in [*lengths, lengths[-1]] for _ in methods]
    for index, (length, row, cost) in enumerate(zip(all_lengths, reply.rows, reply.costs, strict=True)):
        causal = call.causal is (index < len(lengths) * len(methods))
        what = f"benchmark_attention(causal={causal}), {row['method']}, {length} tokens"
        backend = reply.backend if row["method"] == "flash" else "torch"
        require_equal(row["backend"], backend, what=f"{what}: backend")
        require_equal([row["device"], row["dtype"]], [reply.device, "float16"], what=f"{what}: device and dtype")
        if cost.seconds is None or cost.peak_bytes is None:
            require(
                row["seconds"] is None and row["peak_bytes"] is None,
                f"{what}: seconds {row['seconds']!r} and peak {row['peak_bytes']!r}, but it runs out of memory",
                "Give None for both, and go on with the next measurement.",
            )
            continue
        require(
            row["seconds"] is not None,
            f"{what}: seconds None, although memory does not run out there; it did at a longer one before",
            "Try every length with every method: one that ran out of memory says nothing of the next.",
        )
        low, high = min(cost.seconds), max(cost.seconds)
        close = MEASURED * high if simulated else max(_REAL_TOLERANCE * high, _HOST_SECONDS)
        with recognising(lambda: _without_its_mask(call, reply) if simulated else None):
            require_between(
                row["seconds"],
                low - close,
                high + close,
                what=f"{what}: seconds",
                show=seconds,
                expected=f"{seconds(low)}, give or take {seconds(close)}",
                hint="Time forward and backward together, with the arguments that were given and all operands on the "
                "device before. Begin and end with an idle device, and take the median.",
            )
        # Whether the output of the iteration before is still in a variable is a matter of style: one output more.
        one_output = 2 * call.batch * call.heads * length * call.head_dim
        slack = MEASURED * cost.peak_bytes + UNSPLIT_BYTES + one_output
        # Q, K, V and the gradient of the output, each as large as an output.
        before = (cost.peak_bytes + 4 * one_output, slack)
        with (
            picturing(lambda: memory_bars("peak_bytes by method and tokens", peaks)),
            recognising(lambda: _with_what_was_there(row["peak_bytes"], *before)),  # noqa: B023 - called in here
        ):
            require_between(
                row["peak_bytes"],
                cost.peak_bytes - slack,
                cost.peak_bytes + slack,
                what=f"{what}: peak_bytes",
                show=mebibytes,
                expected=f"{mebibytes(cost.peak_bytes)}, give or take {mebibytes(slack)}",
                hint="Subtract what was allocated before the first timed iteration, with the gradients at None.",
            )


def _without_its_mask(call: BenchmarkCall, reply: BenchmarkReply) -> Cause | None:
    """The mistake if the seconds of a length are the same with a mask and without, and should not be."""
    last = len(call.lengths) * len(call.methods)
    pairs = [
        (
            reply.rows[place]["seconds"],
            reply.rows[last + index]["seconds"],
            reply.costs[place],
            reply.costs[last + index],
        )
        for index, place in enumerate(range(last - len(call.methods), last))
    ]
    for row, other, cost, other_cost in pairs:
        if not isinstance(row, float) or not isinstance(other, float) or not cost.seconds or not other_cost.seconds:
            continue
        apart = abs(cost.seconds[0] - other_cost.seconds[0]) > 3 * MEASURED * cost.seconds[0]
        if apart and abs(row - other) <= MEASURED * row:
            return Cause(
                "causal_ignored",
                "Pass `causal` on to the function that is measured.",
                mistake="The argument causal is ignored: benchmark_attention() measures the same with it and without",
            )
    return None


def _with_what_was_there(peak: object, expected: float, slack: float) -> Cause | None:
    if not isinstance(peak, (int, float)) or abs(peak - expected) > slack:
        return None
    return Cause(
        "peak_with_what_was_there",
        "Subtract what was allocated before the first timed iteration: Q, K, V and the gradient of the output.",
        mistake="peak_bytes includes what was allocated before: Q, K, V and the gradient of the output",
    )


def _require_counted(call: BenchmarkCall, reply: BenchmarkReply) -> None:
    """Fail unless as many iterations ran as were asked for, the untimed ones first, and none kept its gradients."""
    iterations, warmup = call.iterations or 0, call.warmup or 0
    require_equal(
        [[row["method"], row["dtype"], row["backend"]] for row in reply.small],
        [["tiled", "float32", "torch"], ["standard", "float32", "torch"]],
        what="method, dtype and backend of benchmark_attention() of tiled and standard attention in float32",
    )
    # The functions of the submission are what its benchmark is compared with: they must be whole afterwards, too.
    least = _least_flops(call)
    require(
        reply.flops_of_one_each >= _SOME * least,
        f"after benchmark_attention(), forward and backward of {' and '.join(call.methods)} attention compute products "
        f"of {reply.flops_of_one_each:.4g} FLOPs, expected {least:.4g} at least",
        "Let the functions do the same whenever somebody calls them: two products in forward, four in backward.",
    )
    # Somebody may run one more, to wake the libraries up.
    total = iterations + warmup
    require(
        total - 0.1 < (ran := reply.flops / reply.flops_of_one_each) < total + 1.1,
        f"benchmark_attention(iterations={iterations}, warmup={warmup}) ran {ran:.3g} iterations of "
        f"each method, expected {total}",
        "Time as many iterations, after as many untimed ones, as the arguments say.",
    )
    for row in reply.small:
        method = str(row["method"])
        if len(reply.gradients[method]) < total or row["seconds"] is None:
            continue  # it calls another function than the module's
        took = number(row["seconds"], f"seconds of benchmark_attention(), {method}")
        require(
            took < 0.5 * reply.busy_seconds,
            f"benchmark_attention(iterations={iterations}, warmup={warmup}), {method}: "
            f"{seconds(took)}, as the first {warmup} iterations take, which wake the device up",
            "Run the untimed iterations first, as many as `warmup` says.",
        )


def _least_flops(call: BenchmarkCall) -> float:
    """Of products in forward and backward of each length and method; tiles may leave out what is hidden."""
    heads, least = call.batch * call.heads, 0.0
    for length in call.lengths:
        seen = length * (length + 1) // 2 if call.causal else length**2
        for method in call.methods:
            least += 6 * 2.0 * heads * call.head_dim * (length**2 if method == "standard" else seen)
    return least


def _require_iterations(call: BenchmarkCall, reply: BenchmarkReply) -> None:
    """Fail unless iterations begin as they should, with operands of their own. Seconds and peaks follow from that."""
    iterations = call.iterations or 0
    for method, operands in reply.operands.items():
        require(
            min(operands, default=3) == 3,
            f"benchmark_attention(), {method}: Q, K and V are {min(operands, default=3)} tensors, expected three that "
            "share no memory",
            "Make Q, K and V three tensors of their own: one that is used twice gets one gradient instead of two.",
        )
    require(
        reply.least_operands > 2.9,
        f"benchmark_attention(): Q, K and V are {reply.least_operands:.3g} times as large as an output, not 3 times",
        "Make Q, K and V three tensors of their own: one that is used twice gets one gradient instead of two.",
    )
    require(
        reply.own_gradients == 0,
        f"benchmark_attention(): in {reply.own_gradients} iterations the output is its own gradient",
        "Go backward from a gradient of its own, which is on the device before the clock starts.",
    )
    for method, gradients in reply.gradients.items():
        most = max(gradients[-iterations:], default=0)
        require(
            most == 0,
            f"benchmark_attention(), {method}: when a timed iteration's forward pass begins, {most} of Q, K, V "
            "have the gradient of the one before, expected None",
            "Set gradients to None, then run forward and backward: else they are next to the scores.",
        )


def require_shown(shown: Shown, rows: list[Result]) -> None:
    """Fail unless the plot shows these results: memory and time side by side, a line for each method."""
    require(len(shown.axes) >= 2, f"plot_attention() has {len(shown.axes)} axes, expected memory and time side by side")
    memory, time, *_ = shown.axes
    lengths = {float(row["length"]) for row in rows}
    named = max(len({row["method"] for row in rows}), len(shown.legend), len(shown.texts))
    for axes in shown.axes:
        curves = sum(sum(any(near(x, length) for length in lengths) for x, _ in line) >= 2 for line in axes.lines)
        require(
            curves <= named + 1,  # one line more may show how something grows
            f"plot_attention(): one plot has {curves} lines, and {named} names: nothing says which line is which",
            "Draw one line per method, in MiB or in milliseconds, and name each.",
        )
    peaks = [(row["method"], row["length"], _times(row["peak_bytes"], 1 / MEBIBYTE)) for row in rows]
    took = [(row["method"], row["length"], _times(row["seconds"], 1e3)) for row in rows]
    _require_axes("first", memory, "MiB", peaks)
    _require_axes("second", time, "milliseconds", took)
    require_named(shown, ("standard", "flash"), "plot_attention() does not say which line is which method")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _require_axes(place: str, axes: ShownAxes, unit: str, rows: Sequence[tuple[str, int, float | None]]) -> None:
    """Fail unless these axes show each method's values of this unit over the length; None where memory ran out."""
    for method in ("standard", "flash"):
        expected = [(length, value) for name, length, value in rows if name == method and value is not None]
        require(
            any(all(among(line, point) for point in expected) for line in axes.lines),
            f"plot_attention(): the {place} axes have no line through the {unit} of {method} attention over the "
            f"length: {', '.join(f'({x}, {y:.4g})' for x, y in expected)}",
            "Draw MiB in the first and milliseconds in the second, with one line per method.",
        )
        died = [length for name, length, value in rows if name == method and value is None]
        require(
            any(
                all(among(line, point) for point in expected)
                and not any(near(x, length) for x, _ in line for length in died)
                for line in axes.lines
            ),
            f"plot_attention(): the line of {method} attention on the {place} axes goes on to {died} tokens, where "
            "memory ran out",
            "Leave such results out: there is no value to draw, and a 0 has no place on a logarithmic axis.",
        )
    require(
        "linear" not in axes.scales,
        f"plot_attention(): the scales of the {place} axes are {' and '.join(axes.scales)}",
        "Make both logarithmic: what grows with the square of the length is a steeper line then.",
    )
    require(
        bool(axes.labels[1] or axes.labels[2]),
        f"plot_attention(): the {place} axes do not say what they show",
        "Label the y axis of both.",
    )
    label = " ".join(axes.labels[1:])
    own, other = (_ABOUT[name] for name in (unit, *(_ABOUT.keys() - {unit})))
    require(
        bool(own.search(label)) or not other.search(label),
        f"plot_attention(): the {place} axes show {unit}, and say {label.strip()!r}",
        "Name at each axis what is drawn there.",
    )
    require(
        not axes.shares_y,
        "plot_attention(): MiB and milliseconds share one y axis",
        "Call new_figure(..., share_y=False): a common scale squeezes one of them into a corner.",
    )


def _lengths_for(card: Card, call: BenchmarkCall) -> list[int]:
    """These lengths as they suit a card's memory: the scores of the longest are larger than it, and the others fit."""
    longest = max(call.lengths)
    short = [length for length in call.lengths if length != longest]
    pair_bytes = 2 * call.batch * call.heads
    fits = math.sqrt(_REAL_FITS * card.free_bytes / (_REAL_TENSORS * pair_bytes))
    part = min(1.0, fits / max(short))
    too_long = math.sqrt(_REAL_TOO_LARGE * card.memory_bytes / pair_bytes)
    suited = (too_long if length == longest else part * length for length in call.lengths)
    return [int(length) // 2 * 2 + 1 for length in suited]
