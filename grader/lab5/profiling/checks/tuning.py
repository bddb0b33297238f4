"""Judges Lab 5's tuning: settings that are measured, the one that is chosen, a GPU that is busy then.

`profiling.py` asks for them. Simulated throughout, as there.
"""

from __future__ import annotations

from dataclasses import replace

from gradebox.run.assertions import (
    Cause,
    number,
    positive,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.profiling.cases import drawn as cases
from grader.lab5.profiling.checks.mistakes import cause_of_choices, cause_of_speeds, limit_cause
from grader.lab5.profiling.reference.constructed import TOLERATED, cheapest, choice
from grader.shared.cases import RunProgram
from grader.shared.programs import picture_and_json

PROGRAM = "lab5_production.tuning"
DEVICE = "vgpu:T4"
TOLERANCE = 0.05
"""Of samples per second."""
TARGET = 0.8
_MORE_TENSORS = 8
"""Of the size of a batch's inputs, besides an output of each layer: batches that are fetched ahead, and targets."""


_PROFILE = ("schedule_kept", "idle_time_explained", "planted_bottlenecks_found")
"""The checks of what a utilisation and a bottleneck are computed with."""
_TUNING = ("settings_measured", "cheapest_fast_setting_chosen")
PREMISES = (*_PROFILE, "bottleneck_named", *_TUNING)
"""The checks of all that the program uses."""


def judge_settings(submission: Submission, generator: InputGenerator, *, with_utilization: bool) -> None:
    """Fail unless each of the settings that fit is measured, with a job of its own."""
    inputs = cases.tuned(generator)
    reply = submission.probe(inputs, device=DEVICE, values=False)
    reference = cases.reference_of(inputs)
    measured = [point["settings"] for point in reply.points]
    before = [each for each in inputs.settings if each in reference.settings]
    fitting = next(place for place, each in enumerate(inputs.settings) if each not in reference.settings)
    require_equal(
        measured, reference.settings, what="tune(): settings of its points",
        hint=Cause(
            "out_of_memory_ends_tuning",
            "Go on with the next settings after `torch.OutOfMemoryError`.",
            mistake="Settings that do not fit in memory end the search",
        )
        if measured == before[:fitting]
        else (
            "Return one point for each of the settings, in the order given. Leave out settings "
            "that do not fit in memory."
        ),
    )  # fmt: skip
    require_equal(
        reply.error, "RuntimeError", what="error that comes out of tune() where tensors do not fit each other",
        hint=Cause(
            "every_error_is_lack_of_memory",
            "Catch `torch.OutOfMemoryError` alone. Any other error is somebody's mistake.",
            mistake="Settings that fail for any reason are left out, and not only for lack of memory",
        ),
    )  # fmt: skip
    require_equal(len(reply.held), len(inputs.settings), what="jobs that tune() asked for, one for each setting")
    require(bool(reply.held), "tune() asked for no job, and measured nothing")
    kept = Cause(
        "earlier_jobs_kept",
        "Drop every name of the job, batches and loss included. An exception's traceback holds them, too.",
        mistake="Earlier jobs are kept on the GPU while the next is made",
    )
    require(
        max(reply.held) < 1 << 20,
        f"tune() asked for a job while {max(reply.held) / 2**20:.1f} MiB of an earlier one were still on the GPU",
        kept,
    )
    for samples, held in reply.beside:
        own = (inputs.maker.layers + _MORE_TENSORS) * 4 * inputs.maker.width * samples
        require(
            held < own + (1 << 20),
            f"tune() makes a step with {samples} samples, and {held / 2**20:.1f} MiB on the GPU are none of its job's "
            f"parameters and gradients. Its batches and outputs take {own / 2**20:.1f} MiB at most",
            kept,
        )
    expected_points = submission.probe(reference, device=DEVICE, values=False, student=False).points
    speeds = [positive(point["samples_per_second"], "TuningPoint.samples_per_second") for point in reply.points]

    def cause() -> Cause | None:
        slower = replace(reference, each_step_waited_for=True)
        waited = submission.probe(slower, device=DEVICE, values=False, student=False).points
        return cause_of_speeds(speeds, expected_points, waited, TOLERANCE)

    with recognising(cause):
        for speed, settings, expected in zip(speeds, reference.settings, expected_points, strict=True):
            about = f"{settings['batch_size']} samples, {settings['num_workers']} workers (simulated)"
            require_close(
                speed, expected.samples_per_second, relative=TOLERANCE,
                what=f"tune(): samples_per_second with {about}",
                hint=(
                    "Wait for the device before the first timed step and after the last, and never in "
                    "between."
                ),
            )  # fmt: skip
    for point, settings, expected in zip(reply.points, reference.settings, expected_points, strict=True):
        about = f"{settings['batch_size']} samples, {settings['num_workers']} workers (simulated)"
        if not with_utilization:
            continue
        require_between(
            point["utilization"], max(0.0, expected.utilization - 0.1),  # the first recorded step finds an idle device
            expected.utilization + 0.1, what=f"tune(): utilization with {about}", show=lambda share: f"{share:.0%}",
        )  # fmt: skip


def judge_choice(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless the cheapest of the fast settings is chosen."""
    choices = choice(generator)
    reply = submission.probe(choices.inputs(), device="cpu")
    shown = "; ".join(
        f"batch {point.batch_size}, {point.num_workers} workers: {point.share:.1%} of the fastest"
        for point in choices.points
    )
    with recognising(lambda: cause_of_choices(choices, reply.best)):
        for actual, tolerance in zip(reply.best, choices.tolerances, strict=True):
            at = "the default tolerance" if tolerance is None else f"tolerance={tolerance}"
            expected = cheapest(choices.points, TOLERATED if tolerance is None else tolerance).case(choices.fastest)
            require_equal(actual["settings"], expected["settings"], what=f"choose() at {at} among {shown}")
            require_close(
                actual["samples_per_second"], expected["samples_per_second"], relative=1e-6,
                what=f"choose() at {at}: samples_per_second of the chosen point",
                hint="Several points have these settings. Choose the fastest of them.",
            )  # fmt: skip
    require_equal(
        reply.exact["settings"]["batch_size"], 32,
        what="batch size that choose() takes of 64 at 4096 and 32 at 2048 samples per second, with tolerance=0.5",
        hint=limit_cause(),
    )  # fmt: skip
    require(reply.refused, "choose([]) raised no ValueError")


def judge_program(submission: Submission, generator: InputGenerator, without: frozenset[str] = frozenset()) -> None:
    """Fail unless the program ends with a GPU that is busy; of what it shows, leave out what other checks are about."""
    large = 16 * generator.shared("lab5.program").integer(60, 68)
    words = ["--batch-sizes", f"16,{large}", "--workers", "2", "--steps", "2", "--device", DEVICE]
    reply = submission.probe(RunProgram(module=PROGRAM, words=words), device="cpu")
    stages = picture_and_json(reply, f"python -m labs.{PROGRAM}")
    require(len(stages) >= 2, f"{len(stages)} stages in the results, expected those before and after tuning")
    try:
        before, after = (float(stages[index]["point"]["utilization"]) for index in (0, -1))
        settings, bottlenecks = stages[-1]["point"]["settings"], [stage["bottleneck"] for stage in stages]
    except (KeyError, TypeError, ValueError):
        require(False, "a stage in the results lacks a figure", "Save PipelineStage objects with save_json.")
        return
    number(before, "utilization as found")
    if not without.isdisjoint(_PROFILE):
        return
    if not without.isdisjoint(_TUNING):  # then it says nothing which settings were taken
        require(before < TARGET, f"utilisation {before:.0%} as found (simulated), expected less than {TARGET:.0%}")
        bottlenecks[-1] = "compute"
        after = 1.0
    require(
        before < TARGET < after,
        f"utilisation {before:.0%} as found and {after:.0%} after tuning (simulated), expected more than "
        f"{TARGET:.0%} after it; its settings are {settings}",
        "Compare with where the time of a step goes in each stage.",
    )
    if without.isdisjoint(_TUNING):
        taken = settings.get("batch_size") if isinstance(settings, dict) else None
        require_equal(taken, large, what=f"batch size after tuning, with --batch-sizes 16,{large}")
    if "bottleneck_named" in without:
        return
    require_equal(bottlenecks[-1], "compute", what="the bottleneck of the tuned pipeline")
    require(bottlenecks[0] != "compute", "the pipeline as found has the bottleneck 'compute'")
