"""Judges Lab 5's profiling: recordings of jobs whose parts take known times, conclusions, and settings that help.

All jobs run on a virtual T4 with shapes only, whatever the grade runs on: there the truth is known. Its figures are
simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.assertions import number, require, require_between, require_close, require_equal, seconds
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.truth.timelines import NAMES, account, device_time, nothing_ran, timeline, wait_inside
from grader.shared.programs import picture_and_json

PROGRAM = "lab5_production.tuning"
DEVICE = "vgpu:T4"
UNRECORDED = 3
SCHEDULE = "torch.profiler.schedule leaves out the first WAIT + WARMUP steps: the timeline has those that are recorded"
REGIONS = ("data", "transfer", "forward", "backward", "optimizer")
LOSSES = ("data", "transfer", "sync", "communication", "launch")
TOLERANCE = 0.05
"""Of a step, simulated. Right styles differ by less than 1 %; the bugs that these figures are for by 10 % and more."""
TARGET = 0.8


def recorded(submission: Submission, fresh: Fresh, suffix: str) -> tuple[Seen, int, dict[str, float]]:
    """A job whose parts sleep for known times, recorded by the student."""
    fresh = fresh.shared(f"lab5.recorded.{suffix}")
    steps = fresh.integer(3, 6)
    parts = ("data", "forward", "backward", "optimizer", "after_step")
    slept = {name: fresh.uniform(0.01, 0.03) for name in parts}
    return (
        submission.probe(
            "lab5.profiling.record",
            device=DEVICE,
            values=False,
            steps=steps,
            seconds=slept,
            suffix=suffix,
            samples=32 if suffix == ".json" else fresh.integer(300, 400) * 128,
            pinned=suffix != ".json",
        ),
        steps,
        slept,
    )


def planted_job(fresh: Fresh, fault: str) -> dict[str, Any]:
    """A job in which one thing is wrong; each loses at least 40 % of its step to that, and 20 % to nothing else."""
    if fault == "data":
        return {"samples": 512, "width": 256, "layers": 6, "load_seconds": fresh.uniform(4e-3, 8e-3)}
    if fault == "sync":
        return {"samples": 32, "width": 256, "layers": fresh.integer(10, 14), "load_seconds": 1e-5, "look": True}
    if fault == "launch":
        return {"samples": fresh.integer(1, 4), "width": 96, "layers": fresh.integer(16, 24), "load_seconds": 1e-5}
    if fault == "transfer":
        return {"samples": 128 * fresh.integer(24, 32), "width": 1024, "layers": 1, "load_seconds": 1e-5}
    # Loading hides behind computing, unless somebody waits for the device first.
    slow = [0.05] * UNRECORDED  # only in steps that are not recorded
    width = 64 * fresh.integer(18, 24)
    return {"samples": 4096, "width": width, "layers": 14, "load_seconds": 0.035, "slow": slow}


def require_parts(told: Mapping[str, float], wanted: Mapping[str, float], step: float, what: str, hint: str) -> None:
    """Fail unless each figure lies within `TOLERANCE` of the whole step."""
    slack = TOLERANCE * step
    for name, value in wanted.items():
        require_between(
            told[name],
            value - slack,
            value + slack,
            what=f"{what}: {name}",
            show=seconds,
            expected=f"{seconds(value)}, give or take {seconds(slack)}",
            hint=hint,
        )


@criterion("lab5.profiling")
class TestProfiling:
    def test_schedule_kept(self, submission: Submission, fresh: Fresh) -> None:
        """Records the steps that the schedule asks for."""
        seen, steps, _ = recorded(submission, fresh, ".json")
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

    def test_regions_named_in_trace(self, submission: Submission, fresh: Fresh) -> None:
        """Names the regions of a step in the trace."""
        for suffix in (".json", ".json.gz"):
            seen, steps, slept = recorded(submission, fresh, suffix)
            what = f"the trace written by profile_job(job, steps={steps}, trace='…/trace{suffix}')"
            require(seen.events is not None, f"{what} is not there", "export_chrome_trace; make missing folders")
            counts = {name: len(seen.events[name]) for name in REGIONS}
            require_equal(
                counts,
                dict.fromkeys(REGIONS, steps),
                what=f"{what}: regions by name",
                hint="record_function around each part of each step; only recorded steps count",
            )
            for name in REGIONS:
                # The rest of each part takes some tenths of a millisecond; the others' sleep is 10 ms and more.
                for _, length in seen.events[name]:
                    wanted = slept.get(name, 0.0)
                    # A copy of this size takes 1 ms and more, and is not waited for.
                    quick = name == "transfer" and suffix != ".json"
                    require_between(
                        length,
                        wanted - 1e-6,
                        wanted + (5e-4 if quick else 5e-3),
                        what=f"{what}: region {name!r}, in which the host slept for {seconds(wanted)} (simulated)",
                        show=seconds,
                        hint="the docstring says what lies in which region; after_step lies in none; copies are waited "
                        "for only where job.non_blocking is False",
                    )
            for step in range(steps):
                starts = [seen.events[name][step][0] for name in REGIONS]
                require(starts == sorted(starts), f"{what}: the regions of a step are not in the order {REGIONS}")

    def test_idle_time_explained(self, submission: Submission, fresh: Fresh) -> None:
        """Explains where the time of a step goes."""
        given = [*(timeline(fresh) for _ in range(16)), *(wait_inside(fresh, name) for name in ("data", "transfer"))]
        given += [nothing_ran(fresh, waited=True), nothing_ran(fresh, waited=False)]
        seen = submission.probe("lab5.profiling.attribute", device="cpu", timelines=given)
        for each, told, share in zip(given, seen.times, seen.utilization, strict=True):
            wanted = account(each)
            step = sum(wanted.values())
            for name in NAMES:
                require_between(
                    told[f"{name}_seconds"],
                    wanted[name] - 1e-6 * step,
                    wanted[name] + 1e-6 * step,
                    what=f"where_time_goes(timeline).{name}_seconds, {each['steps']} steps of {seconds(step)}",
                    show=seconds,
                    expected=seconds(wanted[name]),
                    hint="each moment belongs to the first in the docstring's list that is true of it",
                )
            busy = (wanted["compute"] + wanted["communication"]) / step
            require_close(share, busy, relative=1e-6, what="utilization() of these seconds")

    def test_bottleneck_named(self, submission: Submission, fresh: Fresh) -> None:
        """Names the bottleneck of given times."""
        cases: list[tuple[dict[str, float], str, float | None]] = []
        for name in (*LOSSES, *LOSSES):
            shares = {each: fresh.uniform(0.02, 0.06) for each in LOSSES}
            shares[name] = fresh.uniform(0.25, 0.5)
            cases.append((device_time(fresh, **shares), name, None))
        # None of the losses is large by itself, and together they are; then computing enough; then other targets.
        first, second = fresh.shuffled([name for name in LOSSES if name != "communication"])[:2]
        small = dict.fromkeys(LOSSES, 0.05) | {first: 0.08}
        fine = dict.fromkeys(LOSSES, 0.02) | {second: 0.09}
        cases += [(device_time(fresh, **small), first, None), (device_time(fresh, **fine), "compute", None)]
        cases += [(device_time(fresh, **fine), second, 0.9), (device_time(fresh, **small), "compute", 0.6)]
        # Equal ones, to the last bit; and one that computes for exactly as long as the target says.
        names = [name for name in LOSSES if fresh.integer(0, 1)] or list(LOSSES)
        equal = {f"{name}_seconds": 0.25 if name in names else 0.0 for name in LOSSES}
        cases.append(({"compute_seconds": 0.25, **equal}, names[0], None))
        half = dict.fromkeys((f"{name}_seconds" for name in LOSSES), 0.0) | {f"{second}_seconds": 0.5}
        cases.append(({"compute_seconds": 0.5, **half}, second, 0.5))
        times, wanted, targets = (list(column) for column in zip(*fresh.shuffled(cases), strict=True))
        seen = submission.probe("lab5.profiling.bottlenecks", device="cpu", times=times, targets=targets)
        for told, name, given, target in zip(seen.names, wanted, times, targets, strict=True):
            step = sum(given.values())
            shown = ", ".join(f"{part} {given[f'{part}_seconds'] / step:.0%}" for part in NAMES)
            at = "the default target" if target is None else f"target={target}"
            require_equal(told, name, what=f"find_bottleneck() of a step with {shown}, at {at}")

    @requires("schedule_kept", "idle_time_explained", "bottleneck_named")
    def test_planted_bottlenecks_found(self, submission: Submission, fresh: Fresh) -> None:
        """Finds the bottleneck planted in a job."""
        for fault in ("data", "sync", "launch", "transfer", "compute"):
            case: dict[str, Any] = {"job": planted_job(fresh.shared(f"lab5.planted.{fault}"), fault), "steps": 4}
            options: dict[str, Any] = {"device": DEVICE, "values": False, **case}
            seen = submission.probe("lab5.profiling.planted", **options)
            truth = submission.probe("lab5.profiling_truth.planted_truth", student=False, **options)
            wanted = account({name: truth[name] for name in _TIMELINE} | {"steps": 4})
            about = {"compute": "a healthy job, its first batches apart"}.get(fault, f"a job that suffers from {fault}")
            require_parts(
                seen.times,
                {f"{name}_seconds": value for name, value in wanted.items()},
                sum(wanted.values()),
                f"where_time_goes(profile_job(job)) of {about} (simulated)",
                "is the device idle when the recording starts, and when it ends, and left alone in between?",
            )
            require_equal(seen.bottleneck, fault, what=f"find_bottleneck() for {about}")

    def test_step_parts_equal_truth(self, submission: Submission, fresh: Fresh) -> None:
        """Measures the true parts of a step."""
        load = fresh.uniform(1e-3, 2e-3)
        # Slow batches: the two of the warm-up, and one among those timed, which a median does not see.
        slow = [0.3, 0.3, load * fresh.uniform(1.3, 1.5), 0.2, load, load * fresh.uniform(1.1, 1.2)]
        job = {"samples": 256, "width": 64 * fresh.integer(14, 18), "layers": 6, "load_seconds": load}
        case: dict[str, Any] = {"job": {**job, "slow": slow, "look": True}, "steps": 5, "warmup": 2}
        options: dict[str, Any] = {"device": DEVICE, "values": False, **case}
        seen = submission.probe("lab5.profiling.breakdown", **options)
        told = seen.parts
        wanted = submission.probe("lab5.profiling_truth.breakdown_truth", student=False, **options).parts
        wanted["communication_seconds"] = 0.0
        require_equal(seen.calls, 7, what="calls of after_step in step_breakdown(job, steps=5, warmup=2)")
        require_equal(seen.refused, [True, True], what="whether steps=0 and warmup=-1 raised a ValueError")
        hint = "wait for the device before each reading of the clock; medians over the timed steps; after_step is none"
        for name, value in wanted.items():
            require_between(
                told[name],
                value * (1 - TOLERANCE) - 2e-5,
                value * (1 + TOLERANCE) + 2e-5,
                what=f"step_breakdown(job).{name} (simulated)",
                show=seconds,
                expected=f"{seconds(value)} within {TOLERANCE:.0%}",
                hint=hint,
            )

    @requires("step_parts_equal_truth")
    def test_communication_told_apart(self, submission: Submission, fresh: Fresh) -> None:
        """Tells communication apart from the rest."""
        width, layers, load = 64 * fresh.integer(16, 32), fresh.integer(3, 6), fresh.uniform(0.5e-3, 2e-3)
        job = {"samples": 64, "width": width, "layers": layers, "load_seconds": load}
        options: dict[str, Any] = {"device": DEVICE, "values": False, "job": job, "steps": 3, "warmup": 2}
        told = submission.rank_probe("lab5.profiling.communication", 2, **options)
        truth = submission.rank_probe("lab5.profiling_truth.communication_truth", 2, student=False, **options)
        for rank, (seen, real) in enumerate(zip(told, truth, strict=True)):
            require_parts(
                seen.parts,
                real.parts,
                sum(real.parts.values()),
                f"step_breakdown(job) on rank {rank} of 2 (simulated)",
                "what backward takes longer with exchange is communication; the rest is measured without (no_sync)",
            )

    def test_settings_measured(self, submission: Submission, fresh: Fresh) -> None:
        """Measures each of the settings."""
        case = tuning(fresh)
        seen = submission.probe("lab5.tuning.tuned", device=DEVICE, values=False, **case)
        fits = [each for each in case["settings"] if each["batch_size"] < case["maker"]["too_large"]]
        require_equal(
            [point["settings"] for point in seen.points],
            fits,
            what="tune(): settings of its points",
            hint="one point each, in the order given; settings that do not fit in memory are left out",
        )
        require_equal(
            seen.error, "RuntimeError", what="error that comes out of tune() where tensors do not fit each other",
            hint="only torch.OutOfMemoryError says that settings do not fit: any other is somebody's mistake",
        )  # fmt: skip
        require_equal(len(seen.held), len(case["settings"]), what="jobs that tune() asked for, one for each setting")
        require(bool(seen.held), "tune() asked for no job, and measured nothing")
        require(
            max(seen.held) < 1 << 20,
            f"tune() asked for a job while {max(seen.held) / 2**20:.1f} MiB of an earlier one were still on the GPU",
            "drop every name of the job, batches and loss included; an exception's traceback holds them, too",
        )
        options: dict[str, Any] = {"device": DEVICE, "values": False, "student": False, **case, "settings": fits}
        truths = submission.probe("lab5.tuning_truth.tuned_truth", **options).points
        for point, truth in zip(seen.points, truths, strict=True):
            about = f"{point['settings']['batch_size']} samples, {point['settings']['num_workers']} workers (simulated)"
            require_close(
                point["samples_per_second"],
                truth["samples_per_second"],
                relative=TOLERANCE,
                what=f"tune(): samples_per_second with {about}",
                hint="wait for the device before the first timed step and after the last, and never in between",
            )
            require_between(
                point["utilization"],
                truth["utilization"] - 0.1,  # the first recorded step finds an idle device
                truth["utilization"] + 0.1,
                what=f"tune(): utilization with {about}",
                show=lambda share: f"{share:.0%}",
            )

    def test_cheapest_fast_setting_chosen(self, submission: Submission, fresh: Fresh) -> None:
        """Chooses the cheapest fast settings."""
        fast = fresh.log_uniform(1e3, 1e5)
        rows = _settings(fresh)
        tolerances = fresh.shuffled([None, 0.12, 0.002])
        wanted = [_cheapest(rows, tolerance or _TOLERATED) for tolerance in tolerances]
        points = [_point(fast, *row) for row in rows]
        seen = submission.probe("lab5.tuning.chosen", device="cpu", points=points, tolerances=tolerances)
        shown = "; ".join(f"batch {b}, {w} workers: {share:.1%} of the fastest" for b, w, share, _ in rows)
        for told, row, tolerance in zip(seen.best, wanted, tolerances, strict=True):
            at = "the default tolerance" if tolerance is None else f"tolerance={tolerance}"
            expected = _point(fast, *row)
            require_equal(told["settings"], expected["settings"], what=f"choose() at {at} among {shown}")
            require_close(
                told["samples_per_second"],
                expected["samples_per_second"],
                relative=1e-6,
                what=f"choose() at {at}: of equal settings, the faster point",
            )
        require_equal(
            seen.exact["settings"]["batch_size"],
            32,
            what="batch size that choose() takes of 64 at 4096 and 32 at 2048 samples per second, with tolerance=0.5",
            hint="at least (1 - tolerance) of the largest",
        )
        require(seen.refused, "choose([]) raised no ValueError")

    @requires("settings_measured", "cheapest_fast_setting_chosen", "planted_bottlenecks_found")
    def test_busy_after_tuning(self, submission: Submission) -> None:
        """Keeps the GPU busy after tuning."""
        arguments = ["--batch-sizes", "16,1024", "--workers", "2", "--steps", "2", "--device", DEVICE]
        seen = submission.probe("shared.programs.run", device="cpu", module=PROGRAM, arguments=arguments)
        stages = picture_and_json(seen, f"python -m labs.{PROGRAM}")
        require(len(stages) >= 2, f"{len(stages)} stages in the results, expected those before and after tuning")
        try:
            before, after = (float(stages[index]["point"]["utilization"]) for index in (0, -1))
            settings, bottlenecks = stages[-1]["point"]["settings"], [stage["bottleneck"] for stage in stages]
        except (KeyError, TypeError, ValueError):
            require(False, "a stage in the results lacks a figure", "save PipelineStage objects with save_json")
            return
        number(before, "utilization as found")
        require(
            before < TARGET < after,
            f"utilisation {before:.0%} as found and {after:.0%} after tuning (simulated), expected more than "
            f"{TARGET:.0%} after it; its settings are {settings}",
            "compare with where the time of a step goes in each stage",
        )
        require_equal(bottlenecks[-1], "compute", what="the bottleneck of the tuned pipeline")
        require(bottlenecks[0] != "compute", "the pipeline as found has the bottleneck 'compute'")


_TIMELINE = ("start", "stop", "kernels", "copies_in", "copies_out", "waits", "regions")


def tuning(fresh: Fresh) -> dict[str, Any]:
    """A pipeline with a slow data set, and settings for it, one of which does not fit in memory."""
    fresh = fresh.shared("lab5.tuning")
    rows = [(16, 0, False), (512, 0, False), (1 << 14, 0, False), (512, 2, True), (64, 1, True)]
    settings = [
        {"batch_size": batch, "num_workers": workers, "pin_memory": pinned, "log_every": 1}
        for batch, workers, pinned in rows
    ]
    return {
        "maker": {
            "width": 256,
            "layers": fresh.integer(6, 9),
            "decode_seconds": fresh.uniform(2e-6, 3e-6),
            "too_large": 1 << 14,
        },
        "settings": settings,
        "steps": 12,
        "warmup": 6,  # the workers' first batches are waiting when it begins; then they come as they are made
    }


Row = tuple[int, int, float, float]
"""Batch, workers, share of the fastest, utilization."""
_TOLERATED = 0.05
"""What `choose` may lose without being told, by its docstring."""


def _cheapest(rows: list[Row], tolerance: float) -> Row:
    """The smallest batch, then the fewest workers, among those that are fast enough; of equal settings the faster."""
    return min((row for row in rows if row[2] >= 1 - tolerance), key=lambda row: (row[0], row[1], -row[2]))


def _settings(fresh: Fresh) -> list[Row]:
    """Settings of which neither the fastest, nor the busiest, nor the one with fewest workers is the one to take."""
    while True:
        batches, workers = fresh.shuffled((32, 64, 128, 256, 512, 1024))[:4], fresh.shuffled(range(9))[:4]
        # Far from the limits, and two of them with the same settings.
        shares = [1.0, *(fresh.uniform(0.955, 0.995) for _ in range(4)), *(fresh.uniform(0.89, 0.94) for _ in range(2))]
        shares += [fresh.uniform(0.4, 0.8)]
        rows = [
            (fresh.shuffled(batches)[0], fresh.shuffled(workers)[0], share, fresh.uniform(0.5, 0.99))
            for share in shares
        ]
        best = _cheapest(rows, _TOLERATED)
        rows.append((best[0], best[1], fresh.uniform(0.952, best[2]), fresh.uniform(0.5, 0.99)))
        enough = [row for row in rows if row[2] >= 1 - _TOLERATED]
        others = (
            max(rows, key=lambda row: row[2]),
            max(enough, key=lambda row: row[3]),
            min(enough, key=lambda row: (row[1], row[0])),
            _cheapest(rows, 0.12),
        )
        if all(row[:2] != best[:2] for row in others):
            return fresh.shuffled(rows)


def _point(fastest: float, batch: int, workers: int, share: float, utilization: float) -> dict[str, Any]:
    settings = {"batch_size": batch, "num_workers": workers, "pin_memory": True, "log_every": 50}
    return {"settings": settings, "samples_per_second": share * fastest, "utilization": utilization}
