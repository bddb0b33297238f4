"""Judges the work that kernels cannot do without, their place on the roofline, and the program that measures them."""

from __future__ import annotations

from typing import Literal

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.roofline import cases, reference
from grader.kernels.shared.checks import ask
from grader.shared import reports
from grader.shared.programs import picture_and_json, require_provenance

_EXACT = 1e-9
_WORK: tuple[Literal["flops", "bytes"], ...] = ("flops", "bytes")
_FIGURES: tuple[Literal["flops", "bytes", "seconds", "intensity", "achieved_flops", "attainable_flops"], ...] = (
    "flops",
    "bytes",
    "seconds",
    "intensity",
    "achieved_flops",
    "attainable_flops",
)
_MEASURED = 4
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
        calls = cases.work_of_each_kernel(generator)
        works: list[cases.Work] = ask(submission, "kernels.roofline.works", cases=calls).works
        for case, work in zip(calls, works, strict=True):
            what = f"{case['name']}({', '.join(f'{name}={value}' for name, value in case['sizes'].items())})"
            expected = reference.work(case)
            for name in _WORK:
                require_close(
                    work[name], expected[name], relative=_EXACT, what=f"{what}: {name}", hint="see its docstring"
                )

    def test_place_found(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.places_around_the_ridge(generator)
        actual = ask(submission, "kernels.roofline.places", **inputs)
        places: list[cases.Place] = actual.places
        for case, place in zip(inputs["cases"], places, strict=True):
            expected = reference.place("a kernel", case)
            ridge = case["peak_flops"] / case["bytes_per_second"]
            what = f"place() at {expected['intensity']:g} FLOPs per byte, with a ridge at {ridge:g}"
            require_equal(place["kernel"], expected["kernel"], what=f"{what}: kernel")
            for name in _FIGURES:
                require_close(
                    place[name], expected[name], relative=_EXACT, what=f"{what}: {name}", hint="see KernelPlace"
                )
            require_equal(place["bound"], expected["bound"], what=f"{what}: bound", hint="the ridge belongs to compute")
        for case, error in zip(inputs["nonsense"], actual.errors, strict=True):
            require_equal(error, "ValueError", what=f"place() of {case}: error", hint="see Raises in its docstring")

    def test_results_and_plot_saved(self, submission: Submission) -> None:
        arguments = ["--elements", "9000", "--rows", "9", "--size", "64", "--length", "65"]
        what = f"python -m labs.kernels_exercise.roofline {' '.join(arguments)}"
        # Of a virtual GPU the data sheet is known, and no kernel is above its roof because a clock is.
        actual = ask(submission, "kernels.roofline.program", counted=True, arguments=arguments)
        require(
            len(actual.launched) >= _MEASURED,
            f"{what} launched {len(actual.launched)} Triton kernels, expected {_MEASURED} at least",
            "the program measures your four functions, each of which launches a kernel of its own",
        )
        rows = picture_and_json(actual, what)
        require_provenance(actual, what, simulated=True)
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
