"""Judges Lab 1's conclusions, on data whose answer is known, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradebox.course.criterion import criterion
from gradebox.run.assertions import require_close, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.checks import report as lab1_report
from grader.lab1.truth.operations import (
    made_up_operations,
    one_and_many,
    require_profiled,
    require_profiled_on_cpu,
    require_slowest,
)
from grader.lab1.truth.refusals import calls_of, require_refused
from grader.shared.cases import every_value, one_and_its_opposite
from labkit.results import STAGES

_USUAL_BYTES = 4
_CPU_SIZE = 512
"""Rows and columns of a product that a CPU is busy with for milliseconds."""
_TIES = (("launch", "memory"), ("launch", "compute"), ("memory", "compute"), ("launch", "memory", "compute"))


_MEASURED = {
    "sizes": ("one", "several"),
    "order": ("ascending", "descending", "mixed"),
    "wins": ("never", "always", "from one on", "a lucky one"),
    "as fast": (False, True),
}
_BOUNDS = {
    "answer": ("launch", "memory", "compute"),
    "bytes": (None, 1, 2, 4, 8),
    "size": ("small", "usual", "large"),
}
_SIZES = {"small": (1, 63), "usual": (64, 8192), "large": (10**5, 10**6)}
_WINNERS = {"winner": ("first", "between", "last"), "equal": (False, True)}
_PROFILED = {
    "slowest": ("mm", "exp"),
    "several steps": (False, True),
    "warmed up": (False, True),
    "indexed": (False, True),
}


@criterion("lab1.analysis")
class TestAnalysis:
    def test_crossover_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the size from which on the GPU is faster."""
        cases, answers = [], []
        for wins in _outcomes(generator):
            sizes = sorted(generator.odd(10 + 400 * i, 380 + 400 * i) for i in range(len(wins)))
            rows = []
            for size, win in zip(sizes, wins, strict=True):
                gpu = generator.log_uniform(1e-5, 1e-2)
                ratio = generator.log_uniform(1.001, 40)
                # As fast as the CPU is not faster.
                rows.append([size, gpu * ratio if win else gpu / generator.shuffled((1.0, ratio))[0], gpu])
            stays = [i for i in range(len(wins)) if all(wins[i:])]
            answers.append(sizes[stays[0]] if stays else None)
            order = generator.shuffled(list(range(len(rows))))
            cases.append([rows[index] for index in order])
        cases.insert(place := generator.integer(0, len(cases)), [])
        answers.insert(place, None)
        for row in every_value(generator, _MEASURED, 3, _measured_allowed):
            case, answer = _measured(generator, row)
            place = generator.integer(0, len(cases))
            cases.insert(place, case)
            answers.insert(place, answer)
        seen = submission.numeric_probe("lab1.gpu_basics.crossover", cases=cases)
        for case, answer, told in zip(cases, answers, seen.sizes, strict=True):
            shown = ", ".join(f"{row[0]}: {row[1] / row[2]:.4g}x" for row in sorted(case)) or "of no size at all"
            require_equal(
                told,
                answer,
                what=f"find_crossover() for speedups {shown}",
                hint="the smallest size from which on the GPU is faster (above 1) at every larger "
                "measured size; None if never",
            )

    def test_bound_named(self, submission: Submission, generator: InputGenerator) -> None:
        """Names what bounds a product: launch, memory or compute."""
        cases: list[dict[str, float]] = []
        answers: list[tuple[str, dict[str, float]]] = []
        rows = every_value(generator, _BOUNDS, 5)
        for row in generator.shuffled([*rows, *({"answer": answer} for answer in ("launch", "memory", "compute"))]):
            answer, size = row["answer"], generator.integer(*_SIZES[row.get("size", "usual")])
            element = row.get("bytes") or 2 ** generator.integer(1, 3)
            rest = [generator.log_uniform(1e-6, 1e-3) for _ in range(2)]
            longest = max(rest) * generator.uniform(1.2, 1.8)  # close, so that a wrong factor of 2 or 3 shows
            names = [name for name in ("launch", "memory", "compute") if name != answer]
            took = {answer: longest, names[0]: rest[0], names[1]: rest[1]}
            case = {
                "size": size,
                "peak_tflops": 2 * size**3 / took["compute"] / 1e12,
                "bandwidth_bytes_per_second": 3 * size**2 * element / took["memory"],
                "launch_seconds": took["launch"],
            }
            if row.get("bytes", element) is None:  # it need not be told
                case["bandwidth_bytes_per_second"] *= _USUAL_BYTES / element
            else:
                case["bytes_per_element"] = element
            cases.append(case)
            answers.append((answer, took))
        for tied in _TIES:
            case, took = _tied(generator, tied)
            place = generator.integer(0, len(cases))
            cases.insert(place, case)
            answers.insert(place, (tied[0], took))
        usual = {"size": 512, "peak_tflops": 8.0, "bandwidth_bytes_per_second": 3e11, "launch_seconds": 5e-6}
        least = {**usual, "size": 1, "bytes_per_element": 1}  # makes sense, still
        cases.append(least)
        answers.append(("launch", {"launch": 5e-6, "memory": 3 / 3e11, "compute": 2 / 8e12}))
        slow = {**usual, "peak_tflops": 0.25, "bandwidth_bytes_per_second": 0.5, "bytes_per_element": 4}
        cases.append(slow)
        answers.append(("memory", {"launch": 5e-6, "memory": 12 * 512**2 / 0.5, "compute": 2 * 512**3 / 0.25e12}))
        nonsense = [
            {name: value}
            for name in ("size", "bytes_per_element", "peak_tflops", "bandwidth_bytes_per_second")
            for value in (0, -generator.integer(1, 9))
        ]
        refused = [{**usual, **case} for case in nonsense]
        seen = submission.numeric_probe("lab1.gpu_basics.bounds", cases=cases, refused=refused)
        for (answer, took), told in zip(answers, seen.bounds, strict=True):
            shown = ", ".join(f"{name} {seconds(value)}" for name, value in sorted(took.items()))
            require_equal(
                told,
                answer,
                what=f"classify_bound() where the three limits are {shown}",
                hint="the bound is what takes longest: the launch, moving 3 n² elements, or 2 n³ operations; of equal "
                "ones the first of launch, memory, compute",
            )
        require_refused(calls_of("classify_bound", nonsense), seen.endings)

    def test_peak_share_computed(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes the share of the peak that was reached."""
        cases: list[dict[str, float]] = []
        answers = []
        # A data sheet may promise less than there is: then it is more than 1.
        for low, high in generator.shuffled([(0.05, 0.95)] * 3 + [(1.0, 1.0), (1.02, 1.1), (1.2, 3.0)]):
            size, share = generator.odd(101, 4097), generator.uniform(low, high)
            peak = generator.uniform(5, 900) if cases else generator.uniform(0.2, 0.9)  # a T4 has 0.25 in float64
            cases.append({"size": size, "seconds": 2 * size**3 / (share * peak * 1e12), "peak_tflops": peak})
            answers.append(share)
        refused = [0, -generator.uniform(1, 99)]
        seen = submission.numeric_probe("lab1.gpu_basics.peak_share", cases=cases, refused=refused)
        for answer, told in zip(answers, seen.shares, strict=True):
            require_close(
                told, answer, relative=1e-6, what="peak_share()", hint="a ratio: achieved TFLOPS over peak TFLOPS"
            )
        require_refused(calls_of("peak_share", [{"peak_tflops": peak} for peak in refused]), seen.endings)

    def test_bottleneck_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the stage that needs the most memory."""
        count = len(STAGES)
        drawn = every_value(generator, _WINNERS, 4, lambda row: not (row["equal"] and row["winner"] == "last"))
        places = {"first": [0], "between": range(1, count - 1), "last": [count - 1]}
        winners = [generator.shuffled(places[row["winner"]])[0] for row in drawn]
        peaks = [[generator.integer(10**6, 5 * 10**8) for _ in STAGES] for _ in winners]
        for row, winner, how in zip(peaks, winners, drawn, strict=True):
            row[winner] = max(row) + generator.integer(10**6, 10**8)
            if how["equal"]:  # of equal ones the first
                for later in range(winner + 1, count):
                    row[later] = generator.shuffled((row[later], row[winner]))[0]
                row[-1] = row[winner]
        allocated = [[generator.integer(10**5, peak) for peak in row] for row in peaks]
        for held, winner in zip(allocated, winners, strict=True):  # who needs most is never who holds most
            held[winner] = max(size for stage, size in enumerate(held) if stage != winner) // 2
        reserved = [[max(row) + generator.integer(10**6, 10**8) for _ in row] for row in peaks]
        seen = submission.numeric_probe("lab1.memory.bottleneck", peaks=peaks, allocated=allocated, reserved=reserved)
        for row, winner, told in zip(peaks, winners, seen.stages, strict=True):
            require_equal(
                told,
                STAGES[winner],
                what=f"find_bottleneck() for peaks {row}",
                hint="the largest peak_bytes; of equal ones the first",
            )
        for held, told in zip(allocated, seen.increases, strict=True):
            steps = [after - before for before, after in zip([0, *held], held, strict=False)]
            require_equal(
                told,
                [[name, step] for name, step in zip(STAGES, steps, strict=True)],
                what=f"stage_increases() for allocated bytes {held}",
                hint="from the stage before to this one, in the order of the stages; the first counts from 0",
            )

    def test_slowest_operation_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the slowest operation of a training step."""
        # One long kernel beside many launches, and many short kernels beside one product. On a real card no pace makes
        # the product longer, so its size does: on the fastest it then takes twice as long as all else.
        larger = 1 if submission.device.simulated else 2
        cases: dict[str, tuple[int, dict[str, int]]] = {
            "mm": (larger * generator.integer(1000, 1200), {"mm": 1, "exp": generator.integer(4, 5)}),
            "exp": (generator.integer(88, 104), {"exp": generator.integer(30, 60), "mm": 1}),
        }
        for row in one_and_its_opposite(generator, _PROFILED):
            slowest, indexed = row["slowest"], row["indexed"]
            (size, repeats), steps = cases[slowest], generator.integer(3, 7) if row["several steps"] else 1
            # A pace for each kind of kernel, which no data sheet tells; the longest stays the longest.
            longer = round(generator.uniform(1.6, 4.0), 3)
            shorter = round(generator.uniform(1.2, longer), 3)
            paces = [[f"aten::{name}", longer if name == slowest else shorter] for name in repeats]
            beside, beside_paces = one_and_many(generator)
            paces += beside_paces
            warmup = generator.integer(1, 4) if row["warmed up"] else 0
            seen = submission.probe(
                "lab1.operations.operations",
                values=False,
                size=size,
                repeats=repeats,
                beside=beside,
                steps=steps,
                warmup=warmup,
                indexed=indexed,
                conditions=[{"name": name, "factor": factor} for name, factor in paces]
                if submission.device.simulated
                else [],
            )
            require_profiled(
                seen,
                f"aten::{slowest}",
                {**repeats, **beside},
                steps,
                warmup,
                indexed=indexed,
                timed=submission.device.simulated,
            )
        nonsense = generator.shuffled([{"steps": 0}, {"steps": -1}, {"warmup": -1}])
        steps, warmup = generator.integer(3, 5), generator.integer(0, 3)
        seen = submission.probe(
            "lab1.operations.on_cpu", device="cpu", size=_CPU_SIZE, steps=steps, warmup=warmup, refused=nonsense
        )
        require_profiled_on_cpu(seen, steps, warmup)
        require_refused(calls_of("profile_operations", nonsense), seen.endings)
        lists, counts = made_up_operations(generator)
        refused = [0, -generator.integer(1, 9)]
        seen = submission.numeric_probe("lab1.operations.slowest", cases=lists, counts=counts, refused=refused)
        require_slowest(lists, counts, seen.names)
        require_refused(calls_of("slowest", [{"count": count} for count in refused]), seen.endings)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        lab1_report.judge(submission)


def _measured_allowed(row: Mapping[str, Any]) -> bool:
    """One size has no order, and no lucky one below a slower one; and none is as fast where all are faster."""
    several = row["sizes"] == "several" or (row["order"] == "ascending" and row["wins"] in ("always", "never"))
    return several and not (row["as fast"] and row["wins"] == "always")


def _measured(generator: InputGenerator, row: Mapping[str, Any]) -> tuple[list[list[float]], int | None]:
    """Rows (size, CPU seconds, GPU seconds) of one case of `find_crossover`, and what it is to return."""
    count = 1 if row["sizes"] == "one" else generator.integer(3, 5)
    first = generator.integer(1, count - 1) if count > 1 else 0
    faster = {
        "never": [False] * count,
        "always": [True] * count,
        "from one on": [index >= first for index in range(count)],
        "a lucky one": [index in (0, count - 1) for index in range(count)],
    }[row["wins"]]
    sizes = sorted(generator.odd(10 + 400 * index, 380 + 400 * index) for index in range(count))
    lost = [index for index in range(count) if not faster[index]]
    equal = generator.shuffled(lost)[0] if row["as fast"] else None
    case = []
    for index, size in enumerate(sizes):
        gpu, ratio = generator.log_uniform(1e-5, 1e-2), generator.log_uniform(1.01, 40)
        case.append([float(size), gpu * ratio if faster[index] else gpu if index == equal else gpu / ratio, gpu])
    stays = [size for index, size in enumerate(sizes) if all(faster[index:])]
    ordered = {
        "ascending": case,
        "descending": case[::-1],
        "mixed": [*case[1::2], *case[::2]],
    }[row["order"]]
    return ordered, stays[0] if stays else None


def _outcomes(generator: InputGenerator) -> list[list[int]]:
    """For each case whether the GPU is faster, from the smallest size to the largest; nothing tells the next case."""

    def row(value: int, least: int) -> list[int]:
        return [value] * generator.integer(least, 3)

    lucky = [[*row(0, 0), *row(1, 1), *row(0, 1), *row(1, 1)] for _ in range(3)]
    rising = [[*row(0, 1), *row(1, 1)] for _ in range(3)]
    return generator.shuffled([*lucky, *rising, row(1, 2), row(0, 2), [*row(0, 0), *row(1, 1), *row(0, 1)]])


def _tied(generator: InputGenerator, tied: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Arguments of `classify_bound` for which exactly these limits are equal and longest, and the three limits.

    The fives of the size cancel those of 10^12, so that all three are powers of two: equal to the last bit whatever
    the order of the divisions, and for who computes with fractions.
    """
    size, element, peak = (
        625 * 2 ** generator.integer(0, 3),
        2 ** generator.integer(1, 3),
        2.0 ** generator.integer(-1, 8),
    )
    compute = 2 * (size / 625) ** 3 / (peak * 2**12)
    bandwidth = 3 * size**2 * element / compute
    shorter = 2.0 ** -generator.integer(1, 3)
    took = {name: compute if name in tied else compute * shorter for name in ("launch", "memory", "compute")}
    return {
        "size": size,
        "peak_tflops": peak / (took["compute"] / compute),
        "bandwidth_bytes_per_second": bandwidth / (took["memory"] / compute),
        "launch_seconds": took["launch"],
        "bytes_per_element": element,
    }, took
