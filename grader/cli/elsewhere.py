"""`gpulabs class --on slurm` and `--on kubernetes`: how to open an engine that grades on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradebook.run.grade_class import OpenEngine
from gradebook.tasks import Engine, EngineError
from grader import course

if TYPE_CHECKING:
    from gradebook.run.cluster.engine import Scheduler


@dataclass(frozen=True)
class Elsewhere:
    """What the command says about the cluster."""

    folder: Path
    """Shared with every node."""
    options: tuple[str, ...] = ()
    """For sbatch."""
    image: str | None = None
    claim: str | None = None
    """`NAME=FOLDER`."""
    namespace: str = ""


def on_cluster(name: str, asked: Elsewhere, show: Callable[..., None]) -> OpenEngine | None:
    """How to open the engine of a scheduler; None where `name` is another one.

    Args:
        name: what the command says.
        asked: what it says about a cluster.
        show: a console's `print`, for lines about what the scheduler does.

    Raises:
        EngineError: something is missing that the cluster needs, or was said that it does not need.
    """
    from gradebook.run.cluster.engine import ClusterEngine
    from gradebook.run.cluster.sameness import code_digest

    if asked.options and name != "slurm":
        raise EngineError("--sbatch is for --on slurm")
    if (asked.image or asked.claim or asked.namespace) and name != "kubernetes":
        raise EngineError("--image, --claim and --namespace are for --on kubernetes")
    if name not in ("slurm", "kubernetes"):
        return None
    if name == "kubernetes":
        _site(asked)  # a mistake in it should not wait until everything is taken in

    def say(text: str) -> None:
        show(text, markup=False, highlight=False, soft_wrap=True)

    def open_engine(jobs: int, room: Path, device: str) -> Engine:
        found = course()
        return ClusterEngine(
            _scheduler(name, asked, device), asked.folder, jobs, (found.package, code_digest(found)), say
        )

    return open_engine


def _scheduler(name: str, asked: Elsewhere, device: str) -> Scheduler:
    if name == "slurm":
        from gradebook.run.cluster.slurm import Slurm

        return Slurm(asked.folder, device, asked.options)
    from gradebook.run.cluster.kubernetes import Kubernetes, Site

    image, claim, mounted_at = _site(asked)
    return Kubernetes(asked.folder, device, Site(image, claim, mounted_at, asked.namespace))


def _site(asked: Elsewhere) -> tuple[str, str, Path]:
    """Image, claim, and where the claim is mounted. Raises EngineError."""
    claim, _, place = (asked.claim or "").partition("=")
    if not asked.image or not claim or not place.startswith("/"):
        raise EngineError(
            "--on kubernetes needs --image, and --claim NAME=FOLDER: a volume claim that pods and this machine share, "
            "and where it is mounted here"
        )
    return asked.image, claim, Path(place)
