"""A probe's own loader forks its workers, whatever method a system or a version of Python has by default."""

from __future__ import annotations

import pytest

import vgpu
from grader.lab5.profiling.probes.jobs import maker_of
from labkit.results import PipelineSettings


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork")])
def test_the_course_is_not_imported_for_a_loaders_workers(workers: int, method: str | None) -> None:
    with vgpu.attach("T4"):
        make = maker_of(width=4, layers=1, decode_seconds=0.0, too_large=1 << 20)
        context = make(PipelineSettings(batch_size=2, num_workers=workers)).loader.multiprocessing_context
    assert (context and context.get_start_method()) == method
