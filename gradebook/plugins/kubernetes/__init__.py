"""Grades a class on Kubernetes: `gpulabs class --on kubernetes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebook.grading.cluster.engine import open_cluster
from gradebook.grading.engine import EngineError, OpenEngine
from gradebook.plugins import ClassRun, PluginEngine
from gradebook.plugins.kubernetes.scheduler import Kubernetes, Site


def engine(
    image: Annotated[str | None, typer.Option(help="On kubernetes: the image with this project.")] = None,
    claim: Annotated[
        str | None,
        typer.Option(metavar="NAME=FOLDER", help="On kubernetes: the volume claim, and where it is mounted here."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="On kubernetes (default: kubectl's own).")] = "",
) -> PluginEngine:
    """Indexed Jobs, by kubectl."""

    def opened(run: ClassRun) -> OpenEngine:
        site = _site(image, claim, namespace)  # a mistake in it should not wait until everything is taken in
        return open_cluster(run.course, run.out, lambda folder, device: Kubernetes(folder, device, site), run.say)

    return PluginEngine(opened, elsewhere=True)


def _site(image: str | None, claim: str | None, namespace: str) -> Site:
    """Image, claim, and where the claim is mounted. Raises EngineError."""
    name, _, place = (claim or "").partition("=")
    if not image or not name or not place.startswith("/"):
        raise EngineError(
            "--on kubernetes needs --image, and --claim NAME=FOLDER: a volume claim that pods and this machine share, "
            "and where it is mounted here"
        )
    return Site(image, name, Path(place), namespace)
