"""Jobs as cases describe them: for the probes, and for the reference that measures the same jobs."""

from __future__ import annotations

from collections.abc import Callable

from grader.lab5.profiling.cases import JobCase, MakerCase
from grader.lab5.profiling.probes.jobs import job_of, maker_of
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings


def planted_job(case: JobCase) -> TrainingJob:
    """A job in which one thing is wrong."""
    return job_of(
        samples=case.samples,
        width=case.width,
        layers=case.layers,
        load_seconds=case.load_seconds,
        look=case.look,
        slow=case.slow,
    )


def maker(case: MakerCase) -> Callable[[PipelineSettings], TrainingJob]:
    """What makes jobs of settings."""
    return maker_of(
        width=case.width,
        layers=case.layers,
        decode_seconds=case.decode_seconds,
        too_large=case.too_large,
        late_batch=case.late_batch,
        late_steps=case.late_steps,
        late_seconds=case.late_seconds,
        slow_batch=case.slow_batch,
        slow_seconds=case.slow_seconds,
    )
