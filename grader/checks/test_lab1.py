"""Judges Lab 1: is the benchmark right, are its numbers true, is memory accounted for, do the conclusions follow?"""

from __future__ import annotations

import json
from typing import Any

from grader.checks import lab1_report
from grader.checks.lab1_memory import network, require_parameters, truth
from grader.checks.timing import Call, devices, expected, long_size, measure, peak_tflops
from grader.criterion import criterion, requires
from grader.fresh import Fresh
from grader.judge import mebibytes, number, require, require_between, require_close, require_equal, seconds
from grader.submission import Submission
from labkit.results import STAGES

DEFAULT_SIZES = [128, 512, 1024, 2048, 4096]
SYNC_HINT = "a GPU works through a queue: torch.cuda.synchronize() waits until it is empty"


def picture_and_json(seen: Any, what: str) -> list[Any]:
    """The rows of the one results file a program wrote; fails unless a picture that shows something lies beside it."""
    require(seen.exit_code in (0, None), f"{what} ended with exit code {seen.exit_code!r}, expected 0")
    require(bool(seen.json), f"{what} wrote no .json file into the folder given by --out")
    require(bool(seen.pictures), f"{what} wrote no .png file into the folder given by --out")
    for name, picture in seen.pictures.items():
        require(
            picture["width"] >= 200 and picture["height"] >= 150 and picture["colours"] >= 4,
            f"{name} shows nothing: {picture['width']} x {picture['height']} pixels in {picture['colours']} colours",
            "draw before you save, and save the figure you drew on",
        )
    for text in seen.json.values():
        try:
            rows = json.loads(text)["results"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(rows, list):
            return rows
    require(False, f"no .json file of {what} has a list of results", "labkit.results.save_json writes the right form")
    return []


@criterion("lab1.benchmark")
class TestBenchmark:
    def test_environment_described(self, submission: Submission) -> None:
        seen = submission.probe("lab1.environment")
        told = seen.told
        require_equal(told["python"], seen.python, what="Environment.python")
        require_equal(told["torch"], seen.torch, what="Environment.torch")
        require_equal(told["device"], "cuda", what="Environment.device where a GPU is present")
        require_equal(told["device_name"], seen.device_name, what="Environment.device_name")
        require_equal(told["memory_bytes"], seen.memory_bytes, what="Environment.memory_bytes")
        require_equal(told["compute_capability"], seen.capability, what="Environment.compute_capability")
        require(bool(told["driver"]), "Environment.driver is empty although NVML answers", "ask pynvml for it")
        if submission.device.simulated:
            without = submission.probe("lab1.environment", device="cpu").told
            require_equal(without["device"], "cpu", what="Environment.device on a machine without a GPU")
            require_equal(without["driver"], None, what="Environment.driver on a machine without a driver")
            require_equal(without["memory_bytes"], None, what="Environment.memory_bytes on a machine without a GPU")

    def test_returns_result(self, submission: Submission, fresh: Fresh) -> None:
        size = fresh.odd(101, 199)
        (seen,) = measure(submission, submission.device.name, [{"size": size, "iterations": 7}])
        result = seen["result"]
        require_equal(result["size"], size, what="MatmulResult.size")
        require_equal(result["iterations"], 7, what="MatmulResult.iterations")
        require(str(result["device"]).startswith("cuda"), f"MatmulResult.device: saw {result['device']!r}")
        require(number(result["seconds"], "MatmulResult.seconds") > 0, f"seconds: saw {result['seconds']}")
        require(number(result["tflops"], "MatmulResult.tflops") > 0, f"tflops: saw {result['tflops']}")

    @requires("returns_result")
    def test_right_device_and_dtype(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        calls: list[Call] = [
            {"size": fresh.odd(201, 299), "iterations": 6, "dtype": "float16"},
            {"size": fresh.odd(301, 399), "iterations": 6, "dtype": "float32"},
            {"size": fresh.odd(31, 63), "iterations": 6, "device": "cpu"},
        ]
        for call, seen in zip(calls, measure(submission, device, calls), strict=True):
            place, dtype = call.get("device", "cuda"), call.get("dtype", "float32")
            what = f"benchmark_matmul({place!r}, {call['size']}, dtype={dtype})"
            told = seen["result"]
            require(str(told["device"]).startswith(place), f"{what}: the result says device {told['device']!r}")
            require(
                str(told["dtype"]).removeprefix("torch.") == dtype, f"{what}: the result says dtype {told['dtype']!r}"
            )
            on_gpu = [product for product in seen["products"] if product["device"] == "cuda"]
            if place == "cpu":
                require(not on_gpu, f"{what} ran products on the GPU", "create both operands on `device`")
                continue
            work = 2 * call["size"] ** 3
            right = sum(p["count"] for p in on_gpu if p["dtype"] == dtype and p["flops"] == work)
            others = [f"{p['count']} in {p['dtype']} of {p['flops']} FLOP" for p in on_gpu if p["dtype"] != dtype]
            require(
                right >= call["iterations"],
                f"{what}: {right} products of {work} FLOP in {dtype} ran on the GPU, expected at least "
                f"{call['iterations']}" + (f"; also saw {', '.join(others)}" if others else ""),
                "create both operands on `device` in `dtype` before the clock starts",
            )

    @requires("returns_result")
    def test_warmed_up(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        call = {"size": fresh.odd(201, 299), "iterations": 1, "warmup": 5}
        (seen,) = measure(submission, device, [call])
        honest = expected(device, call, seen).high
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        require(
            took <= 50 * honest,
            f"the first product in a new process: saw {seconds(took)}, expected about {seconds(honest)}",
            "the first product also loads a library; run `warmup` products before the clock starts",
        )

    @requires("returns_result")
    def test_only_the_product_timed(self, submission: Submission, fresh: Fresh) -> None:
        # An older GPU shows best what does not belong: its memory is slow beside its tensor cores.
        device = "vgpu:T4" if submission.device.simulated else "cuda"
        call = {"size": long_size(device, fresh, "float16", 100), "iterations": 10, "dtype": "float16"}
        (seen,) = measure(submission, device, [call], warm=True)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        high = expected(device, call, seen).high
        require(
            took <= high,
            f"seconds per product of {call['size']} in float16: saw {seconds(took)}, of which the product can take "
            f"{seconds(high)} at most",
            "create operands and move data before the clock starts; between start and stop there is only the product",
        )

    @requires("returns_result")
    def test_seconds_per_product(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        size = long_size(device, fresh)
        calls = [{"size": size, "iterations": count} for count in (6, 24)]
        few, many = (
            number(seen["result"]["seconds"], "seconds") for seen in measure(submission, device, calls, warm=True)
        )
        require_close(
            many,
            few,
            relative=0.3,
            what="seconds with 24 iterations against 6",
            show=seconds,
            hint="MatmulResult.seconds is per product: divide by the number of products between start and stop",
        )

    @requires("returns_result")
    def test_all_sizes_compared(self, submission: Submission) -> None:
        simulated = submission.device.simulated
        sizes = DEFAULT_SIZES if simulated else [64, 128, 256, 512, 1024]
        arguments: dict[str, Any] = {} if simulated else {"sizes": sizes, "iterations": 10}
        seen = submission.probe("lab1.compare", values=not simulated, arguments=arguments)
        require_equal([row["size"] for row in seen.rows], sizes, what="sizes of compare_cpu_gpu()")
        for row in seen.rows:
            what = f"compare_cpu_gpu() at {row['size']}"
            require(str(row["cpu"]["device"]) == "cpu", f"{what}: .cpu was measured on {row['cpu']['device']!r}")
            require(
                str(row["gpu"]["device"]).startswith("cuda"), f"{what}: .gpu was measured on {row['gpu']['device']!r}"
            )
            ratio = number(row["cpu"]["seconds"], what) / number(row["gpu"]["seconds"], what)
            require_close(row["speedup"], ratio, relative=1e-6, what=f"{what}, speedup = cpu.seconds / gpu.seconds")

    @requires("returns_result", "all_sizes_compared")
    def test_results_and_plot_saved(self, submission: Submission) -> None:
        arguments = ["--sizes", "64,96,128", "--iterations", "5"]
        seen = submission.probe("lab1.program", module="benchmark", arguments=arguments)
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.benchmark")
        sizes = [row.get("size") for row in rows if isinstance(row, dict)]
        require_equal(sizes, [64, 96, 128], what="sizes in the results of `benchmark --sizes 64,96,128`")


@criterion("lab1.measurements")
class TestMeasurements:
    @requires("lab1.benchmark.returns_result")
    def test_seconds_equal_truth(self, submission: Submission, fresh: Fresh) -> None:
        for device in devices(submission.device):
            calls: list[Call] = [{"size": long_size(device, fresh), "iterations": 10} for _ in range(2)]
            calls.append({"size": long_size(device, fresh, "float16"), "iterations": 10, "dtype": "float16"})
            for call, seen in zip(calls, measure(submission, device, calls), strict=True):
                expected(device, call, seen).require(
                    seen["result"]["seconds"],
                    f"seconds per product of {call['size']} in {call.get('dtype', 'float32')} on {device}",
                    SYNC_HINT,
                )

    @requires("lab1.benchmark.returns_result")
    def test_small_products_within_interval(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        call = {"size": fresh.odd(65, 161), "iterations": 50}
        (seen,) = measure(submission, device, [call], warm=True)
        expected(device, call, seen).require(
            seen["result"]["seconds"],
            f"seconds per product of {call['size']}, a kernel shorter than its launch",
            "time many products, or one with a synchronisation before and after; nothing else between start and stop",
        )

    @requires("lab1.benchmark.returns_result")
    def test_tflops_counted(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        calls = [{"size": fresh.odd(101, 999), "iterations": 5} for _ in range(3)]
        for call, seen in zip(calls, measure(submission, device, calls), strict=True):
            took = number(seen["result"]["seconds"], "MatmulResult.seconds")
            require(took > 0, f"MatmulResult.seconds: saw {took}")
            require_close(
                seen["result"]["tflops"],
                2 * call["size"] ** 3 / took / 1e12,
                relative=0.005,
                what=f"TFLOPS of a product of {call['size']} that took {seconds(took)}",
                show=lambda value: f"{value:.5g} TFLOPS",
                hint="each of the n² results takes n multiplications and n additions",
            )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_start(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        call = {"size": long_size(device, fresh), "iterations": 1}
        (seen,) = measure(submission, device, [call], warm=True, busy_products=20)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        high = 1.5 * expected(device, call, seen).high
        require(
            took <= high,
            f"with work still queued when benchmark_matmul was called: saw {seconds(took)}, expected "
            f"{seconds(high / 1.5)}",
            f"the clock ran while older work was finished; {SYNC_HINT}, also before the start",
        )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_stop(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name
        call = {"size": long_size(device, fresh), "iterations": 12}
        (seen,) = measure(submission, device, [call], warm=True)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        honest = expected(device, call, seen)
        require(
            took >= 0.9 * honest.low,
            f"the clock was stopped before the GPU had finished: saw {seconds(took)}, expected {seconds(honest.low)}",
            SYNC_HINT,
        )
        require(took <= 3 * honest.high, f"not the time of a product: saw {seconds(took)}, not {seconds(honest.high)}")

    @requires("lab1.benchmark.returns_result")
    def test_robust_against_one_slow_iteration(self, submission: Submission, fresh: Fresh) -> None:
        device = submission.device.name if submission.device.simulated else "vgpu:T4"
        call = {"size": long_size(device, fresh), "iterations": 25, "warmup": 3}
        (seen,) = measure(submission, device, [call], slow_factor=200.0)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        high = 1.1 * expected(device, call, seen).high
        require(
            took <= high,
            f"one of 25 products was made 200 times slower: saw {seconds(took)}, expected {seconds(high / 1.1)}",
            "the docstring asks for the median: of the single products, or of at least five blocks",
        )

    @requires("lab1.benchmark.returns_result")
    def test_never_above_the_roofline(self, submission: Submission, fresh: Fresh) -> None:
        for device in devices(submission.device):
            calls: list[Call] = [
                {"size": size, "iterations": 8, "dtype": dtype}
                for dtype in ("float32", "float16")
                for size in (fresh.integer(3, 9) * 128, fresh.integer(4, 8) * 512)
            ]
            for call, seen in zip(calls, measure(submission, device, calls), strict=True):
                told = number(seen["result"]["tflops"], "MatmulResult.tflops")
                peak = peak_tflops(device, call["dtype"])
                if peak is None:
                    peak = 2 * call["size"] ** 3 / (0.9 * min(seen["truth"])) / 1e12
                require(
                    told <= peak,
                    f"a product of {call['size']} in {call['dtype']} on {device}: saw {told:.5g} TFLOPS, "
                    f"but no more than {peak:.5g} can be reached",
                    "a number above the peak means that the clock stopped too early or that work was counted twice",
                )
                slowest = 2 * call["size"] ** 3 / (5 * expected(device, call, seen).high) / 1e12
                require(told >= slowest, f"{told:.3g} TFLOPS were not measured: even {slowest:.3g} would be very slow")


@criterion("lab1.memory")
class TestMemory:
    def test_every_stage_present(self, submission: Submission, fresh: Fresh) -> None:
        seen = submission.probe("lab1.memory", values=False, **network(fresh))
        names = [stage["stage"] for stage in seen.profile["stages"]]
        require_equal(names, list(STAGES), what="stages of profile_training_memory()")
        require_equal(str(seen.profile["dtype"]).removeprefix("torch."), "float32", what="MemoryProfile.dtype")

    @requires("every_stage_present")
    def test_allocated_equals_truth(self, submission: Submission, fresh: Fresh) -> None:
        case = network(fresh)
        seen = submission.probe("lab1.memory", values=False, **case)
        real = truth(submission, case)
        real.compare(seen.profile, "allocated_bytes", "torch.cuda.memory_allocated() at the end of each stage")
        held = seen.profile["stages"][1]["allocated_bytes"] - seen.profile["stages"][0]["allocated_bytes"]
        require_parameters(held, case["widths"], 4, "bytes that the parameters added in stage 'model'")

    @requires("every_stage_present")
    def test_reserved_told_apart(self, submission: Submission, fresh: Fresh) -> None:
        case = network(fresh)
        seen = submission.probe("lab1.memory", values=False, **case)
        truth(submission, case).compare(
            seen.profile, "reserved_bytes", "reserved is what the caching allocator keeps, freed tensors included"
        )

    @requires("every_stage_present")
    def test_peak_equals_truth(self, submission: Submission, fresh: Fresh) -> None:
        case = network(fresh)
        seen = submission.probe("lab1.memory", values=False, **case)
        truth(submission, case).compare(
            seen.profile, "peak_bytes", "torch.cuda.max_memory_allocated(), reset where each stage begins"
        )

    @requires("every_stage_present")
    def test_peak_reset_between_stages(self, submission: Submission, fresh: Fresh) -> None:
        seen = submission.probe("lab1.memory", values=False, **network(fresh))
        peaks = {stage["stage"]: number(stage["peak_bytes"], "peak_bytes") for stage in seen.profile["stages"]}
        require(
            peaks["loss"] < 0.9 * max(peaks.values()) and peaks["zero_grad"] < max(peaks.values()),
            f"the peak never falls: {mebibytes(peaks['zero_grad'])} in 'zero_grad', which needs less than 'step'",
            "torch.cuda.reset_peak_memory_stats() where a stage begins, or every stage shows the largest so far",
        )

    @requires("every_stage_present")
    def test_precisions_compared(self, submission: Submission, fresh: Fresh) -> None:
        case = network(fresh)
        seen = submission.probe("lab1.memory_precisions", values=False, **case)
        names = [str(profile["dtype"]).removeprefix("torch.") for profile in seen.profiles]
        require_equal(names, ["float32", "float16"], what="dtypes of compare_precisions()")
        for profile, bytes_per_element in zip(seen.profiles, (4, 2), strict=True):
            stages = {stage["stage"]: stage["allocated_bytes"] for stage in profile["stages"]}
            require_parameters(
                stages["model"] - stages["baseline"],
                case["widths"],
                bytes_per_element,
                f"bytes of the model in {profile['dtype']}",
                "each precision starts from nothing: model, batch and optimizer of the run before must be gone",
            )

    @requires("every_stage_present", "precisions_compared")
    def test_memory_timeline_saved(self, submission: Submission) -> None:
        seen = submission.probe("lab1.program", values=False, module="memory_profiling", arguments=[])
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.memory_profiling")
        names = [str(row.get("dtype")).removeprefix("torch.") for row in rows if isinstance(row, dict)]
        require_equal(names, ["float32", "float16"], what="profiles in the results of memory_profiling")


@criterion("lab1.analysis")
class TestAnalysis:
    def test_crossover_found(self, submission: Submission, fresh: Fresh) -> None:
        cases, answers = [], []
        for wins in ([0, 0, 1, 1, 1], [1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0, 1, 1], [1, 0, 1], [1, 1, 0]):
            sizes = sorted(fresh.odd(10 + 400 * i, 380 + 400 * i) for i in range(len(wins)))
            rows = []
            for size, win in zip(sizes, wins, strict=True):
                gpu = fresh.log_uniform(1e-5, 1e-2)
                rows.append([size, gpu * fresh.uniform(1.2, 40) if win else gpu / fresh.uniform(1.2, 40), gpu])
            stays = [i for i in range(len(wins)) if all(wins[i:])]
            answers.append(sizes[stays[0]] if stays else None)
            order = fresh.shuffled(list(range(len(rows))))
            cases.append([rows[index] for index in order])
        seen = submission.numeric_probe("lab1.crossover", cases=cases)
        for case, answer, told in zip(cases, answers, seen.sizes, strict=True):
            shown = ", ".join(f"{row[0]}: {row[1] / row[2]:.3g}x" for row in sorted(case))
            require_equal(
                told,
                answer,
                what=f"find_crossover() for speedups {shown}",
                hint="the smallest size from which on the GPU is faster at every larger measured size; None if never",
            )

    def test_bound_named(self, submission: Submission, fresh: Fresh) -> None:
        cases, answers = [], []
        for answer in ("launch", "memory", "compute") * 3:
            size, element = fresh.integer(64, 8192), 2 ** fresh.integer(1, 3)
            rest = [fresh.log_uniform(1e-6, 1e-3) for _ in range(2)]
            longest = max(rest) * fresh.uniform(1.2, 1.8)  # close, so that a wrong factor of 2 or 3 shows
            names = [name for name in ("launch", "memory", "compute") if name != answer]
            took = {answer: longest, names[0]: rest[0], names[1]: rest[1]}
            cases.append(
                {
                    "size": size,
                    "peak_tflops": 2 * size**3 / took["compute"] / 1e12,
                    "bandwidth_bytes_per_second": 3 * size**2 * element / took["memory"],
                    "launch_seconds": took["launch"],
                    "bytes_per_element": element,
                }
            )
            answers.append((answer, took))
        seen = submission.numeric_probe("lab1.bounds", cases=cases)
        for (answer, took), told in zip(answers, seen.bounds, strict=True):
            shown = ", ".join(f"{name} {seconds(value)}" for name, value in sorted(took.items()))
            require_equal(
                told,
                answer,
                what=f"classify_bound() where the three limits are {shown}",
                hint="the bound is what takes longest: the launch, moving 3 n² elements, or 2 n³ operations",
            )

    def test_peak_share_computed(self, submission: Submission, fresh: Fresh) -> None:
        cases, answers = [], []
        for _ in range(4):
            size, share, peak = fresh.odd(101, 4097), fresh.uniform(0.05, 0.95), fresh.uniform(5, 900)
            cases.append({"size": size, "seconds": 2 * size**3 / (share * peak * 1e12), "peak_tflops": peak})
            answers.append(share)
        seen = submission.numeric_probe("lab1.peak_share", cases=cases)
        for answer, told in zip(answers, seen.shares, strict=True):
            require_close(
                told, answer, relative=1e-6, what="peak_share()", hint="a ratio: achieved TFLOPS over peak TFLOPS"
            )

    def test_bottleneck_found(self, submission: Submission, fresh: Fresh) -> None:
        count = len(STAGES)
        winners = fresh.shuffled(list(range(count)))[:4]
        peaks = [[fresh.integer(10**6, 5 * 10**8) for _ in STAGES] for _ in winners]
        for row, winner in zip(peaks, winners, strict=True):
            row[winner] = max(row) + fresh.integer(10**6, 10**8)
        allocated = [[fresh.integer(0, peak) for peak in row] for row in peaks]
        seen = submission.numeric_probe("lab1.bottleneck", peaks=peaks, allocated=allocated)
        for row, winner, told in zip(peaks, winners, seen.stages, strict=True):
            require_equal(
                told, STAGES[winner], what=f"find_bottleneck() for peaks {row}", hint="the largest peak_bytes"
            )
        for held, told in zip(allocated, seen.increases, strict=True):
            steps = [after - before for before, after in zip([0, *held], held, strict=False)]
            wanted = dict(zip(STAGES, steps, strict=True))
            require(isinstance(told, dict), f"stage_increases() returned {told!r}, expected a dict of stage: bytes")
            told = {name: value for name, value in told.items() if name != STAGES[0]}
            wanted.pop(STAGES[0])
            require_equal(told, wanted, what=f"stage_increases() for allocated bytes {held}")

    def test_slowest_operation_found(self, submission: Submission, fresh: Fresh) -> None:
        steps = fresh.integer(3, 5)
        # One long kernel beside many launches, and many short kernels beside one product.
        cases: list[tuple[str, int, dict[str, int]]] = [
            ("mm", 1024, {"mm": 1, "exp": fresh.integer(4, 5)}),
            ("exp", 96, {"exp": fresh.integer(30, 40), "mm": 1}),
        ]
        for slowest, size, repeats in cases:
            seen = submission.probe(
                "lab1.operations",
                values=not submission.device.simulated,
                size=size,
                repeats=repeats,
                steps=steps,
                warmup=2,
            )
            require(bool(seen.operations), "profile_operations() returned nothing")
            first = seen.operations[0]
            require(
                first["name"] == f"aten::{slowest}",
                f"the slowest operation of a step with {repeats}: saw {first['name']!r}, expected 'aten::{slowest}'",
                "operations, not kernels, have names that begin with aten::; the longest self time on the device first",
            )
            require_equal(
                first["calls"],
                steps * repeats[slowest],
                what=f"calls of {first['name']} in {steps} profiled steps",
                hint="warm-up steps run before the profiler starts; every profiled step is counted",
            )
            took = [number(row["device_seconds"], "device_seconds") for row in seen.operations]
            require(took == sorted(took, reverse=True), f"the operations are not sorted by device_seconds: {took[:5]}")
            if submission.device.simulated:
                kernel = seen.device_seconds[f"aten::{slowest}"] * steps / seen.steps_run
                require_close(
                    took[0],
                    kernel,
                    relative=0.02,
                    what=f"device seconds of {first['name']} in {steps} steps",
                    show=seconds,
                    hint="the profiler's times are in microseconds",
                )
                everything = sum(seen.device_seconds.values()) * steps / seen.steps_run
                require_between(
                    sum(took),
                    0,
                    1.02 * everything,
                    what=f"device seconds of all operations together in {steps} steps",
                    show=seconds,
                    hint="self times: without the operations called in turn, and without listing kernels a second time",
                )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        lab1_report.judge(submission)
