"""Builds a `GradingRequest` from the options of a person."""

from __future__ import annotations

from pathlib import Path

from gradebox.common import resources
from gradebox.course import course as courses
from gradebox.course.course import Course
from gradebox.course.rubric import Rubric
from gradebox.run import overrides
from gradebox.run.input_generator import new_seed
from gradebox.run.options import TIME_LIMIT_SECONDS, Options
from gradebox.run.request import GradingError, GradingRequest
from gradebox.sandbox import devices
from gradebox.sandbox.devices import Device

_MOST_JOBS = 4
"""Sandboxes that nobody asked for: beyond these a grade waits for its longest criterion."""
_BYTES_PER_JOB = 3 * 2**30
"""A sandbox with what the checks of a lab start in it."""


_CHECKS_PER_JOB = 15
"""Fewer are asked before a further sandbox has imported what it needs."""
_CHECKS_PER_JOB_ON_HARDWARE = 5
"""There each request waits for a driver, so that more of them pay side by side."""


def jobs_on(device: Device, checks: int) -> int:
    """As many sandboxes as there are cores, as far as memory and the checks to ask go.

    On a real device one for every two cores, as far as the device's memory goes (`resources.side_by_side`).
    """
    memory = resources.memory_bytes()
    room = max(1, memory // _BYTES_PER_JOB) if memory is not None else resources.cores()
    if device.hardware:
        return min(resources.side_by_side(device.memory_bytes), room, 1 + checks // _CHECKS_PER_JOB_ON_HARDWARE)
    return min(resources.cores(), _MOST_JOBS, room, 1 + checks // _CHECKS_PER_JOB)


def build_request(options: Options) -> GradingRequest:
    """What these options mean.

    Raises:
        GradingError, ValueError, DeviceError: they cannot be met; the message is one line that says what to do.
    """
    if options.seed is not None and options.seed < 0:
        raise GradingError(f"--grade-seed {options.seed}: a seed is 0 or larger, as a report prints it")
    if options.time_limit is not None and not options.time_limit > 0:
        raise GradingError(f"--time-limit {options.time_limit:g}: expected seconds, more than 0")
    if options.jobs is not None and options.jobs < 1:
        raise GradingError(f"--jobs {options.jobs}: expected 1 or more")
    course = courses.load(Path(options.course))
    course.prepare()
    rubric, labs = course.select(options.lab, options.criterion)
    device = devices.parse(options.device, course.devices)
    return GradingRequest(
        course=course,
        submission=options.folder,
        rubric=rubric,
        labs=labs,
        device=device,
        seed=options.seed if options.seed is not None else new_seed(),
        name=options.submission,
        overrides=_given(options, course, rubric),
        time_limit_seconds=options.time_limit or (None if device.hardware else TIME_LIMIT_SECONDS),
        jobs=options.jobs or jobs_on(device, sum(len(criterion.checks) for lab in labs for criterion in lab.criteria)),
    )


def _given(options: Options, course: Course, rubric: Rubric) -> tuple[overrides.Override, ...]:
    """The points given by hand to this student."""
    student = options.student or options.folder.resolve().name
    if options.overrides is not None:
        path = Path(options.origin) / options.overrides
        if path.resolve().is_relative_to(options.folder.resolve()):
            raise overrides.OverrideError(
                f"{path} is in the submission: overrides are the instructor's, keep them outside"
            )
    else:
        # Not the one of the folder somebody happens to be in: that may be the submission's, or next to it.
        path = course.folder.parent / overrides.DEFAULT_FILE
        if not path.is_file() or path.resolve().is_relative_to(options.folder.resolve()):
            return ()
    return tuple(override for override in overrides.load(path, rubric) if override.student == student)
