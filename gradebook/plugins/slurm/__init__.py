"""Grades a class on Slurm: `gpulabs class --on slurm`."""

from __future__ import annotations

from typing import Annotated

import typer

from gradebook.grading.cluster.engine import open_cluster
from gradebook.grading.engine import OpenEngine
from gradebook.plugins import ClassRun, PluginEngine
from gradebook.plugins.slurm.scheduler import Slurm


def engine(
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="On slurm: an option for sbatch, as --sbatch=--partition=gpu. Repeatable."),
    ] = None,
) -> PluginEngine:
    """Array jobs, by Slurm's own commands."""

    def opened(run: ClassRun) -> OpenEngine:
        return open_cluster(run.course, run.out, lambda folder, device: Slurm(folder, device, sbatch or ()), run.say)

    return PluginEngine(opened, elsewhere=True)
