"""Judges Lab 1's benchmark: the right work, on the right device, in every size, and nothing else timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    positive,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.truth.pictures import made_up_comparisons, require_speedups_drawn, require_written
from grader.lab1.truth.readings import require_crossed, require_seconds
from grader.lab1.truth.refusals import calls_of, require_refused
from grader.lab1.truth.timing import (
    LAUNCHED,
    NAMES,
    Call,
    as_written,
    count_of,
    crossed,
    devices,
    expected,
    expected_on_host,
    host_conditions,
    host_paces,
    least_read,
    long_size,
    long_sizes,
    measure,
    named,
    require_ran,
    require_waited_for_by_any_name,
)
from grader.shared.cards import card_of
from grader.shared.cases import every_value
from grader.shared.programs import is_simulated, own_gpu, picture_and_json, require_simulated_pictures

_MANY = 60
_OWN_WARM_UP = 3
"""Products per timed one: `torch.utils.benchmark` runs two before each measurement."""
_LAUNCH_SECONDS = 25e-6
"""Within this a host hands a product to the GPU, and no product that takes long is computed, nor a thousandth of it. A
slow host of a real GPU takes longer: there it is what a product takes that costs the GPU nothing."""
_REFUSED = (
    {"sizes": [64], "device": "cpu"},
    {"sizes": [64, 0]},
    {"sizes": [64], "iterations": 0},
    {"sizes": [64], "cpu_iterations": 0},
)
_NONSENSE = {
    "argument": ("size", "iterations", "warmup"),
    "value": ("0", "negative"),
    "device": ("cpu", "cuda", "cuda:0"),
}
_COMPARED: dict[str, tuple[Any, ...]] = {
    "dtype": (None, "float16", "bfloat16", "float64"),
    "device": (None, "cuda:0"),
    "sizes": ("one", "ascending", "in another order"),
    "iterations": (None, 1, "some"),
    "cpu_iterations": (None, 1, "some"),
}
ABSENT = "whatever a machine lacks is None, never an exception and never a made-up value"
_BOTH = "call benchmark_matmul for the CPU and for the GPU"
DEFAULT_SIZES = [128, 512, 1024, 2048, 4096]
_FIELDS = Cause("field_of_the_result", "each field holds what its line in the docstring says: size, iterations, times")
"""What is measured can be judged all the same."""


@criterion("lab1.benchmark", timeline=LAUNCHED)
class TestBenchmark:
    def test_environment_described(self, submission: Submission, generator: InputGenerator) -> None:
        """Describes the machine that it runs on."""
        refused = ["cuda:0", generator.shuffled(("tpu", "gpu", "CUDA"))[0]]
        devices = generator.shuffled((None, "cuda", "cpu"))
        seen = submission.probe("lab1.gpu_basics.environment", devices=devices, refused=refused)
        _require_described(submission, seen, [device or "cuda" for device in devices])
        require_refused([f"check_environment({device!r})" for device in refused], seen.endings)
        if submission.device.simulated:
            there = generator.shuffled((None, "cpu"))
            refused = ["cuda", refused[1]]
            seen = submission.probe("lab1.gpu_basics.environment", device="cpu", devices=there, refused=refused)
            _require_described(submission, seen, ["cpu", "cpu"], ", on a machine without a GPU", simulated=False)
            calls = [f"check_environment({device!r}) on a machine without a GPU" for device in refused]
            require_refused(calls, seen.endings)

    def test_returns_result(self, submission: Submission, generator: InputGenerator) -> None:
        """Returns a complete result."""
        size = generator.odd(101, 199)
        (seen,) = measure(submission, generator, submission.device.name, [{"size": size, "iterations": 7}])
        result = seen["result"]
        with recognising(lambda: _FIELDS):
            require_equal(result["size"], size, what="MatmulResult.size")
            require_equal(result["iterations"], 7, what="MatmulResult.iterations")
            require(number(result["seconds"], "MatmulResult.seconds") > 0, f"seconds: saw {result['seconds']}")
            require(number(result["tflops"], "MatmulResult.tflops") > 0, f"tflops: saw {result['tflops']}")

    @requires("returns_result")
    def test_right_device_and_dtype(self, submission: Submission, generator: InputGenerator) -> None:
        """Runs on the device and in the dtype asked for."""
        device = submission.device.name
        size = long_size(device, generator, card=card_of(submission))
        calls: list[Call] = [
            {"size": generator.odd(201, 299), "iterations": 6, "dtype": "float16"},
            {"size": generator.odd(301, 399), "iterations": 6},
            {"size": generator.odd(301, 399), "iterations": 6, "dtype": generator.shuffled(("bfloat16", "float64"))[0]},
            {"size": generator.odd(31, 63), "iterations": 6, "device": "cpu"},
            {"size": 1, "iterations": 6},
            *({"size": size, "iterations": 1, **name} for name in NAMES),
        ]
        observed = measure(submission, generator, device, calls)
        for call, seen in zip(calls, observed, strict=True):
            place, dtype = call.get("device", "cuda").partition(":")[0], call.get("dtype", "float32")
            what = f"benchmark_matmul({named(call)}, {call['size']}, dtype={dtype})"
            told = seen["result"]
            require_equal(told["device"], place, what=f"{what}: MatmulResult.device", hint="the device's type alone")
            require_equal(told["dtype"], dtype, what=f"{what}: MatmulResult.dtype", hint='a name without "torch."')
            on_gpu = [product for product in seen["products"] if product["device"] == "cuda"]
            if place == "cpu":
                require(not on_gpu, f"{what} ran products on the GPU", "create both operands on `device`")
                continue
            if call["size"] == 1:
                continue  # the product of two numbers need not be a matrix product
            work = 2 * call["size"] ** 3
            right = sum(p["count"] for p in on_gpu if p["dtype"] == dtype and p["flops"] == work)
            others = [f"{p['count']} in {p['dtype']} of {p['flops']} FLOP" for p in on_gpu if p["dtype"] != dtype]
            require(
                right >= call["iterations"],
                f"{what}: {right} products of {work} FLOP in {dtype} ran on the GPU, expected at least "
                f"{call['iterations']}" + (f"; also saw {', '.join(others)}" if others else ""),
                "create both operands on `device` in `dtype` before the clock starts",
            )
        require_waited_for_by_any_name(device, calls[-len(NAMES) :], observed[-len(NAMES) :])
        for place in devices(submission.device):
            half: Call = {"size": long_size(place, generator, "float16", card=card_of(submission)), "iterations": 10}
            half["dtype"] = "float16"
            (seen,) = measure(submission, generator, place, [half], warm=True)
            require_seconds(place, half, seen)
        for call, seen in zip(*crossed(submission, generator, by_default=False), strict=True):
            require_crossed(submission.device, call, seen)

    @requires("returns_result")
    def test_warmed_up(self, submission: Submission, generator: InputGenerator) -> None:
        """Warms up before it measures."""
        device = submission.device.name
        call = {"size": generator.odd(201, 299), "iterations": 1, "warmup": generator.integer(1, 9)}
        often = {"size": generator.odd(301, 399), "iterations": 1, "warmup": generator.integer(31, 60)}
        seen, long = measure(submission, generator, device, [call, often])
        hint = "the first product also loads a library; run `warmup` products before the clock starts"
        require_ran(call, seen, hint)
        honest = expected(device, call, seen).high
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        require(
            least_read(device, call, seen) <= took <= 50 * honest,
            f"the first product in a new process: saw {seconds(took)}, expected about {seconds(honest)}",
            hint,
        )
        ran = count_of(often, long)
        require(
            ran > often["warmup"],
            f"benchmark_matmul(..., iterations=1, warmup={often['warmup']}) ran {ran} products",
            "warmup says how many products come before the first timed one",
        )

    @requires("returns_result")
    @builds_on("right_device_and_dtype")
    def test_only_the_product_timed(self, submission: Submission, generator: InputGenerator) -> None:
        """Times the product and nothing else."""
        # An older GPU shows best what does not belong: its memory is slow beside its tensor cores. On a fast real one,
        # operands that are made while the clock runs are within what right methods differ by.
        device = "vgpu:T4"
        call = {"size": long_size(device, generator, launches=100), "iterations": 10}
        (seen,) = measure(submission, generator, device, [call], warm=True)
        hint = "create operands and move data before the clock starts; between start and stop there is only the product"
        require_ran(call, seen, hint)
        took = number(seen["result"]["seconds"], "MatmulResult.seconds")
        high = expected(device, call, seen).high
        least = least_read(device, call, seen)
        require(
            took >= least,
            f"seconds per product of {call['size']}: saw {seconds(took)}, but to launch it alone takes "
            f"{seconds(least)}",
            "start the clock before the products and stop it after them",
        )
        require(
            took <= high,
            f"seconds per product of {call['size']}: saw {seconds(took)}, of which the product can take "
            f"{seconds(high)} at most",
            hint,
        )

    @requires("returns_result")
    @builds_on("right_device_and_dtype", "warmed_up")
    def test_seconds_per_product(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells the seconds of one product."""
        device = submission.device.name
        # Few ones, and numbers that no block divides.
        counts = generator.shuffled(
            [generator.integer(2, 4), generator.integer(6, 9), 5 * generator.integer(3, 5) + 1, _MANY - 1]
        )
        calls = [
            {"size": size, "iterations": count}
            for size, count in zip(
                long_sizes(device, generator, len(counts), card=card_of(submission)), counts, strict=True
            )
        ]
        for call, seen in zip(*crossed(submission, generator, by_default=True), strict=True):
            _require_counted(call, seen)
        for call, seen in zip(calls, measure(submission, generator, device, calls, warm=True), strict=True):
            honest, told = expected(device, call, seen), number(seen["result"]["seconds"], "MatmulResult.seconds")
            launch = max(_LAUNCH_SECONDS, seen.get("host_seconds", 0.0))
            if 0 < told < launch and told * call["iterations"] < 0.5 * honest.low:
                continue  # no division explains that, nobody has waited: the measurements' checks charge for it
            require_between(
                told,
                0.5 * honest.low,
                2 * honest.high,
                what=f"seconds per product of {call['size']} with {call['iterations']} iterations",
                show=seconds,
                expected=f"about {seconds(honest.low)}",
                hint="MatmulResult.seconds is per product: divide by the number of products between start and stop",
            )
            _require_counted(call, seen)

    @requires("returns_result")
    @builds_on("right_device_and_dtype", "seconds_per_product")
    def test_all_sizes_compared(self, submission: Submission, generator: InputGenerator) -> None:
        """Compares the CPU with the GPU at every size."""
        simulated = submission.device.simulated
        sizes = [generator.odd(33, 1023) for _ in range(generator.integer(4, 6))]
        calls: list[dict[str, Any]] = [{"sizes": sizes, "iterations": generator.integer(8, 15), "cpu_iterations": 7}]
        # CPUs are very slow in 16 bits.
        dtypes = {} if simulated else {"dtype": (None, "float64")}
        calls += [_compared_call(generator, row, sizes) for row in every_value(generator, {**_COMPARED, **dtypes}, 2)]
        given = len(calls)
        if simulated:  # the default takes long on a real CPU
            calls.append({})
        paces = host_paces(generator, sizes) if simulated else []
        seen = submission.probe(
            "lab1.gpu_basics.compare",
            values=False,
            calls=calls,
            refused=_REFUSED,
            conditions=host_conditions(paces),
        )
        for arguments, rows in zip(calls, seen.rows, strict=True):
            wanted = arguments.get("sizes", DEFAULT_SIZES)
            require_equal([row["size"] for row in rows], wanted, what="sizes of compare_cpu_gpu()")
            for row in rows:
                kind = arguments.get("dtype", "float32")
                _require_compared(row, arguments.get("iterations", 100), arguments.get("cpu_iterations"), kind)
                if simulated:
                    expected_on_host(submission.device.name, row["size"], paces, kind).require(
                        row["cpu"]["seconds"],
                        f"compare_cpu_gpu() at {row['size']}: .cpu.seconds, per product on a CPU that is slower than "
                        "its data sheet",
                        _BOTH,
                    )
        for call in [{"iterations": 100, **one, "size": size} for one in calls[:given] for size in one["sizes"]]:
            require_ran(call, {"products": seen.products}, _BOTH)
            if not simulated:  # where no CPU's time is known, its products were seen
                require_ran({**call, "iterations": 1}, {"products": seen.products}, _BOTH, place="cpu")

        calls_refused = calls_of("compare_cpu_gpu", _REFUSED)
        require_refused(calls_refused, seen.endings)

    @requires("returns_result")
    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        size = generator.odd(33, 99)
        cases: list[Call] = [
            {"size": 0},
            {"size": -size},
            {"size": size, "iterations": 0},
            {"size": size, "iterations": -generator.integer(1, 9)},
            {"size": size, "iterations": 5, "warmup": -generator.integer(1, 9)},
        ]
        for row in every_value(generator, _NONSENSE, 2, lambda row: (row["argument"], row["value"]) != ("warmup", "0")):
            value = 0 if row["value"] == "0" else -generator.integer(1, 9)
            cases.append({"device": row["device"], "size": size, row["argument"]: value})
        seen = submission.probe("lab1.gpu_basics.matmul_refusals", values=False, cases=cases)
        require_refused(calls_of("benchmark_matmul", cases), seen.endings)

    @requires("returns_result")
    @builds_on("all_sizes_compared")
    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and a plot."""
        sizes = [32 * multiple for multiple in generator.shuffled(range(1, 7))[:3]]
        chosen = ",".join(map(str, sizes))
        arguments = ["--sizes", chosen, "--iterations", "5", *own_gpu(submission.device)]
        plots = made_up_comparisons(generator)
        device = "cpu" if submission.device.simulated else None
        seen = submission.probe("lab1.pictures.benchmark", device=device, arguments=arguments, plots=plots)
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.benchmark")
        what = f"benchmark --sizes {chosen}"
        found = [row.get("size") for row in rows if isinstance(row, dict)]
        require_equal(found, sizes, what=f"sizes in the results of `{what}`")
        for name, files in (("benchmark.json", seen.json), ("speedup.png", seen.pictures)):
            require(name in files, f"`{what}` wrote {', '.join(files)} into --out, and no {name}")
        require(
            is_simulated(seen.json["benchmark.json"]) is submission.device.simulated,
            f"`{what}`: benchmark.json does not say whether its times are simulated",
            "labkit.results.save_json writes the device's provenance beside the results",
        )
        if submission.device.simulated:
            require_simulated_pictures(seen, f"`{what}`")
        saved = [[row["size"], row["cpu"]["seconds"], row["gpu"]["seconds"]] for row in map(_compared, rows)]
        for given, plot, of in zip([saved, *plots], [seen.shown, *seen.plots], ("speedup.png", *_CALLS), strict=True):
            require_speedups_drawn(plot, given, of)
        require_written("plot_speedup", seen)


def _require_counted(call: Call, seen: dict[str, Any]) -> None:
    """Fail unless as many products ran as were asked for, in the type asked for, and the result says so."""
    what, iterations, warmup = as_written(call), call.get("iterations", 100), call.get("warmup", 0)
    result = seen["result"]
    place, dtype = call.get("device", "cuda").partition(":")[0], call.get("dtype", "float32")
    require_equal(
        [result["device"], result["dtype"]], [place, dtype], what=f"{what}: device and dtype of its MatmulResult"
    )
    require_equal(
        [result["size"], result["iterations"]],
        [call["size"], iterations],
        what=f"{what}: size and iterations of its MatmulResult",
        hint=_FIELDS,
    )
    ran, asked = count_of(call, seen), warmup + iterations
    # Some timers warm up by themselves, even for each product.
    require(
        asked <= ran <= _OWN_WARM_UP * (iterations + 4) + (warmup if "warmup" in call else _MANY),
        f"{what} ran {ran} products of {call['size']} in {dtype}, expected {asked}",
        "iterations counts the timed products of all measurements together, the last, shorter block included; warmup "
        "those before",
    )


_CALLS = ("plot_speedup() of some comparisons", "plot_speedup() of others")


def _compared_call(generator: InputGenerator, row: dict[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Arguments of `compare_cpu_gpu`: two of these sizes or one, and of the others those that are not None."""
    two = sorted(generator.shuffled(sizes)[:2], reverse=row["sizes"] != "ascending")
    call: dict[str, Any] = {"sizes": two[:1] if row["sizes"] == "one" else two}
    for name in ("dtype", "device", "iterations", "cpu_iterations"):
        if row[name] is not None:
            call[name] = generator.integer(6, 9) if row[name] == "some" else row[name]
    return call


def _compared(row: Any) -> dict[str, Any]:
    """A row of the results that has both times, and their ratio."""
    try:
        cpu, gpu = (positive(row[side]["seconds"], f"benchmark.json: {side}.seconds") for side in ("cpu", "gpu"))
        ratio = row["speedup"]
    except (KeyError, TypeError):
        raise CheckFailed(
            "benchmark.json holds no comparisons", "save what compare_cpu_gpu returns with labkit.results.save_json"
        ) from None
    require_close(ratio, cpu / gpu, relative=1e-3, what=f"benchmark.json: speedup at {row['size']}")
    return dict(row)


def _require_described(
    submission: Submission, seen: Any, devices: Sequence[str], where: str = "", *, simulated: bool | None = None
) -> None:
    """Fail unless each description is what the probe found, for the device that it is of."""
    bare = seen.without_pynvml
    require(bare["driver"] in (None, seen.driver), f"Environment.driver without pynvml: saw {bare['driver']!r}", ABSENT)
    default = devices[0] if where else "cuda"
    for told, device in zip([*seen.told, bare, seen.without_driver], [*devices, default, default], strict=True):
        gpu = device == "cuda"
        wanted = {
            "python": seen.python,
            "torch": seen.torch,
            "cuda": seen.cuda,
            "driver": bare["driver"] if told is bare else None if told is seen.without_driver else seen.driver,
            "device": device,
            "device_name": seen.device_name if gpu else seen.processor,
            "memory_bytes": seen.memory_bytes if gpu else None,
            "compute_capability": seen.capability if gpu else None,
            "profiler": seen.profiler,
            "simulated": submission.device.simulated if simulated is None else simulated,
        }
        for name, value in wanted.items():
            hint = _ENVIRONMENT_HINTS.get(name, ABSENT if value is None else "")
            unloaded = ", while NVML says that the driver is not loaded" if told is seen.without_driver else ""
            require_equal(told[name], value, what=f"Environment.{name} of {device!r}{where}{unloaded}", hint=hint)


_ENVIRONMENT_HINTS = {
    "cuda": "what PyTorch was built for",
    "driver": f"ask NVML through pynvml; {ABSENT}",
    "memory_bytes": "all of the GPU's memory, not what is free; None on a CPU",
    "device_name": "of GPU 0, or platform.processor() and, where that says nothing, platform.machine()",
}


def _require_compared(
    row: dict[str, Any], iterations: int, cpu_iterations: int | None = None, dtype: str = "float32"
) -> None:
    """Fail unless one comparison is of a CPU with a GPU, and its ratio the right way up."""
    what = f"compare_cpu_gpu() at {row['size']}"
    require(str(row["cpu"]["device"]) == "cpu", f"{what}: .cpu was measured on {row['cpu']['device']!r}")
    require(str(row["gpu"]["device"]).startswith("cuda"), f"{what}: .gpu was measured on {row['gpu']['device']!r}")
    hint = Cause(_FIELDS.name, "iterations and cpu_iterations are passed on, and told as they were given")
    require_equal(row["gpu"]["iterations"], iterations, what=f"{what}: .gpu.iterations", hint=hint)
    if cpu_iterations is not None:
        require_equal(row["cpu"]["iterations"], cpu_iterations, what=f"{what}: .cpu.iterations", hint=hint)
    for side in ("cpu", "gpu"):
        kind = str(row[side]["dtype"]).removeprefix("torch.")
        require_equal(kind, dtype, what=f"{what}: .{side}.dtype")
    cpu, gpu = (positive(row[side]["seconds"], f"{what}: .{side}.seconds") for side in ("cpu", "gpu"))
    require_close(row["speedup"], cpu / gpu, relative=1e-6, what=f"{what}, speedup = cpu.seconds / gpu.seconds")
