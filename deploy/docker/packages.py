"""Installs the course's packages into a virtual environment of the image, on any base image with a Python.

On a plain Python image this is `pip install` with the course's constraints. A base image that brings PyTorch, such as
`nvcr.io/nvidia/pytorch`, keeps it: a second torch would double the image and lose NVIDIA's build, and other packages of
the image are built against that one. The environment then sees the image's packages, and

- a package of the image that fits the course's range stays, and pip may not replace it;
- a package of the image that does not fit is installed again, into the environment, at the course's version;
- PyTorch is never installed again: the build fails if the image's is too old;
- the image's own constraints (`PIP_CONSTRAINT`, since NVIDIA's 25.03) hold for all other packages.

    python packages.py --requirements requirements.txt --constraints constraints.txt --into /opt/venv

Runs in the image while it is built: it needs Python 3.11 or newer with pip 22.3 or newer, and nothing else.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pip._vendor.packaging.requirements import InvalidRequirement, Requirement
from pip._vendor.packaging.utils import NormalizedName, canonicalize_name
from pip._vendor.packaging.version import InvalidVersion, Version

PYTORCH = (canonicalize_name("torch"), canonicalize_name("torchvision"))
"""Never installed over those of the base image: torchvision's operators belong to one build of torch."""
TORCHRUN = """#!/bin/sh
# The base image's torchrun starts a Python that does not see the packages of this environment.
exec {python} -m torch.distributed.run "$@"
"""


class PackagesError(Exception):
    """The course cannot be installed on this base image."""


@dataclass(frozen=True)
class Plan:
    """What pip is asked to install, and which versions it may take."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]


def installed_packages() -> dict[NormalizedName, Version]:
    """The packages that this Python sees, by their canonical names; one with an odd version is left out."""
    versions: dict[NormalizedName, Version] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        try:
            # Of two with one name the first is imported.
            versions.setdefault(canonicalize_name(name), Version(distribution.version))
        except (InvalidVersion, TypeError):
            continue
    return versions


def plan(
    requirements: Sequence[str],
    constraints: Sequence[str],
    installed: Mapping[NormalizedName, Version],
    image: Sequence[str] = (),
) -> Plan:
    """What to install on a base image that brings PyTorch.

    Args:
        requirements: of the course, with their ranges.
        constraints: of the course, one version for each package.
        installed: the packages of the base image.
        image: the lines of the base image's own constraints.

    Raises:
        PackagesError: the base image's PyTorch does not fit the course.
    """
    ranges = [requirement for requirement in _parsed(requirements) if _applies(requirement)]
    fitting = {canonicalize_name(requirement.name) for requirement in ranges if _fits(requirement, installed)}
    for requirement in ranges:
        name = canonicalize_name(requirement.name)
        if name in PYTORCH and name not in fitting:
            version = installed.get(name)
            raise PackagesError(
                f"the course needs {requirement}, the base image has {name} {version or 'not at all'}: "
                "take a newer base image, or python:X.Y-slim"
            )
    required = {
        canonicalize_name(requirement.name): requirement
        for requirement in ranges
        if canonicalize_name(requirement.name) not in fitting
    }
    kept = {name: version for name, version in installed.items() if name not in required}
    of_image = [
        constraint
        for constraint in _parsed(image)
        if canonicalize_name(constraint.name) not in installed and _agrees(constraint, required)
    ]
    held = {*kept, *(canonicalize_name(constraint.name) for constraint in of_image)}
    of_course = [constraint for constraint in _parsed(constraints) if canonicalize_name(constraint.name) not in held]
    return Plan(
        tuple(str(requirement) for requirement in required.values()),
        (
            *(f"{name}=={version}" for name, version in sorted(kept.items())),
            *(str(constraint) for constraint in (*of_image, *of_course)),
        ),
    )


def _fits(requirement: Requirement, installed: Mapping[NormalizedName, Version]) -> bool:
    """NVIDIA names its builds before the release, such as `2.10.0a0+b4e4ee81d3`: they are taken for the release."""
    version = installed.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version.base_version)


def _agrees(constraint: Requirement, required: Mapping[NormalizedName, Requirement]) -> bool:
    """Whether the course can have the version that the image's constraint names, if it names one."""
    requirement = required.get(canonicalize_name(constraint.name))
    pins = [clause.version for clause in constraint.specifier if clause.operator == "=="]
    return requirement is None or all(requirement.specifier.contains(pin) for pin in pins)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def _parsed(lines: Iterable[str]) -> list[Requirement]:
    """The lines that name a package; comments, options and what pip alone understands are left out."""
    parsed = []
    for line in lines:
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        try:
            parsed.append(Requirement(text))
        except InvalidRequirement:
            continue
    return parsed


def image_constraints() -> list[str]:
    """The lines of the files in PIP_CONSTRAINT; since NVIDIA's 25.10 the file may be empty."""
    lines: list[str] = []
    for name in os.environ.get("PIP_CONSTRAINT", "").split():
        path = Path(name)
        lines += path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return lines


def package_folders() -> list[str]:
    """Where the packages of this Python are."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir()]


def install_plain(requirements: Path, constraints: Path, into: Path) -> None:
    """On a base image without PyTorch: everything, at the tested versions."""
    _run(sys.executable, "-m", "venv", str(into))
    _run(
        str(into / "bin" / "python"), "-m", "pip", "install", "--requirement", str(requirements),
        "--constraint", str(constraints),
    )  # fmt: skip


def install_beside(
    requirements: Path, constraints: Path, into: Path, installed: Mapping[NormalizedName, Version]
) -> None:
    """On a base image with PyTorch: what is missing, into an environment that sees the image's packages."""
    chosen = plan(_lines(requirements), _lines(constraints), installed, image_constraints())
    # Ubuntu's Python brings no ensurepip; the image's pip installs into the environment.
    _run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(into))
    python = into / "bin" / "python"
    site = Path(_printed(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    # What a virtual environment sees of the system differs between distributions of Python; this names the folders.
    (site / "base_image.pth").write_text("\n".join(package_folders()) + "\n", encoding="utf-8")
    if chosen.requirements:
        with tempfile.TemporaryDirectory() as folder:
            fixed = Path(folder) / "constraints.txt"
            fixed.write_text("\n".join(chosen.constraints) + "\n", encoding="utf-8")
            environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
            _run(
                sys.executable, "-m", "pip", "--python", str(python), "install", "--constraint", str(fixed),
                *chosen.requirements, environment=environment,
            )  # fmt: skip
    for name in PYTORCH:
        if list(site.glob(f"{name}-*.dist-info")):
            raise PackagesError(f"pip installed a second {name}, over the base image's {installed[name]}")
    torchrun = into / "bin" / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=python), encoding="utf-8")
    torchrun.chmod(0o755)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, env=environment, check=True)


def _printed(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Install, and say which way was taken."""
    parser = argparse.ArgumentParser(description="Install the course's packages into a virtual environment.")
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--constraints", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(argv)
    installed = installed_packages()
    try:
        if PYTORCH[0] in installed:
            print(f"the base image brings torch {installed[PYTORCH[0]]}: it stays", flush=True)
            install_beside(options.requirements, options.constraints, options.into, installed)
        else:
            install_plain(options.requirements, options.constraints, options.into)
    except PackagesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
