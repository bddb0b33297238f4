"""Judges Lab 1's benchmark: the right work, on the right device, in every size, and nothing else timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    NeedsReview,
    number,
    recognising,
    require,
    require_between,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.benchmark.cases import (
    BenchmarkPictures,
    Compare,
    CompareCall,
    DescribeEnvironment,
    RefusedProducts,
    compare_calls,
    made_up_comparisons,
    refused_products,
)
from grader.lab1.benchmark.checks.comparisons import MANY, compared, fields_mistake, require_compared, require_counted
from grader.lab1.benchmark.checks.environment import require_described
from grader.lab1.benchmark.checks.speedup_plots import require_speedups_drawn
from grader.lab1.shared.cases.drawn import devices, host_conditions, host_paces, long_size, long_sizes
from grader.lab1.shared.cases.operands import Operands
from grader.lab1.shared.cases.products import NAMES, Call, Hiccup, ProductCount, call_of
from grader.lab1.shared.checks.measuring import (
    LAUNCHED,
    as_written,
    crossed,
    measure,
    named,
    require_any_ran,
    require_ran,
    require_waited_for_by_any_name,
    require_within,
    seconds_of,
)
from grader.lab1.shared.checks.mistakes import (
    DTYPE_IGNORED,
    ELSEWHERE,
    ONE_OPERAND,
    TOTAL,
    recognised,
    recognised_elsewhere,
    recognised_fields,
    warm_up_mistake,
)
from grader.lab1.shared.checks.pictures import require_visible, require_written
from grader.lab1.shared.checks.readings import (
    are_explained,
    require_crossed,
    require_launched,
    require_seconds,
    require_started_idle,
)
from grader.lab1.shared.checks.refusals import calls_of, require_refused
from grader.lab1.shared.reference import WARM_UP, Interval, expected, expected_on_host, least_read
from grader.shared.cards import card_of
from grader.shared.programs import is_simulated, own_gpu, picture_and_json, require_simulated_pictures

_LAUNCH_SECONDS = 25e-6
"""Within this a host hands a product to the GPU, and no product that takes long is computed, nor a thousandth of it. A
slow host of a real GPU takes longer: there it is what a product takes that costs the GPU nothing."""
_REFUSED: list[CompareCall] = [
    {"sizes": [64], "device": "cpu"},
    {"sizes": [64, 0]},
    {"sizes": [64], "iterations": 0},
    {"sizes": [64], "cpu_iterations": 0},
]
_BOTH = "Call benchmark_matmul for the CPU and for the GPU."
SIZE_LEFT_OUT = Cause(
    "size_left_out",
    "Make a comparison for each of `sizes`, the first and the last included.",
    "lab1.benchmark.all_sizes_compared",
    mistake="compare_cpu_gpu leaves a size out, the first or the last of `sizes`",
)
_SLOW = 2000.0
"""Times as long as others a product of the warm-up takes: even a short one then takes longer than any method adds."""
_CPU_ITERATIONS = 5
"""Of `compare_cpu_gpu` if nothing else is said."""
DEFAULT_SIZES = [128, 512, 1024, 2048, 4096]


@criterion("lab1.benchmark", timeline=LAUNCHED)
class TestBenchmark:
    def test_environment_described(self, submission: Submission, generator: InputGenerator) -> None:
        refused = ["cuda:0", generator.shuffled(("tpu", "gpu", "CUDA"))[0]]
        devices = generator.shuffled((None, "cuda", "cpu"))
        reply = submission.probe(DescribeEnvironment(devices=devices, refused=refused))
        simulated = submission.device.simulated
        require_described(reply, [device or "cuda" for device in devices], simulated=simulated)
        require_refused([f"check_environment({device!r})" for device in refused], reply.endings)
        if simulated:
            here = generator.shuffled((None, "cpu"))
            refused = ["cuda", refused[1]]
            reply = submission.probe(DescribeEnvironment(devices=here, refused=refused), device="cpu")
            require_described(reply, ["cpu", "cpu"], ", on a machine without a GPU", simulated=False)
            calls = [f"check_environment({device!r}) on a machine without a GPU" for device in refused]
            require_refused(calls, reply.endings)

    def test_returns_result(self, submission: Submission, generator: InputGenerator) -> None:
        size = generator.odd(101, 199)
        (run,) = measure(submission, generator, submission.device.name, [{"size": size, "iterations": 7}])
        result = run.observed.result
        with recognising(lambda: fields_mistake([result["size"], result["iterations"]], size, 7, WARM_UP)):
            require_equal(result["size"], size, what="MatmulResult.size")
            require_equal(result["iterations"], 7, what="MatmulResult.iterations")
            require(number(result["seconds"], "MatmulResult.seconds") > 0, f"seconds: saw {result['seconds']}")
            require(number(result["tflops"], "MatmulResult.tflops") > 0, f"tflops: saw {result['tflops']}")
        require_any_ran(submission, generator, run)

    @requires("returns_result")
    def test_right_device_and_dtype(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        size = long_size(device, generator, card=card_of(submission))
        calls: list[Call] = [
            {"size": generator.odd(201, 299), "iterations": 6, "dtype": "float16"},
            {"size": generator.odd(301, 399), "iterations": 6},
            {"size": generator.odd(301, 399), "iterations": 6, "dtype": generator.shuffled(("bfloat16", "float64"))[0]},
            {"size": generator.odd(31, 63), "iterations": 6, "device": "cpu"},
            {"size": 1, "iterations": 6},
            *(call_of(name, size, iterations=1) for name in NAMES),
        ]
        runs = measure(submission, generator, device, calls)
        for run in runs:
            call, dtype = run.call, run.dtype
            place = call.get("device", "cuda").partition(":")[0]
            what = f"benchmark_matmul({named(call)}, {call['size']}, dtype={dtype})"
            result = run.observed.result
            with recognised_fields(run):
                require_equal(
                    result["device"], place, what=f"{what}: MatmulResult.device", hint="Report the device's type alone."
                )
                require_equal(
                    result["dtype"],
                    dtype,
                    what=f"{what}: MatmulResult.dtype",
                    hint='Report the dtype\'s name without "torch.".',
                )
            on_gpu = [product for product in run.observed.products if product["device"] == "cuda"]
            if place == "cpu":
                require(not on_gpu, f"{what} ran products on the GPU", "Create both operands on `device`.")
                continue
            if call["size"] == 1:
                continue  # the product of two numbers need not be a matrix product
            work = 2 * call["size"] ** 3
            right = sum(p["count"] for p in on_gpu if p["dtype"] == dtype and p["flops"] == work)
            others = [f"{p['count']} in {p['dtype']} of {p['flops']} FLOP" for p in on_gpu if p["dtype"] != dtype]
            with recognised_elsewhere(run):
                require(
                    right >= call["iterations"],
                    f"{what}: {right} products of {work} FLOP in {dtype} ran on the GPU, expected at least "
                    f"{call['iterations']}" + (f"; also saw {', '.join(others)}" if others else ""),
                    "Create both operands on `device` and in `dtype` before the clock starts.",
                )
        require_waited_for_by_any_name(device, runs[-len(NAMES) :])
        for place in devices(submission.device):
            half: Call = {"size": long_size(place, generator, "float16", card=card_of(submission)), "iterations": 10}
            half["dtype"] = "float16"
            (run,) = measure(submission, generator, place, [half], warm=True)
            require_seconds(place, run)
        require_crossed(submission.device, crossed(submission, generator, by_default=False))
        for place in dict.fromkeys(("cpu", "cpu" if device == "cpu" else "cuda")):
            operands = Operands(size=generator.odd(31, 63), iterations=6, place=place)
            reply = submission.probe(operands, device=device if place == "cuda" else "cpu")
            require(
                not reply.of_one_matrix,
                f"benchmark_matmul({place!r}, {operands.size}, {operands.iterations}): {reply.of_one_matrix} of "
                f"{reply.products} products multiplied one matrix with itself, expected two operands",
                ONE_OPERAND,
            )

    @requires("returns_result")
    def test_warmed_up(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        once: Call = {"size": generator.odd(201, 299), "iterations": 1, "warmup": generator.integer(1, 9)}
        often: Call = {"size": generator.odd(301, 399), "iterations": 1, "warmup": generator.integer(31, 60)}
        # Before the first timed product nobody but the benchmark itself can have waited for what is queued.
        size = long_size(device, generator, card=card_of(submission))
        cold: Call = {"size": size, "iterations": 1, "warmup": 0, "busy": 20}
        # Those of the warm-up that come first take far too long: none of them may be the one that is timed.
        slow: Hiccup = {"first": -often["warmup"], "count": often["warmup"] // 2, "factor": _SLOW}
        run, long, queued = measure(submission, generator, device, [once, often, cold], hiccups=[[], [slow]])
        hint = "Run `warmup` products before the clock starts: the first one also loads a library."
        with recognised_elsewhere(run):
            require_ran(once, run.observed.products, hint)
        with recognising(lambda: warm_up_mistake(run)):
            honest = expected(device, run).high
            took = seconds_of(run)
            require(
                least_read(device, run) <= took <= 50 * honest,
                f"the first product in a new process: saw {seconds(took)}, expected about {seconds(honest)}",
                hint,
            )
        ran = long.count()
        require(
            ran > often["warmup"],
            f"{as_written(often)} ran {ran} products, expected {often['warmup']} to warm up and 1 to be timed",
            warm_up_mistake(long) or "Run `warmup` products before the first timed one.",
        )
        if submission.device.simulated:
            single = _SLOW * expected(device, long).low
            took = seconds_of(long)
            require(
                not 0.5 * single
                <= took
                <= 0.5 * slow["count"] * single,  # of more of them, others checks charge for it
                f"{as_written(often)}: saw {seconds(took)}, the time of a product of the warm-up",
                hint,
            )
        require_started_idle(submission.device, queued, cold["busy"])

    @requires("returns_result")
    def test_only_the_product_timed(self, submission: Submission, generator: InputGenerator) -> None:
        # An older GPU shows best what does not belong: its memory is slow beside its tensor cores. On a fast real one,
        # operands that are made while the clock runs are within what right methods differ by.
        device = "vgpu:T4"
        call: Call = {"size": long_size(device, generator, launches=100), "iterations": 10}
        (run,) = measure(submission, generator, device, [call], warm=True)
        hint = (
            "Create operands and move data before the clock starts. Between start and stop there is only the product."
        )
        with recognised(device, run):
            require_ran(call, run.observed.products, hint)
            took = seconds_of(run)
            high = expected(device, run).high
            require_launched(device, run, f"seconds per product of {call['size']}")
            require(
                took <= high,
                f"seconds per product of {call['size']}: saw {seconds(took)}, of which the product can take "
                f"{seconds(high)} at most",
                hint,
            )

    @requires("returns_result")
    def test_seconds_per_product(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        # Few ones, and numbers that no block divides.
        counts = generator.shuffled(
            [generator.integer(2, 4), generator.integer(6, 9), 5 * generator.integer(3, 5) + 1, MANY - 1]
        )
        sizes = long_sizes(device, generator, len(counts), card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": count} for size, count in zip(sizes, counts, strict=True)]
        by_default = crossed(submission, generator, by_default=True)
        # However long the warm-up is, what comes before one timed product comes before more.
        own_warm_up = min((run.count() - 1 for run in by_default if run.iterations == 1), default=0)
        for run in by_default:
            require_counted(run, own_warm_up)
        runs = measure(submission, generator, device, calls, warm=True)
        low, high = (0.5, 2) if are_explained(device, runs) else (0.9, 1.1)
        for run in runs:
            honest, took, iterations = expected(device, run), seconds_of(run), run.iterations
            launch = max(_LAUNCH_SECONDS, run.observed.host_seconds)
            if least_read(device, run) <= took < launch and took * iterations < 0.5 * honest.low:
                continue  # no division explains that, nobody has waited: the measurements' checks charge for it
            with recognised(device, run):
                require_between(
                    took,
                    low * honest.low,
                    high * honest.high,
                    what=f"seconds per product of {run.call['size']} with {iterations} iterations",
                    show=seconds,
                    expected=f"about {seconds(honest.low)}",
                    hint="Divide the time by the number of products between start and stop.",
                )
            require_counted(run, own_warm_up)

    @requires("returns_result")
    def test_all_sizes_compared(self, submission: Submission, generator: InputGenerator) -> None:
        simulated = submission.device.simulated
        sizes = [generator.odd(33, 1023) for _ in range(generator.integer(4, 6))]
        calls = compare_calls(generator, submission.device, sizes)
        with_sizes = len(calls)
        if simulated:  # the default takes long on a real CPU
            calls.append({})
        paces = host_paces(generator, sizes) if simulated else []
        reply = submission.probe(
            Compare(calls=calls, refused=_REFUSED), values=False, conditions=host_conditions(paces)
        )
        for arguments, rows in zip(calls, reply.rows, strict=True):
            expected_sizes, dtype = arguments.get("sizes", DEFAULT_SIZES), arguments.get("dtype", "float32")
            sizes_compared = [row["size"] for row in rows]
            require_equal(
                sizes_compared,
                expected_sizes,
                what="sizes of compare_cpu_gpu()",
                hint=SIZE_LEFT_OUT if _one_left_out(sizes_compared, expected_sizes) else "Compare each of `sizes`.",
            )
            for size, row in zip(expected_sizes, rows, strict=True):
                counts = arguments.get("iterations", 100), arguments.get("cpu_iterations")
                require_compared(row, *counts, dtype, partial(_iterations_reported, submission, generator))
                if simulated:
                    took, iterations = row["cpu"]["seconds"], arguments.get("cpu_iterations", _CPU_ITERATIONS)
                    honest, single = (
                        expected_on_host(submission.device.name, size, paces, kind) for kind in (dtype, "float32")
                    )
                    require_within(
                        honest,
                        took,
                        f"compare_cpu_gpu() at {size}: .cpu.seconds, per product on a CPU that is slower than "
                        "its data sheet",
                        _on_host(took, honest, single, iterations) or _BOTH,
                    )
        for arguments in calls[:with_sizes]:
            for size in arguments["sizes"]:
                call: Call = {"size": size, "dtype": arguments.get("dtype", "float32")}
                with recognising(lambda: ELSEWHERE if _none_on_the_gpu(reply.products) else None):
                    require_ran(call, reply.products, _BOTH, iterations=arguments.get("iterations", 100))
                if not simulated:  # no CPU's time is known, so its products were watched
                    require_ran(call, reply.products, _BOTH, iterations=1, place="cpu")
        require_refused(calls_of("compare_cpu_gpu", _REFUSED), reply.endings)

    @requires("returns_result")
    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        cases = refused_products(generator)
        reply = submission.probe(RefusedProducts(cases=cases), values=False)
        require_refused(calls_of("benchmark_matmul", cases), reply.endings)

    @requires("returns_result")
    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        sizes = [32 * multiple for multiple in generator.shuffled(range(1, 7))[:3]]
        chosen = ",".join(map(str, sizes))
        arguments = ["--sizes", chosen, "--iterations", "5", *own_gpu(submission.device)]
        plots = made_up_comparisons(generator)
        device = "cpu" if submission.device.simulated else None
        with recognising(lambda: _without_a_size(submission)):
            reply = submission.probe(BenchmarkPictures(command=arguments, plots=plots), device=device)
        rows = picture_and_json(reply, "python -m labs.lab1_gpu_basics.benchmark")
        what = f"benchmark --sizes {chosen}"
        saved_sizes = [row.get("size") for row in rows if isinstance(row, dict)]
        require_equal(saved_sizes, sizes, what=f"sizes in the results of `{what}`")
        for name, files in (("benchmark.json", list(reply.json)), ("speedup.png", list(reply.pictures))):
            require(name in files, f"`{what}` wrote {', '.join(files)} into --out, and no {name}")
        require(
            is_simulated(reply.json["benchmark.json"]) is submission.device.simulated,
            f"`{what}`: benchmark.json does not say whether its times are simulated",
            "Write the results with labkit.results.save_json and device.provenance().",
        )
        if submission.device.simulated:
            require_simulated_pictures(reply, f"`{what}`")
        saved = [compared(row) for row in rows]
        for drawn, axes, source in zip(
            [saved, *plots], [reply.shown, *reply.plots], ("speedup.png", *_CALLS), strict=True
        ):
            require_visible("plot_speedup", partial(require_speedups_drawn, rows=drawn, what=source), axes, source)
        require_written("plot_speedup", reply)


_CALLS = ("plot_speedup() of some comparisons", "plot_speedup() of others")


def _one_left_out(sizes: Sequence[object], expected: Sequence[int]) -> bool:
    return list(sizes) in (list(expected[:-1]), list(expected[1:]))


def _without_a_size(submission: Submission) -> Cause | None:
    """Whether nothing is compared if there is one size, as the program asks for each size."""
    with suppress(CheckFailed, NeedsReview):  # then it is something else that is wrong
        (rows,) = submission.probe(Compare(calls=[{"sizes": [64], "iterations": 1}]), values=False).rows
        return None if rows else SIZE_LEFT_OUT
    return None


def _iterations_reported(submission: Submission, generator: InputGenerator, iterations: int) -> object:
    """What `benchmark_matmul` says if it is given so many."""
    with suppress(CheckFailed, NeedsReview):  # then it is something else that is wrong
        call: Call = {"size": generator.odd(101, 199), "iterations": iterations}
        (run,) = measure(submission, generator, submission.device.name, [call])
        return run.observed.result["iterations"]
    return None


def _none_on_the_gpu(products: Sequence[ProductCount]) -> bool:
    return not any(product["device"] == "cuda" for product in products)


def _on_host(took: object, honest: Interval, single: Interval, iterations: int) -> Cause | None:
    """The mistake that the seconds of a product on the CPU show; `single`: what it takes there in float32."""
    if not isinstance(took, float):
        return None
    if took in single:  # and not in `honest`
        return DTYPE_IGNORED
    return TOTAL if took / iterations in honest else None
