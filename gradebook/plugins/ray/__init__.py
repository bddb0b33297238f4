"""Grades a class on a Ray cluster: `gpulabs class --on ray`."""

from __future__ import annotations

import functools

from gradebook.grading.engine import EngineError, OpenEngine
from gradebook.grading.judge import SandboxJudge
from gradebook.plugins import ClassRun, PluginEngine


def engine() -> PluginEngine:
    """Judges as actors of a Ray cluster."""

    def opened(run: ClassRun) -> OpenEngine:
        try:
            from gradebook.plugins.ray.actors import ray_pool
        except ImportError:
            raise EngineError('--engine ray needs Ray: pip install "gpu-computing-labs[ray]"') from None
        course = run.course.folder
        judge = functools.partial(SandboxJudge, course=course)
        return lambda jobs, room, device: ray_pool(jobs, device, course, judge)

    return PluginEngine(opened)
