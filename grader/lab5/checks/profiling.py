"""Judges Lab 5's profiling: recordings of jobs whose parts take known times, conclusions, and settings that help.

All jobs run on a virtual T4 with shapes only, whatever the grade runs on: there the truth is known. Its figures are
simulated.
"""

from __future__ import annotations

from typing import Any

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import require, require_between, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab5.checks import profiling_tuning as tuning
from grader.lab5.truth.timelines import NAMES, account, device_time, nothing_ran, timeline, wait_inside
from grader.shared.cases import full_rows

DEVICE = "vgpu:T4"
SUFFIXES = (".json", ".json.gz")
UNRECORDED = 3
"""WAIT + WARMUP, which are handed out."""
SCHEDULE = "torch.profiler.schedule leaves out the first WAIT + WARMUP steps: the timeline has those that are recorded"
REGIONS = ("data", "transfer", "forward", "backward", "optimizer")
LOSSES = ("data", "transfer", "sync", "communication", "launch")
TOLERANCE = 0.05
"""Of a step, simulated. Right styles differ by less than 1 %; the bugs that these figures are for by 10 % and more."""


def recorded(
    submission: Submission, generator: InputGenerator, suffix: str
) -> tuple[Seen, int, dict[str, float], bool]:
    """A job whose parts sleep for known times, recorded by the student; and whether its batches are pinned."""
    values = {"suffix": SUFFIXES, "pinned": (True, False), "steps": ("one", "several")}
    (row,) = [row for row in full_rows(generator.shared("lab5.recorded"), values, 2) if row["suffix"] == suffix]
    generator, pinned = generator.shared(f"lab5.recorded.{suffix}"), row["pinned"]
    steps = 1 if row["steps"] == "one" else generator.integer(3, 6)
    parts = ("data", "forward", "backward", "optimizer", "after_step")
    slept = {name: generator.uniform(0.01, 0.03) for name in parts}
    return (
        submission.probe(
            "lab5.profiling.record",
            device=DEVICE,
            values=False,
            steps=steps,
            seconds=slept,
            suffix=suffix,
            samples=generator.integer(300, 400) * 128 if pinned else 32,
            pinned=pinned,
        ),
        steps,
        slept,
        pinned,
    )


def planted_job(generator: InputGenerator, fault: str) -> dict[str, Any]:
    """A job in which one thing is wrong; each loses at least 40 % of its step to that, and 20 % to nothing else."""
    if fault == "data":
        return {"samples": 512, "width": 256, "layers": 6, "load_seconds": generator.uniform(4e-3, 8e-3)}
    if fault == "sync":
        # Kernels as long as their launches, so that it is the looking that keeps the device waiting.
        return {"samples": 256, "width": 384, "layers": generator.integer(10, 14), "load_seconds": 1e-5, "look": True}
    if fault == "launch":
        return {
            "samples": generator.integer(1, 4),
            "width": 96,
            "layers": generator.integer(16, 24),
            "load_seconds": 1e-5,
        }
    if fault == "transfer":
        return {"samples": 128 * generator.integer(24, 32), "width": 1024, "layers": 1, "load_seconds": 1e-5}
    # Loading hides behind computing, unless somebody waits for the device first.
    slow = [0.05] * UNRECORDED  # only in steps that are not recorded
    width = 64 * generator.integer(18, 24)
    return {"samples": 4096, "width": width, "layers": 14, "load_seconds": 0.035, "slow": slow}


@criterion("lab5.profiling", early=True, timeline=True)
class TestProfiling:
    def test_schedule_kept(self, submission: Submission, generator: InputGenerator) -> None:
        """Records the steps that the schedule asks for."""
        for suffix in SUFFIXES:
            seen, steps, _, _ = recorded(submission, generator, suffix)
            what = f"profile_job(job, steps={steps})"
            require_equal(seen.steps, steps, what=f"{what}: steps in its timeline", hint=SCHEDULE)
            made = UNRECORDED + steps
            hint = f"WAIT + WARMUP steps come first and are not recorded; the whole job has {made} steps here"
            require_equal(seen.updates, made, what=f"{what}: optimizer steps made", hint=hint)
            require_equal(seen.calls, list(range(made)), what=f"{what}: step numbers given to after_step", hint=hint)
            require(bool(seen.refused), "profile_job(job, steps=0) raised no ValueError")
            require(
                made <= seen.taken <= made + 1, f"{what} took {seen.taken} batches of the loader for {made} steps", hint
            )
        require_equal(
            submission.probe("lab5.profiling.on_cpu", device="cpu").errors, ["", ""],
            what="errors of profile_job() and tune() of a job on the CPU, where there is no GPU",
            hint="only a GPU is waited for",
        )  # fmt: skip

    def test_regions_named_in_trace(self, submission: Submission, generator: InputGenerator) -> None:
        """Names the regions of a step in the trace."""
        for suffix in SUFFIXES:
            seen, steps, slept, pinned = recorded(submission, generator, suffix)
            what = f"the trace written by profile_job(job, steps={steps}, trace='…/trace{suffix}')"
            require(seen.events is not None, f"{what} is not there", "export_chrome_trace; make missing folders")
            counts = {name: len(seen.events[name]) for name in REGIONS}
            require_equal(
                counts, dict.fromkeys(REGIONS, steps), what=f"{what}: regions by name",
                hint="record_function around each part of each step; only recorded steps count",
            )  # fmt: skip
            for name in REGIONS:
                # The rest of each part takes some tenths of a millisecond; the others' sleep is 10 ms and more.
                for _, length in seen.events[name]:
                    wanted = slept.get(name, 0.0)
                    # A copy of this size takes 1 ms and more, and is not waited for.
                    quick = name == "transfer" and pinned
                    require_between(
                        length, wanted - 1e-6, wanted + (5e-4 if quick else 5e-3),
                        what=f"{what}: region {name!r}, in which the host slept for {seconds(wanted)} (simulated)",
                        show=seconds,
                        hint="the docstring says what lies in which region; after_step lies in none; copies are waited "
                        "for only where job.non_blocking is False",
                    )  # fmt: skip
            outside = [
                start
                for start, length in seen.events["copies"]
                if not any(a - 1e-6 <= start and start + length <= a + b + 1e-6 for a, b in seen.events["transfer"])
            ]
            require(
                not outside, f"{what}: {len(outside)} copies to the device lie in no region 'transfer'",
                "inputs and targets are moved there",
            )  # fmt: skip
            for step in range(steps):
                starts = [seen.events[name][step][0] for name in REGIONS]
                require(starts == sorted(starts), f"{what}: the regions of a step are not in the order {REGIONS}")

    def test_idle_time_explained(self, submission: Submission, generator: InputGenerator) -> None:
        """Explains where the time of a step goes."""
        given = [
            *(timeline(generator) for _ in range(16)),
            *(wait_inside(generator, name) for name in ("data", "transfer")),
        ]
        given += [nothing_ran(generator, waited=True), nothing_ran(generator, waited=False)]
        seen = submission.probe("lab5.profiling.attribute", device="cpu", timelines=given)
        for each, told in zip(given, seen.times, strict=True):
            wanted = account(each)
            step = sum(wanted.values())
            for name in NAMES:
                require_between(
                    told[f"{name}_seconds"], wanted[name] - 1e-6 * step, wanted[name] + 1e-6 * step,
                    what=f"where_time_goes(timeline).{name}_seconds, {each['steps']} steps of {seconds(step)}",
                    show=seconds, expected=seconds(wanted[name]),
                    hint="each moment belongs to the first in the docstring's list that is true of it",
                )  # fmt: skip

    def test_bottleneck_named(self, submission: Submission, generator: InputGenerator) -> None:
        """Names the bottleneck of given times."""
        cases: list[tuple[dict[str, float], str, float | None]] = []
        for name in (*LOSSES, *LOSSES):
            shares = {each: generator.uniform(0.02, 0.06) for each in LOSSES}
            shares[name] = generator.uniform(0.25, 0.5)
            cases.append((device_time(generator, **shares), name, None))
        # None of the losses is large by itself, and together they are; then computing enough; then other targets.
        first, second = generator.shuffled([name for name in LOSSES if name != "communication"])[:2]
        small = dict.fromkeys(LOSSES, 0.05) | {first: 0.08}
        fine = dict.fromkeys(LOSSES, 0.02) | {second: 0.09}
        cases += [(device_time(generator, **small), first, None), (device_time(generator, **fine), "compute", None)]
        cases += [(device_time(generator, **fine), second, 0.9), (device_time(generator, **small), "compute", 0.6)]
        # Equal ones, to the last bit; and one that computes for exactly as long as the target says.
        names = [name for name in LOSSES if generator.integer(0, 1)] or list(LOSSES)
        equal = {f"{name}_seconds": 0.25 if name in names else 0.0 for name in LOSSES}
        cases.append(({"compute_seconds": 0.25, **equal}, names[0], None))
        half = dict.fromkeys((f"{name}_seconds" for name in LOSSES), 0.0) | {f"{second}_seconds": 0.5}
        cases.append(({"compute_seconds": 0.5, **half}, second, 0.5))
        times, wanted, targets = (list(column) for column in zip(*generator.shuffled(cases), strict=True))
        seen = submission.probe("lab5.profiling.bottlenecks", device="cpu", times=times, targets=targets)
        for told, name, given, target in zip(seen.names, wanted, times, targets, strict=True):
            step = sum(given.values())
            shown = ", ".join(f"{part} {given[f'{part}_seconds'] / step:.0%}" for part in NAMES)
            at = "the default target" if target is None else f"target={target}"
            require_equal(told, name, what=f"find_bottleneck() of a step with {shown}, at {at}")

    @requires("schedule_kept", "idle_time_explained", "bottleneck_named")
    def test_planted_bottlenecks_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the bottleneck planted in a job."""
        for fault in ("data", "sync", "launch", "transfer", "compute"):
            case: dict[str, Any] = {"job": planted_job(generator.shared(f"lab5.planted.{fault}"), fault), "steps": 4}
            options: dict[str, Any] = {"device": DEVICE, "values": False, **case}
            seen = submission.probe("lab5.profiling.planted", **options)
            truth = submission.probe("lab5.profiling_truth.planted_truth", student=False, **options)
            wanted = account({name: truth[name] for name in _TIMELINE} | {"steps": 4})
            about = {"compute": "a healthy job, its first batches apart"}.get(fault, f"a job that suffers from {fault}")
            slack = TOLERANCE * sum(wanted.values())
            for name, value in wanted.items():
                require_between(
                    seen.times[f"{name}_seconds"], value - slack, value + slack, show=seconds,
                    what=f"where_time_goes(profile_job(job)).{name}_seconds of {about} (simulated)",
                    expected=f"{seconds(value)}, give or take {seconds(slack)}",
                    hint="is the device idle when the recording starts, and when it ends, and left alone in between?",
                )  # fmt: skip
            require_equal(seen.bottleneck, fault, what=f"find_bottleneck() for {about}")
            if len(seen.idle) == UNRECORDED + case["steps"]:
                for which, number in (("before the first", UNRECORDED), ("after the last", len(seen.idle))):
                    require(
                        seen.idle[number - 1],
                        f"profile_job() of {about}: the device is still busy {which} recorded step",
                        "wait for it before the profiler is told of the step",
                    )

    @builds_on("idle_time_explained")
    def test_settings_measured(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures each of the settings as training runs."""
        tuning.judge_settings(submission, generator)

    def test_cheapest_fast_setting_chosen(self, submission: Submission, generator: InputGenerator) -> None:
        """Chooses the cheapest fast settings."""
        tuning.judge_choice(submission, generator)

    @requires("settings_measured", "cheapest_fast_setting_chosen", "planted_bottlenecks_found")
    def test_busy_after_tuning(self, submission: Submission) -> None:
        """Keeps the GPU busy after tuning."""
        tuning.judge_program(submission)


_TIMELINE = ("start", "stop", "kernels", "copies_in", "copies_out", "waits", "regions")
