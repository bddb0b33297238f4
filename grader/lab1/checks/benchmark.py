"""Judges Lab 1's benchmark: the right work, on the right device, in every size, and nothing else timed."""

from __future__ import annotations

from typing import Any

from gradebox.assertions import number, positive, require, require_between, require_close, require_equal, seconds
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab1.truth.timing import (
    Call,
    expected,
    expected_on_host,
    host_paces,
    least_read,
    long_size,
    long_sizes,
    measure,
    require_ran,
)
from grader.shared.programs import picture_and_json

ABSENT = "whatever a machine lacks is None, never an exception and never a made-up value"
_BOTH = "call benchmark_matmul for the CPU and for the GPU"
DEFAULT_SIZES = [128, 512, 1024, 2048, 4096]


@criterion("lab1.benchmark")
class TestBenchmark:
    def test_environment_described(self, submission: Submission) -> None:
        """Describes the machine that it runs on."""
        seen = submission.probe("lab1.gpu_basics.environment")
        told = seen.told
        require_equal(told["python"], seen.python, what="Environment.python")
        require_equal(told["torch"], seen.torch, what="Environment.torch")
        require_equal(told["cuda"], seen.cuda, what="Environment.cuda", hint="what PyTorch was built for")
        require_equal(told["simulated"], submission.device.simulated, what="Environment.simulated")
        require_equal(told["device"], "cuda", what="Environment.device where a GPU is present")
        require_equal(told["device_name"], seen.device_name, what="Environment.device_name")
        require_equal(told["memory_bytes"], seen.memory_bytes, what="Environment.memory_bytes")
        require_equal(told["compute_capability"], seen.capability, what="Environment.compute_capability")
        require(bool(told["driver"]), "Environment.driver is empty although NVML answers", "ask pynvml for it")
        if submission.device.simulated:
            without = submission.probe("lab1.gpu_basics.environment", device="cpu").told
            require_equal(without["device"], "cpu", what="Environment.device on a machine without a GPU")
            require_equal(without["driver"], None, what="Environment.driver on a machine without a driver", hint=ABSENT)
            require_equal(
                without["memory_bytes"], None, what="Environment.memory_bytes on a machine without a GPU", hint=ABSENT
            )

    def test_returns_result(self, submission: Submission, fresh: Fresh) -> None:
        """Returns a complete result."""
        size = fresh.odd(101, 199)
        (seen,) = measure(submission, fresh, submission.device.name, [{"size": size, "iterations": 7}])
        result = seen["result"]
        require_equal(result["size"], size, what="MatmulResult.size")
        require_equal(result["iterations"], 7, what="MatmulResult.iterations")
        require(str(result["device"]).startswith("cuda"), f"MatmulResult.device: saw {result['device']!r}")
        require(number(result["seconds"], "MatmulResult.seconds") > 0, f"seconds: saw {result['seconds']}")
        require(number(result["tflops"], "MatmulResult.tflops") > 0, f"tflops: saw {result['tflops']}")

    @requires("returns_result")
    def test_right_device_and_dtype(self, submission: Submission, fresh: Fresh) -> None:
        """Runs on the device and in the dtype asked for."""
        device = submission.device.name
        calls: list[Call] = [
            {"size": fresh.odd(201, 299), "iterations": 6, "dtype": "float16"},
            {"size": fresh.odd(301, 399), "iterations": 6, "dtype": "float32"},
            {"size": fresh.odd(31, 63), "iterations": 6, "device": "cpu"},
        ]
        for call, seen in zip(calls, measure(submission, fresh, device, calls), strict=True):
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
        """Warms up before it measures."""
        device = submission.device.name
        call = {"size": fresh.odd(201, 299), "iterations": 1, "warmup": 5}
        (seen,) = measure(submission, fresh, device, [call])
        hint = "the first product also loads a library; run `warmup` products before the clock starts"
        require_ran(call, seen, hint)
        honest = expected(device, call, seen).high
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        require(
            least_read(device, call, seen) <= took <= 50 * honest,
            f"the first product in a new process: saw {seconds(took)}, expected about {seconds(honest)}",
            hint,
        )

    @requires("returns_result")
    def test_only_the_product_timed(self, submission: Submission, fresh: Fresh) -> None:
        """Times the product and nothing else."""
        # An older GPU shows best what does not belong: its memory is slow beside its tensor cores.
        device = "vgpu:T4" if submission.device.simulated else "cuda"
        call = {"size": long_size(device, fresh, "float16", 100), "iterations": 10, "dtype": "float16"}
        (seen,) = measure(submission, fresh, device, [call], warm=True)
        hint = "create operands and move data before the clock starts; between start and stop there is only the product"
        require_ran(call, seen, hint)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        high = expected(device, call, seen).high
        least = least_read(device, call, seen)
        require(
            took >= least,
            f"seconds per product of {call['size']} in float16: saw {seconds(took)}, but to launch it alone takes "
            f"{seconds(least)}",
            "start the clock before the products and stop it after them",
        )
        require(
            took <= high,
            f"seconds per product of {call['size']} in float16: saw {seconds(took)}, of which the product can take "
            f"{seconds(high)} at most",
            hint,
        )

    @requires("returns_result")
    def test_seconds_per_product(self, submission: Submission, fresh: Fresh) -> None:
        """Tells the seconds of one product."""
        device = submission.device.name
        counts = fresh.shuffled([4, 8, 16, 32])
        calls = [
            {"size": size, "iterations": count}
            for size, count in zip(long_sizes(device, fresh, len(counts)), counts, strict=True)
        ]
        for call, seen in zip(calls, measure(submission, fresh, device, calls, warm=True), strict=True):
            honest = expected(device, call, seen)
            require_between(
                seen["result"]["seconds"],
                0.5 * honest.low,
                2 * honest.high,
                what=f"seconds per product of {call['size']} with {call['iterations']} iterations",
                show=seconds,
                expected=f"about {seconds(honest.low)}",
                hint="MatmulResult.seconds is per product: divide by the number of products between start and stop",
            )

    @requires("returns_result")
    def test_all_sizes_compared(self, submission: Submission, fresh: Fresh) -> None:
        """Compares the CPU with the GPU at every size."""
        simulated = submission.device.simulated
        sizes = [fresh.odd(33, 1023) for _ in range(fresh.integer(4, 6))]
        calls: list[dict[str, Any]] = [{"sizes": sizes, "iterations": fresh.integer(5, 15)}]
        if simulated:  # the default takes long on a real CPU
            calls.append({})
        paces = host_paces(fresh, sizes) if simulated else []
        seen = submission.probe("lab1.gpu_basics.compare", values=not simulated, calls=calls, host_paces=paces)
        for arguments, rows in zip(calls, seen.rows, strict=True):
            wanted = arguments.get("sizes", DEFAULT_SIZES)
            require_equal([row["size"] for row in rows], wanted, what="sizes of compare_cpu_gpu()")
            for row in rows:
                _require_compared(row, arguments.get("iterations", 100))
                if simulated:
                    expected_on_host(submission.device.name, row["size"], paces).require(
                        row["cpu"]["seconds"],
                        f"compare_cpu_gpu() at {row['size']}: .cpu.seconds, per product on a CPU that is slower than "
                        "its data sheet",
                        _BOTH,
                    )
        for size in sizes:
            call = {**calls[0], "size": size}
            require_ran(call, {"products": seen.products}, _BOTH)
            if not simulated:  # where no CPU's time is known, its products were seen
                require_ran({**call, "iterations": 1}, {"products": seen.products}, _BOTH, place="cpu")

    @requires("returns_result", "all_sizes_compared")
    def test_results_and_plot_saved(self, submission: Submission, fresh: Fresh) -> None:
        """Saves the results and a plot."""
        sizes = [32 * multiple for multiple in fresh.shuffled(range(1, 7))[:3]]
        chosen = ",".join(map(str, sizes))
        arguments = ["--sizes", chosen, "--iterations", "5"]
        seen = submission.probe("shared.programs.run", module="lab1_gpu_basics.benchmark", arguments=arguments)
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.benchmark")
        found = [row.get("size") for row in rows if isinstance(row, dict)]
        require_equal(found, sizes, what=f"sizes in the results of `benchmark --sizes {chosen}`")


def _require_compared(row: dict[str, Any], iterations: int) -> None:
    """Fail unless one comparison is of a CPU with a GPU, and its ratio the right way up."""
    what = f"compare_cpu_gpu() at {row['size']}"
    require(str(row["cpu"]["device"]) == "cpu", f"{what}: .cpu was measured on {row['cpu']['device']!r}")
    require(str(row["gpu"]["device"]).startswith("cuda"), f"{what}: .gpu was measured on {row['gpu']['device']!r}")
    require_equal(row["gpu"]["iterations"], iterations, what=f"{what}: .gpu.iterations")
    cpu, gpu = (positive(row[side]["seconds"], f"{what}: .{side}.seconds") for side in ("cpu", "gpu"))
    require_close(row["speedup"], cpu / gpu, relative=1e-6, what=f"{what}, speedup = cpu.seconds / gpu.seconds")
