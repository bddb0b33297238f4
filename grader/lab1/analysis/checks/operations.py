"""Judges profiles of known operations, on the GPU and on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gradebox.run.assertions import (
    Cause,
    NeedsReview,
    number,
    require,
    require_between,
    require_equal,
    seconds,
)
from grader.lab1.analysis.cases import CpuProfileReply, Operation, ProfileOnGpu, ProfileReply
from grader.lab1.analysis.cases.profiles import PREFIX

_SELF = "Sum up self times: without the operations called in turn, and without the kernels a second time."
_CHECK = "lab1.analysis.slowest_operation_found"
MICROSECONDS = Cause(
    "microseconds_taken_for_seconds",
    "Multiply the profiler's times by 1e-6: they are in microseconds.",
    _CHECK,
    mistake="The profiler's microseconds are reported as seconds",
)
WARM_UP_RECORDED = Cause(
    "warm_up_steps_recorded",
    "Run the warm-up steps before the profiler starts.",
    _CHECK,
    mistake="The profiler also records the warm-up steps",
)
BY_HOST_TIME = Cause(
    "sorted_by_host_time",
    "Sort by device_seconds on a GPU: cpu_seconds are the time of a launch.",
    _CHECK,
    mistake="The operations are sorted by the host's time instead of the device's",
)
TOTAL_TIMES = Cause(
    "total_times_in_the_profile",
    "Read the self times (`self_cpu_time_total`, `self_device_time_total`).",
    _CHECK,
    mistake="Total times are reported instead of self times: what an operation calls counts for it, too",
)
MEAN_OF_THE_STEPS = Cause(
    "mean_of_the_steps",
    "Sum up over all recorded calls.",
    _CHECK,
    mistake="The mean of the recorded steps is reported instead of their sum",
)
STILL_AT_WORK = Cause(
    "recording_begins_while_the_device_works",
    "Call torch.cuda.synchronize() after the warm-up: what is recorded shares the GPU with what was queued before.",
    _CHECK,
    mistake="The recording starts while the device still works on the warm-up",
)
_MICROSECOND = 1e-6
_CLOCK_SHARE = 1.05
"""Self times of all operations together may not be longer than the steps took."""
_LEAST_SHARE = 0.02
_SAME = 0.02
_INNER, _OUTER = "aten::mm", "aten::matmul"
"""An operation, and one that calls it."""
# Of the host's time for an operation, the share that is its own: the rest is the call of the CUDA runtime below it.
_OWN_SHARE = (0.45, 0.95)

Rows = Mapping[str, Operation]
"""The operations by name."""


def _rows(profile: ProfileReply | CpuProfileReply, required: Sequence[str], steps: int, warmup: int, what: str) -> Rows:
    """The operations by name; fails unless they are operations, each once, the required ones among them."""
    require(bool(profile.operations), f"{what} returned nothing")
    names = [str(row["name"]) for row in profile.operations]
    others = [name for name in names if not name.startswith(PREFIX)]
    require(
        not others,
        f"{what}: {', '.join(others[:2])} is no operation",
        "Return operations alone: their names begin with aten::.",
    )
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not twice,
        f"{what}: {twice[:1]} is there twice",
        "Return one OperationTime per operation, whatever its shapes.",
    )
    require(
        profile.steps_run == warmup + steps,
        f"{what}: the step ran {profile.steps_run} times, expected {steps} after {warmup} to warm up",
        WARM_UP_RECORDED
        if warmup and profile.steps_run == 2 * warmup + steps
        else "Call the step `warmup + steps` times, and record the last ones.",
    )
    missing = [name for name in required if name not in names]
    require(
        not missing,
        f"{what}: {', '.join(missing)} ran, and is missing",
        "Return every operation that ran, also one that launches nothing.",
    )
    return dict(zip(names, profile.operations, strict=True))


def _require_calls(rows: Rows, expected: Mapping[str, int], steps: int, warmup: int) -> None:
    recorded = warmup > 0 and all(rows[name]["calls"] == (warmup + steps) * calls for name, calls in expected.items())
    for name, calls in expected.items():
        require_equal(
            rows[name]["calls"],
            steps * calls,
            what=f"calls of {name} in {steps} profiled steps",
            hint=WARM_UP_RECORDED if recorded else "Count the calls of every profiled step, and of no other.",
        )


def _require_sorted(
    profile: ProfileReply | CpuProfileReply, field: Literal["cpu_seconds", "device_seconds"]
) -> list[float]:
    took = [number(row[field], field) for row in profile.operations]
    shown = ", ".join(f"{row['name']} {seconds(spent)}" for row, spent in zip(profile.operations, took, strict=True))
    host = [number(row["cpu_seconds"], "cpu_seconds") for row in profile.operations]
    by_host = field == "device_seconds" and host == sorted(host, reverse=True)
    require(
        took == sorted(took, reverse=True),
        f"the operations are not sorted by {field}, the slowest first: {shown}",
        BY_HOST_TIME if by_host else "Sort by the time on the device on a GPU, and by the host's on a CPU.",
    )
    return took


def require_profiled(profile: ProfileReply, inputs: ProfileOnGpu, slowest: str, *, timed: bool) -> None:
    """Judge a profile on the GPU; `timed` if the seconds of each kernel are known.

    Raises:
        NeedsReview: the machine's profiler records no kernels.
    """
    if not profile.recorded:
        raise NeedsReview(
            "PyTorch's profiler records no kernels on this machine",
            "NVIDIA's CUPTI does: is its library there, and may this user trace the GPU?",
        )
    repeats, steps = {**inputs.repeats, **inputs.beside}, inputs.steps
    calls = {f"{PREFIX}{name}": count for name, count in repeats.items()}
    what = f"profile_operations(device={'cuda:0' if inputs.indexed else 'cuda'!r})"
    without_kernel = {f"{PREFIX}{name}": count for name, count in inputs.without_kernel.items()}
    rows = _rows(profile, [*calls, *without_kernel, _OUTER], steps, inputs.warmup, what)
    if inputs.indexed:
        require(
            any(row["device_seconds"] != 0 for row in profile.operations),
            f"{what}: device_seconds of all operations are 0.0",
            "Ask torch.device(device).type whether it is a GPU, which may be named with its index.",
        )
    first = profile.operations[0]
    require(
        first["name"] == slowest,
        f"{what}: the slowest operation of a step with {repeats}: saw {first['name']!r}, expected {slowest!r}",
        "Take operations, not kernels: their names begin with aten::. The longest self time on the device comes first.",
    )
    _require_calls(rows, {**calls, **without_kernel}, steps, inputs.warmup)
    took = _require_sorted(profile, "device_seconds")
    if not timed or profile.device_record is None:
        return
    recorded = profile.device_record["seconds"]
    for name in calls:
        require(name in recorded, f"{what}: {name} did not run", "Call step() in the profiled steps.")
        host, device = recorded[name]
        own = {"cpu_seconds": rows[name]["cpu_seconds"], "device_seconds": rows[name]["device_seconds"]}
        for field, spent in (("cpu_seconds", host), ("device_seconds", device)):
            least, most = _OWN_SHARE if field == "cpu_seconds" else (1 - _SAME, 1 + _SAME)
            actual = number(own[field], field)
            ratio = actual / max(spent, 1e-12)
            hint: str = "Report seconds, summed over all recorded calls; the profiler counts in microseconds."
            if least - 0.1 <= ratio * _MICROSECOND <= most + 0.1:
                hint = MICROSECONDS
            elif steps > 1 and least - 0.1 <= ratio * steps <= most + 0.1:
                hint = MEAN_OF_THE_STEPS
            elif field == "cpu_seconds" and most < ratio <= 1 + _SAME:
                hint = TOTAL_TIMES
            require_between(
                actual, least * spent, most * spent, what=f"{field} of {name} in {steps} steps", show=seconds, hint=hint
            )
    # By itself it does next to nothing, on a virtual GPU as much as anywhere; and nothing interrupts it there.
    itself, called = (number(rows[name]["cpu_seconds"], "cpu_seconds") for name in (_OUTER, _INNER))
    require(
        itself < called,
        f"{what}: cpu_seconds of {_OUTER}, which calls {_INNER}, are {seconds(itself)}, and of {_INNER} "
        f"{seconds(called)}",
        TOTAL_TIMES,
    )
    everything = sum(device for _, device in recorded.values())
    require_between(
        sum(took),
        0,
        (1 + _SAME) * everything,
        what=f"device seconds of all operations together in {steps} steps",
        show=seconds,
        hint=_SELF,
    )
    # Without a warm-up there is nothing of its own to wait for, and what others have queued may go on.
    require(
        bool(profile.device_record["idle_at_start"]) or not inputs.warmup,
        f"{what}: work from before was not finished when the recording started",
        STILL_AT_WORK,
    )


def require_profiled_on_cpu(profile: CpuProfileReply, steps: int, warmup: int) -> None:
    """Judge a profile on a CPU."""
    what = 'profile_operations(device="cpu")'
    rows = _rows(profile, [_INNER, _OUTER], steps, warmup, what)
    _require_calls(rows, {_INNER: 1, _OUTER: 1}, steps, warmup)
    on_device = {row["name"]: row["device_seconds"] for row in profile.operations if row["device_seconds"] != 0}
    require(
        not on_device, f"{what}: device_seconds of {on_device}, expected 0.0", "Report 0.0: a CPU launches no kernels."
    )
    took = _require_sorted(profile, "cpu_seconds")
    spent = sum(profile.step_seconds)
    own, called = (number(rows[name]["cpu_seconds"], f"{what}: cpu_seconds of {name}") for name in (_OUTER, _INNER))
    hint: str = f"Report seconds, summed over the recorded calls. {_SELF}"
    if _LEAST_SHARE * spent <= sum(took) * _MICROSECOND <= _CLOCK_SHARE * spent:
        hint = MICROSECONDS
    elif own >= called > 0:  # with what it calls it takes longer than that alone
        hint = TOTAL_TIMES
    require_between(
        sum(took),
        _LEAST_SHARE * spent,
        _CLOCK_SHARE * spent,
        what=f"{what}: cpu_seconds of all operations together, in steps that took {seconds(spent)}",
        show=seconds,
        hint=hint,
    )
    # By itself it does next to nothing; but whoever is interrupted in it by other programs takes longer for a while.
    require(
        own < called,
        f"{what}: {_OUTER}, which calls {_INNER}, takes {seconds(own)}, and {_INNER} itself {seconds(called)}",
        TOTAL_TIMES,
    )
