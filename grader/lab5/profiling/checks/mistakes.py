"""Recognises the mistake behind what Lab 5's profiling functions return, by a reference that makes the same mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, number
from grader.lab5.profiling.cases import Bottlenecks, MeasuredPoint, PointFields, Record, RecordReply, TimelineCase
from grader.lab5.profiling.cases.drawn import NAMES
from grader.lab5.profiling.reference.accounts import MISTAKES, account
from grader.lab5.profiling.reference.constructed import (
    BOTTLENECK_MISTAKES,
    CHOICE_MISTAKES,
    Choice,
    bottleneck_by,
    chosen_by,
)

_IDLE = "lab5.profiling.idle_time_explained"
_NAMED = "lab5.profiling.bottleneck_named"
_CHOSEN = "lab5.profiling.cheapest_fast_setting_chosen"


def _causes(check: str, table: Mapping[str, tuple[str, str]]) -> dict[str, Cause]:
    return {
        name: Cause(f"{check.rpartition('.')[2]}: {name}", hint, check, mistake=mistake)
        for name, (mistake, hint) in table.items()
    }


_ACCOUNTS = _causes(
    _IDLE,
    {
        "data_while_busy": (
            'Waiting for a batch counts as "data" although the device computes meanwhile',
            'Count only idle moments as "data". A loader that works while a kernel runs costs nothing.',
        ),
        "transfer_while_busy": (
            'Copying a batch counts as "transfer" although the device computes meanwhile',
            'Count only idle moments as "transfer". A copy during a running kernel costs nothing.',
        ),
        "collectives_compute": (
            "Collectives count as computing",
            'Take only `kernels` for "compute". The rest of `collectives` is "communication".',
        ),
        "overlaps_twice": (
            "Kernels that overlap are counted twice",
            "Unite the intervals before you add them up: `total` does both.",
        ),
        "of_all_steps": (
            "The seconds are those of all recorded steps, not of one",
            "Divide each of the six by `timeline.steps`.",
        ),
        "wait_alone_is_sync": (
            'Only the wait itself counts as "sync", and the rest of its gap as "launch"',
            'Count a gap with a wait in it as "sync" as a whole, except for what "data" and "transfer" have taken.',
        ),
        "waits_in_regions_are_sync": (
            'Waits inside the regions "data" and "transfer" count as "sync"',
            'Subtract the regions "data" and "transfer" from the waits, before you look for gaps.',
        ),
        "waits_in_data_are_sync": (
            'Waits inside the region "data" count as "sync"',
            'Subtract the region "data" from the waits, before you look for gaps.',
        ),
        "waits_in_transfer_are_sync": (
            'Waits inside the region "transfer" count as "sync"',
            'Subtract the region "transfer" from the waits, before you look for gaps.',
        ),
        "copies_out_are_no_waits": (
            "A copy from the device does not count as a wait",
            "Take `copies_out` together with `waits`. The host waits for what it reads.",
        ),
        "copies_in_left_out": (
            'Copies to the device outside the region "transfer" do not count as "transfer"',
            'Take `copies_in` together with the region "transfer".',
        ),
        "transfer_before_data": (
            'A moment in both "data" and a copy counts as "transfer"',
            'Take "data" first. A moment belongs to the first description that is true of it.',
        ),
    },
)
_BOTTLENECKS = _causes(
    _NAMED,
    {
        "always_a_loss": (
            "The largest loss is named even if the device computes for most of the step",
            'Return "compute" if the device computes for more than `target` of the step, before you compare losses.',
        ),
        "communication_is_work": (
            "Communication counts as computing",
            "Compare `compute_seconds` alone with the target. Communication does not count.",
        ),
        "each_against_the_limit": (
            "Each loss is compared with the target by itself, even if they add up",
            "Compare the computing with the target. Five small losses are a large one.",
        ),
        "target_is_enough": (
            "A device that computes for exactly the target's share is called busy",
            "Compare with >, not with >=. The device must compute for more than the target.",
        ),
        "target_ignored": ("The argument `target` is not used", "Compare with `target`, not with 0.8."),
        "never_communication": (
            "Communication is never named",
            'Look for the largest of all five losses, "communication" included.',
        ),
    },
)
_CHOICES = _causes(
    _CHOSEN,
    {
        "fastest": (
            "The fastest settings win, however little they gain",
            "Keep the points within the tolerance of the fastest, and take the cheapest of them.",
        ),
        "busiest": (
            "The settings that keep the GPU busiest win",
            "Leave the utilisation out. Take the smallest batch, then the fewest workers.",
        ),
        "busiest_of_all": (
            "The settings that keep the GPU busiest win",
            "Leave the utilisation out. Take the smallest batch, then the fewest workers.",
        ),
        "workers_first": (
            "Few workers count for more than a small batch",
            "Compare by batch size first, then by the number of workers.",
        ),
        "limit_too_slow": (
            "Settings that lose exactly what may be lost count as too slow",
            "Compare with >=. At least (1 - tolerance) of the largest is enough.",
        ),
        "no_tolerance_is_usual": (
            "A tolerance of 0 is taken for the default",
            "Use `tolerance` as it is. 0 means that only the fastest are fast enough.",
        ),
        "tolerance_ignored": ("The argument `tolerance` is not used", "Compare with `tolerance`, not with 0.05."),
        "all_points": (
            "The cheapest of all settings wins, however slow",
            "Keep the points within the tolerance of the fastest, and take the cheapest of them.",
        ),
        "slowest_of_equal": (
            "Of equal settings the slower point is taken",
            "Take the point with the most samples per second if batch size and workers are the same.",
        ),
    },
)


_SETTINGS = _causes(
    "lab5.profiling.settings_measured",
    {
        "clock_stopped_early": (
            "The clock stops before the GPU has finished",
            "Wait for the device after the last timed step, before you read the clock.",
        ),
        "warmup_timed": (
            "The warm-up steps are timed as well, with the start of the workers",
            "Start the clock after the warm-up steps, once the device is idle.",
        ),
        "first_batch_untimed": (
            "The first timed step has its batch before the clock starts",
            "Start the clock before the first timed step takes its batch.",
        ),
        "each_step_waited_for": (
            "Settings are timed with a wait in every step",
            "Wait for the device before the first timed step and after the last, and never in between.",
        ),
    },
)
_RECORDINGS = _causes(
    "lab5.profiling.schedule_kept",
    {
        "first_steps_recorded": (
            "The first WAIT + WARMUP steps are recorded as well",
            "Use `torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)`.",
        ),
        "steps_counts_all": (
            "`steps` is taken for all steps of the job, the unrecorded ones included",
            "Make WAIT + WARMUP steps more than are recorded.",
        ),
    },
)
_REGIONS = _causes(
    "lab5.profiling.regions_named_in_trace",
    {
        "data": ('The batch is fetched outside the region "data"', 'Call `next(batches)` inside the region "data".'),
        "forward": (
            'The loss is computed outside the region "forward"',
            'Put model and criterion into the region "forward".',
        ),
        "backward": (
            'The backward pass runs outside the region "backward"',
            'Put `zero_grad` and `loss.backward()` into the region "backward".',
        ),
        "clear": (
            'Old gradients are cleared outside the region "backward"',
            'Call `job.optimizer.zero_grad()` first in the region "backward".',
        ),
        "optimizer": (
            'The optimizer steps outside the region "optimizer"',
            'Put `job.optimizer.step()` into the region "optimizer".',
        ),
        "after_step": (
            "`after_step` runs inside a region",
            "Call `after_step` after the last region. It belongs to none.",
        ),
        "waited_copies": (
            "Copies are waited for although the job does not wait for them",
            "Pass `non_blocking=job.non_blocking` to each `to(device)`.",
        ),
    },
)
_WAITS = _causes(
    "lab5.profiling.planted_bottlenecks_found",
    {
        "each_step_waited_for": (
            "The profiled loop waits for the device after every step",
            "Wait only twice: before the first recorded step, and at the end of the last.",
        ),
        "busy_at_the_start": (
            "The recording starts while the device is still busy with earlier steps",
            "Wait for the device after the last unrecorded step, before `profiler.step()`.",
        ),
        "busy_at_the_end": (
            "The recording ends before the device has finished the last step",
            "Wait for the device after the last recorded step, before `profiler.step()`.",
        ),
    },
)


def cause_of_schedule(asked: int, unrecorded: int, reply: RecordReply) -> Cause | None:
    """The mistake that leads to this number of recorded steps, if `asked` for."""
    if reply.steps == unrecorded + asked == reply.updates:
        return _RECORDINGS["first_steps_recorded"]
    if reply.steps == max(1, asked - unrecorded) and reply.updates == max(unrecorded + 1, asked):
        return _RECORDINGS["steps_counts_all"]
    return None


def cause_of_region(name: str, length: float, inputs: Record) -> Cause | None:
    """The mistake that leads to a region of this length."""
    slept, after = inputs.seconds.get(name, 0.0), inputs.seconds["after_step"]
    cleared_elsewhere = slept if name == "backward" else slept + inputs.seconds["clear"]
    if cleared_elsewhere <= length < cleared_elsewhere + 5e-3:
        return _REGIONS["clear"]
    if length < slept / 2:
        return _REGIONS.get(name)
    if slept + after <= length < slept + after + 5e-3:
        return _REGIONS["after_step"]
    return _REGIONS["waited_copies"] if name == "transfer" and inputs.pinned else None


def cause_of_waits(idle: Sequence[bool], unrecorded: int, steps: int, *, runs_ahead: bool) -> Cause | None:
    """The mistake in when the device was waited for; `idle` is whether it was at the end of each step.

    Args:
        idle: of all steps.
        unrecorded: how many of them are not recorded.
        steps: how many are recorded.
        runs_ahead: whether the host launches a step before the device has finished the one before.
    """
    if len(idle) != unrecorded + steps:
        return None
    if not idle[unrecorded - 1]:
        return _WAITS["busy_at_the_start"]
    if not idle[-1]:
        return _WAITS["busy_at_the_end"]
    return _WAITS["each_step_waited_for"] if runs_ahead and all(idle) else None


def cause_of_speeds(
    speeds: Sequence[float], references: Sequence[MeasuredPoint], waited: Sequence[MeasuredPoint], relative: float
) -> Cause | None:
    """The mistake that leads to these samples per second of all settings.

    Args:
        speeds: the student's.
        references: the points measured as the task says.
        waited: the same with each step waited for.
        relative: how far a speed may be off.
    """
    mistaken = [
        {**point.by_mistake, "each_step_waited_for": slow.samples_per_second}
        for point, slow in zip(references, waited, strict=True)
    ]

    def explains(mistake: str) -> bool:
        return all(
            abs(actual / expected[mistake] - 1) <= relative for actual, expected in zip(speeds, mistaken, strict=True)
        )

    return next((cause for mistake, cause in _SETTINGS.items() if explains(mistake)), None)


def cause_of_times(timelines: Sequence[TimelineCase], times: Sequence[Mapping[str, object]]) -> Cause | None:
    """The mistake that leads to these times of all timelines; None if they are right, or if none does."""

    def explains(mistake: str) -> bool:
        for timeline, actual in zip(timelines, times, strict=True):
            expected = account(timeline, mistake)
            within = 1e-6 * sum(account(timeline).values())
            for name in NAMES:
                value = actual.get(f"{name}_seconds")
                if not isinstance(value, (int, float)) or not abs(value - expected[name]) <= within:
                    return False
        return True

    return None if explains("") else next((_ACCOUNTS[name] for name in MISTAKES if explains(name)), None)


def cause_of_names(inputs: Bottlenecks, names: Sequence[object]) -> Cause | None:
    """The mistake that leads to these bottlenecks of all steps."""
    steps = list(zip(inputs.times, inputs.targets, strict=True))
    return next(
        (
            _BOTTLENECKS[mistake]
            for mistake in BOTTLENECK_MISTAKES
            if list(names) == [bottleneck_by(mistake, times, target) for times, target in steps]
        ),
        None,
    )


def cause_of_choices(choices: Choice, best: Sequence[PointFields]) -> Cause | None:
    """The mistake that leads to these points with all tolerances."""

    def explains(mistake: str) -> bool:
        for actual, tolerance in zip(best, choices.tolerances, strict=True):
            expected = chosen_by(mistake, choices.points, tolerance).case(choices.fastest)
            speed = number(actual["samples_per_second"], "samples_per_second")
            if actual["settings"] != expected["settings"] or abs(speed / expected["samples_per_second"] - 1) > 1e-6:
                return False
        return True

    return next((_CHOICES[mistake] for mistake in CHOICE_MISTAKES if explains(mistake)), None)


def limit_cause() -> Cause:
    """If a point at the limit itself is not taken, and all others are right."""
    return _CHOICES["limit_too_slow"]
