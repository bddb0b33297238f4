"""Judges Lab 5's profiling: recordings of jobs whose parts take known times, conclusions, and settings that help.

All jobs run on a virtual T4 with shapes only, whatever the grade runs on: there the right answer is known. Its figures
are simulated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import CheckFailed, recognising, require, require_between, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.profiling.cases import NewFolder, OnCpu, PlantedReference, Record, RecordReply, TimelineCase
from grader.lab5.profiling.cases import drawn as cases
from grader.lab5.profiling.cases.drawn import NAMES, SUFFIXES, UNRECORDED
from grader.lab5.profiling.checks import tuning
from grader.lab5.profiling.checks.mistakes import (
    cause_of_names,
    cause_of_region,
    cause_of_schedule,
    cause_of_times,
    cause_of_waits,
)
from grader.lab5.profiling.reference.accounts import account
from grader.lab5.profiling.reference.constructed import bottlenecks

DEVICE = "vgpu:T4"
SCHEDULE = "Use torch.profiler.schedule to leave out the first WAIT + WARMUP steps. The timeline has the recorded ones."
REGIONS = ("data", "transfer", "forward", "backward", "optimizer")
_OF_A_STEP = {"Memcpy HtoD": 2, "aten::addmm": 2, "aten::mm": 3, "aten::_foreach_add_": 1}
"""What one step of a recorded job makes the GPU do: inputs and targets, two layers forward and backward, an update."""
TOLERANCE = 0.05
"""Of a step, simulated. Right styles differ by less than 1 %; the bugs that these figures are for by 10 % and more."""


def recorded(submission: Submission, generator: InputGenerator, suffix: str) -> tuple[Record, RecordReply]:
    """A job whose parts sleep for known times, recorded by the student."""
    inputs = cases.recorded(generator, suffix)
    return inputs, submission.probe(inputs, device=DEVICE, values=False)


def _on_the_device(reply: RecordReply) -> dict[str, int]:
    """How often those kernels and copies ran that every step has."""
    return {name: sum(each.startswith(name) for each in reply.launched) for name in _OF_A_STEP}


def _last_steps(timeline: TimelineCase, steps: int) -> TimelineCase:
    """A recording from the beginning of its so many last steps on."""
    last = sorted(timeline.regions["data"])[-steps:]
    return replace(timeline, start=last[0][0], steps=len(last)) if last else timeline


@criterion("lab5.profiling", early=True, timeline=True)
class TestProfiling:
    def test_schedule_kept(self, submission: Submission, generator: InputGenerator) -> None:
        for suffix in SUFFIXES:
            inputs, reply = recorded(submission, generator, suffix)
            steps = inputs.steps
            what = f"profile_job(job, steps={steps})"
            require_equal(reply.steps, steps, what=f"{what}: steps in its timeline",
                          hint=cause_of_schedule(steps, UNRECORDED, reply) or SCHEDULE)  # fmt: skip
            made = UNRECORDED + steps
            hint = f"Make {made} steps in all: first WAIT + WARMUP unrecorded ones, then the recorded ones."
            require_equal(reply.updates, made, what=f"{what}: optimizer steps made", hint=hint)
            require_equal(reply.calls, list(range(made)), what=f"{what}: step numbers given to after_step", hint=hint)
            require_equal(
                reply.losses, ["a tensor"], what=f"{what}: what after_step was given for the loss",
                hint="Pass the loss as a tensor (`loss.detach()`). To read its number waits for the device.",
            )  # fmt: skip
            require(bool(reply.refused), "profile_job(job, steps=0) raised no ValueError")
            require(
                made <= reply.taken <= made + 1,
                f"{what} took {reply.taken} batches of the loader for {made} steps",
                hint,
            )
            require(
                reply.passes <= 2,
                f"{what} began the loader {reply.passes} times in {made} steps: every step had the first batch",
                "Take the batches from one iterator, made by job.batches() before the first step.",
            )
            require_equal(
                _on_the_device(reply), {name: count * made for name, count in _OF_A_STEP.items()},
                what=f"{what}: what ran on the GPU", hint=hint,
            )  # fmt: skip
        require_equal(
            submission.probe(OnCpu(), device="cpu").errors, ["", ""],
            what="errors of profile_job() and tune() of a job on the CPU, where there is no GPU",
            hint="Call torch.cuda.synchronize() on a GPU only.",
        )  # fmt: skip

    def test_regions_named_in_trace(self, submission: Submission, generator: InputGenerator) -> None:
        for suffix in SUFFIXES:
            inputs, reply = recorded(submission, generator, suffix)
            steps, events = inputs.steps, reply.events
            what = f"the trace written by profile_job(job, steps={steps}, trace='…/trace{suffix}')"
            if events is None:
                raise CheckFailed(f"{what} is not there", "Write the trace with export_chrome_trace.")
            counts = {name: len(events[name]) for name in REGIONS}
            ran = {name: count // _OF_A_STEP[name] for name, count in _on_the_device(reply).items()}
            require(
                min(ran.values()) >= max(counts.values()),
                f"{what} shows {max(counts.values())} steps, and the GPU ran {min(ran.values())}",
            )
            # How many steps are recorded is another check's question: of more than were asked for, the last ones count.
            recorded_steps = reply.steps if isinstance(reply.steps, int) and reply.steps > 0 else steps
            require_equal(
                counts, dict.fromkeys(REGIONS, recorded_steps), what=f"{what}: regions by name",
                hint="Put a record_function block around each part of each step. Only recorded steps count.",
            )  # fmt: skip
            steps = min(steps, recorded_steps)
            last = {name: events[name][-steps:] for name in REGIONS}
            for name in REGIONS:
                # The rest of each part takes some tenths of a millisecond; the others' sleep is 10 ms and more.
                for _, length in last[name]:
                    slept = inputs.seconds.get(name, 0.0)
                    if name == "backward" and reply.cleared >= reply.updates:  # some set each gradient to None
                        slept += inputs.seconds["clear"]
                    # A copy of this size takes 1 ms and more, and is not waited for.
                    quick = name == "transfer" and inputs.pinned
                    require_between(
                        length, slept - 1e-6, slept + (5e-4 if quick else 5e-3),
                        what=f"{what}: region {name!r}, in which the host slept for {seconds(slept)} (simulated)",
                        show=seconds,
                        hint=cause_of_region(name, length, inputs)
                        or "Put each part of a step into the region that the docstring names, after_step into none. "
                        "Wait for copies only if job.non_blocking is False.",
                    )  # fmt: skip
            outside = [
                start
                for start, length in events["copies"]
                if not any(a - 1e-6 <= start and start + length <= a + b + 1e-6 for a, b in events["transfer"])
            ]
            require(
                not outside, f"{what}: {len(outside)} copies to the device are in no region 'transfer'",
                'Move inputs and targets inside the region "transfer".',
            )  # fmt: skip
            for step in range(steps):
                starts = [last[name][step][0] for name in REGIONS]
                require(starts == sorted(starts), f"{what}: the regions of a step are not in the order {REGIONS}")

        require(
            submission.probe(NewFolder(), device=DEVICE, values=False).written,
            "profile_job() wrote no trace to a folder that did not exist", "Make the missing folders of the path.",
        )  # fmt: skip

    def test_idle_time_explained(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.timelines(generator)
        reply = submission.probe(inputs, device="cpu")
        with recognising(lambda: cause_of_times(inputs.timelines, reply.times)):
            for timeline, times in zip(inputs.timelines, reply.times, strict=True):
                expected = account(timeline)
                step = sum(expected.values())
                for name in NAMES:
                    require_between(
                        times[f"{name}_seconds"], expected[name] - 1e-6 * step, expected[name] + 1e-6 * step,
                        what=f"where_time_goes(timeline).{name}_seconds, {timeline.steps} steps of {seconds(step)}",
                        show=seconds, expected=seconds(expected[name]),
                        hint="Give each moment to the first in the docstring's list that is true of it.",
                    )  # fmt: skip

    def test_bottleneck_named(self, submission: Submission, generator: InputGenerator) -> None:
        expected, inputs = bottlenecks(generator)
        names = submission.probe(inputs, device="cpu").names
        with recognising(lambda: cause_of_names(inputs, names)):
            for actual, right, times, target in zip(names, expected, inputs.times, inputs.targets, strict=True):
                step = sum(times.values())
                shown = ", ".join(f"{part} {times[f'{part}_seconds'] / step:.0%}" for part in NAMES)
                at = "the default target" if target is None else f"target={target}"
                require_equal(actual, right, what=f"find_bottleneck() of a step with {shown}, at {at}")

    @requires("schedule_kept", "idle_time_explained", "bottleneck_named")
    @builds_on("schedule_kept", "regions_named_in_trace", "idle_time_explained", "bottleneck_named")
    def test_planted_bottlenecks_found(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        for fault in cases.FAULTS:
            if fault == "compute" and "schedule_kept" in without:
                continue  # its first batches are slow: it depends on which steps are recorded
            inputs = cases.planted(generator, fault)
            reply = submission.probe(inputs, device=DEVICE, values=False)
            reference = PlantedReference(job=inputs.job, steps=inputs.steps)
            expected = account(submission.probe(reference, device=DEVICE, values=False, student=False))
            about = {"compute": "a healthy job, its first batches apart"}.get(fault, f"a job that suffers from {fault}")
            slack = TOLERANCE * sum(expected.values())
            times = reply.times
            if not without.isdisjoint({"schedule_kept", "idle_time_explained"}):
                timeline = _last_steps(reply.timeline, inputs.steps) if "schedule_kept" in without else reply.timeline
                times = {f"{name}_seconds": value for name, value in account(timeline).items()}
            waits = partial(cause_of_waits, reply.idle, UNRECORDED, inputs.steps, runs_ahead=fault == "compute")
            with recognising(waits):
                for name, value in expected.items():
                    # The other moments are told apart by the regions.
                    if "regions_named_in_trace" in without and name not in ("compute", "communication"):
                        continue
                    require_between(
                        times[f"{name}_seconds"], value - slack, value + slack, show=seconds,
                        what=f"where_time_goes(profile_job(job)).{name}_seconds of {about} (simulated)",
                        expected=f"{seconds(value)}, give or take {seconds(slack)}",
                        hint=(
                            "Wait for the device right before the recording starts and right before it ends, and "
                            "nowhere in between."
                        ),
                    )  # fmt: skip
            if not without:
                require_equal(reply.bottleneck, fault, what=f"find_bottleneck() for {about}")
            if len(reply.idle) == UNRECORDED + inputs.steps:
                for which, number in (("before the first", UNRECORDED), ("after the last", len(reply.idle))):
                    require(
                        reply.idle[number - 1],
                        f"profile_job() of {about}: the device is still busy {which} recorded step",
                        waits() or "wait for it before `profiler.step()`",
                    )

    @builds_on("schedule_kept", "idle_time_explained", "planted_bottlenecks_found")
    def test_settings_measured(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        # The utilisation is what profile_job and where_time_goes make of it.
        tuning.judge_settings(submission, generator, with_utilization=not without)

    def test_cheapest_fast_setting_chosen(self, submission: Submission, generator: InputGenerator) -> None:
        tuning.judge_choice(submission, generator)

    @requires("settings_measured", "cheapest_fast_setting_chosen", "planted_bottlenecks_found")
    @builds_on(*tuning.PREMISES)
    def test_busy_after_tuning(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        tuning.judge_program(submission, generator, without)
