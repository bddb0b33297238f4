"""Judges the work that kernels cannot do without, their place on the roofline, and the program that measures them."""

from __future__ import annotations

from typing import Any

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.checks.common import ask
from grader.kernels.truth.reference import work
from grader.shared import reports
from grader.shared.programs import picture_and_json, require_provenance

_EXACT = 1e-9
_LAB = "kernels_exercise"
_WRITE = "which roof is above each kernel, and what keeps it from there"
_KINDS: reports.Kinds = {
    "device": (str,),
    "memory_bound": (int,),
    "nearest": (str,),
    "nearest_share": (int, float),
    "matmul_intensity": (int, float),
}


@criterion("kernels.roofline")
class TestRoofline:
    def test_work_counted(self, submission: Submission, generator: InputGenerator) -> None:
        """Counts the work of each kernel."""
        one, two = generator.shuffled([2, 4])
        attention: dict[str, Any] = {
            "batch": generator.integer(2, 4), "heads": generator.integer(2, 4), "length": generator.odd(51, 99),
            "head_dim": 64, "element_bytes": two,
        }  # fmt: skip
        cases: list[dict[str, Any]] = [
            {"name": "vector_add_work", "sizes": {"count": generator.odd(101, 999), "element_bytes": one}},
            {
                "name": "softmax_work",
                "sizes": {"rows": generator.odd(11, 99), "columns": generator.odd(101, 999), "element_bytes": two},
            },
            {
                "name": "matmul_work",
                "sizes": {
                    "m": generator.odd(11, 99), "n": generator.odd(101, 199), "k": generator.odd(201, 299),
                    "element_bytes": one,
                },
            },
            *(
                {"name": "attention_work", "sizes": {**attention, "causal": causal}}
                for causal in (False, True)
            ),
        ]  # fmt: skip
        seen = ask(submission, "roofline.works", cases=cases)
        for case, found in zip(cases, seen.works, strict=True):
            what = f"{case['name']}({', '.join(f'{name}={value}' for name, value in case['sizes'].items())})"
            for name, wanted in zip(("flops", "bytes"), work(case["name"], case["sizes"]), strict=True):
                require_close(found[name], wanted, relative=_EXACT, what=f"{what}: {name}", hint="see its docstring")

    def test_place_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds a kernel's place on the roofline."""
        ridge = float(generator.integer(8, 64))
        peak, bandwidth = ridge * 2.0**37, 2.0**37
        moved = 2 ** generator.integer(20, 24)
        cases: list[dict[str, Any]] = [
            {
                "flops": moved * intensity,
                "bytes": moved,
                "seconds": generator.uniform(1e-4, 1e-3),
                "peak_flops": peak,
                "bytes_per_second": bandwidth,
            }
            for intensity in generator.shuffled([ridge / 4, ridge, 2 * ridge])
        ]
        nonsense = [{**cases[0], name: 0} for name in ("seconds", "bytes", "peak_flops", "bytes_per_second")]
        nonsense.append({**cases[0], "seconds": -1.0})
        seen = ask(submission, "roofline.places", cases=cases, nonsense=nonsense)
        for case, found in zip(cases, seen.places, strict=True):
            intensity = case["flops"] / case["bytes"]
            what = f"place() at {intensity:g} FLOPs per byte, with a ridge at {ridge:g}"
            require_equal(found["kernel"], "a kernel", what=f"{what}: kernel")
            for name, wanted in (
                ("flops", case["flops"]),
                ("bytes", case["bytes"]),
                ("seconds", case["seconds"]),
                ("intensity", intensity),
                ("achieved_flops", case["flops"] / case["seconds"]),
                ("attainable_flops", min(peak, intensity * bandwidth)),
            ):
                require_close(found[name], wanted, relative=_EXACT, what=f"{what}: {name}", hint="see KernelPlace")
            wanted_bound = "memory" if intensity < ridge else "compute"
            require_equal(found["bound"], wanted_bound, what=f"{what}: bound", hint="the ridge belongs to compute")
        for case, error in zip(nonsense, seen.errors, strict=True):
            require_equal(error, "ValueError", what=f"place() of {case}: error", hint="see Raises in its docstring")

    def test_results_and_plot_saved(self, submission: Submission) -> None:
        """Saves the kernels' places and a plot."""
        arguments = ["--elements", "9000", "--rows", "9", "--size", "64", "--length", "65"]
        what = f"python -m labs.kernels_exercise.roofline {' '.join(arguments)}"
        # Of a virtual GPU the data sheet is known, and no kernel is above its roof because a clock is.
        seen = ask(submission, "roofline.program", counted=True, arguments=arguments)
        rows = picture_and_json(seen, what)
        require_provenance(seen, what, simulated=True)
        kernels = ["vector add", "softmax", "matmul", "flash attention"]
        require_equal([row.get("kernel") for row in rows], kernels, what=f"kernels in the results of {what}")
        for row in rows:
            require(
                0 < row["achieved_flops"] <= 1.02 * row["attainable_flops"],
                f"{what}: {row['kernel']} reaches {row['achieved_flops']:.4g} FLOPs per second, above the roof of "
                f"{row['attainable_flops']:.4g}",
                "no kernel is faster than the roofline: is the time too short, or is work counted that is not done?",
            )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        _judge_report(submission)


@reports.explained
def _judge_report(submission: Submission) -> None:
    claims = reports.claims(submission, _LAB, _KINDS, task="6.6", write=_WRITE)
    document = reports.results(submission, _LAB, "kernels.json")
    reports.require_device(claims["device"], document["provenance"])
    try:
        rows = {row["kernel"]: row for row in document["results"]}
        shares = {name: row["achieved_flops"] / row["attainable_flops"] for name, row in rows.items()}
        bounds = [row["bound"] for row in rows.values()]
        intensity = rows["matmul"]["intensity"]
    except (KeyError, TypeError):
        raise CheckFailed("results/kernels.json lacks what the report is about", "run its program again") from None
    nearest = max(shares, key=lambda name: shares[name])
    require_equal(claims["memory_bound"], bounds.count("memory"), what="claim memory_bound")
    require_equal(claims["nearest"], nearest, what="claim nearest")
    require_close(claims["nearest_share"], shares[nearest], relative=0.02, what="claim nearest_share")
    require_close(claims["matmul_intensity"], intensity, relative=0.02, what="claim matmul_intensity")
