"""Python, its environment, the course's libraries, the optional extras, and the student's folder."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from gradebox.common import platforms
from grader.doctor.fact import ROOT, Fact, install, is_here, note, ok, to_do, wrong

OLDEST = (3, 11)
TESTED = ("3.11", "3.12", "3.13")
"""Versions on which the reference has been graded (`make pythons`)."""
_SET_UP = "make grade LAB=1"
NEEDED = {
    "numpy": "numpy",
    "pytest": "pytest",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "sklearn": "scikit-learn",
    "pynvml": "nvidia-ml-py",
    "prometheus_client": "prometheus-client",
    "tensorboard": "tensorboard",
    "rich": "rich",
    "typer": "typer",
    "jinja2": "jinja2",
}
"""Modules that the labs and the grader import, in addition to PyTorch, and what they are installed as."""
EXTRAS: tuple[tuple[str, str, str], ...] = (
    ("jupyterlab", "jupyterlab", "to open notebooks"),
    ("flash-attn", "flash_attn", "Lab 4's other kernels, on an NVIDIA GPU"),
)
"""Of a student: what is installed, its module, what for."""


def examine() -> list[Fact]:
    facts = [_python(), _environment(), _libraries()]
    return [*facts, *_folder(), _extras()]


def system() -> Fact:
    """Whether anything can be graded on a system like this."""
    name, description = "system", platform.platform(terse=True)
    if reason := platforms.problem():
        return wrong(name, reason, *(platforms.WINDOWS_COMMANDS if sys.platform == "win32" else ()))
    if platform.system() == "Linux":
        return ok(name, description + (" in WSL2" if "microsoft" in platform.release().lower() else ""))
    text = f"{description}: grading keeps submissions apart by process limits; it is tested on Linux only, so report"
    return note(name, text)


def _python() -> Fact:
    version = platform.python_version()
    tested = f"tested: {', '.join(TESTED)}"
    if sys.version_info >= OLDEST and ".".join(version.split(".")[:2]) not in TESTED:
        return note("Python", f"{version} ({sys.executable}); {tested}, so this one may surprise us both")
    if sys.version_info >= OLDEST:
        return ok("Python", f"{version} ({sys.executable}); {tested}")
    for minor in (13, 12, 11, 14):
        if shutil.which(f"python3.{minor}"):
            fix = f"make PYTHON=python3.{minor} grade LAB=1"
            break
    else:
        fix = "sudo apt install python3.12 python3.12-venv" if shutil.which("apt") else "uv venv --python 3.12 .venv"
        if sys.platform == "darwin":
            fix = "brew install python@3.12"
    return wrong("Python", f"{version} is too old: the course needs {OLDEST[0]}.{OLDEST[1]} or newer", fix)


def _environment() -> Fact:
    own = ROOT / ".venv"
    if sys.prefix != sys.base_prefix:
        return ok("environment", f"virtual environment {sys.prefix}")
    if (own / "bin/python").exists():
        return note(
            "environment",
            f"this Python is not that of {own}, where make installs the course",
            ".venv/bin/gpulabs doctor",
        )
    if not (is_here("venv") and is_here("ensurepip")):
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        return wrong("environment", "this Python cannot make virtual environments", f"sudo apt install {package}")
    return note("environment", "no virtual environment: make sets one up in .venv, once", "make grade LAB=1")


def _libraries() -> Fact:
    missing = [name for module, name in NEEDED.items() if not is_here(module)]
    if not missing and (others := _not_as_tested()):
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        text = f"all there; not the versions that were tested (constraints.txt): {shown}"
        return note("libraries", text, *_as_tested())
    if not missing:
        return ok("libraries", f"all {len(NEEDED)} that the course needs in addition to PyTorch")
    if not_set_up():
        return to_do("libraries", "not installed yet", set_up())
    return wrong("libraries", f"missing: {', '.join(missing)}", set_up())


def _not_as_tested() -> list[str]:
    """Libraries of the course whose version is not that of constraints.txt, as `torch 2.16.0 (2.15.0)`."""
    from importlib import metadata  # an old Python, which has none, does not come here

    file = ROOT / "constraints.txt"
    if not file.is_file():
        return []
    tested: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        name, _, version = line.partition(";")[0].strip().partition("==")
        tested.setdefault(name, set()).add(version)
    untested = []
    for name in ("torch", "torchvision", *NEEDED.values()):
        try:
            here = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if here not in tested.get(name, {here}):
            untested.append(f"{name} {here} ({', '.join(sorted(tested[name]))})")
    return untested


def _as_tested() -> tuple[str, ...]:
    """The command that installs the tested versions, where `make` is how the course was installed."""
    return ("make clean grade LAB=1",) if sys.prefix == str(ROOT / ".venv") else ()


def not_set_up() -> bool:
    """Whether this is a checkout that make has not installed the course for, asked with a Python of the system."""
    made = (ROOT / ".venv/bin/python").exists()
    return not made and sys.prefix == sys.base_prefix and set_up() == _SET_UP


def set_up(*options: str) -> str:
    """The command that installs everything the course needs; `options` are for uv, where there is an environment."""
    if (ROOT / "Makefile").is_file() and sys.prefix == sys.base_prefix and shutil.which("make"):
        return _SET_UP
    what = ("--editable", ".") if (ROOT / "pyproject.toml").is_file() else ("gpu-computing-labs",)
    return install(*what, *options)


def _folder() -> list[Fact]:
    labs = Path("labs")
    if not labs.is_dir():
        if (ROOT / "labs").is_dir():
            return [note("labs", f"this folder has no labs/; they are in {ROOT}", f"cd {ROOT}")]
        return [wrong("labs", "there is no folder labs/ here", "git checkout -- labs")]
    if not os.access(str(labs), os.W_OK):
        return [wrong("labs", "the folder labs/ cannot be written to", "sudo chown -R $USER labs")]
    count = len([folder for folder in labs.iterdir() if folder.name.startswith("lab") and folder.is_dir()])
    if count < 5:
        return [wrong("labs", f"labs/ has {count} of the five labs", "git checkout -- labs")]
    if shutil.which("git") is None:
        return [note("labs", "five labs; git is not here, which would keep your work", "sudo apt install git")]
    command = ["git", "rev-parse", "--is-inside-work-tree"]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        return [note("labs", "five labs; they are not under version control", "git init && git add labs")]
    return [ok("labs", "five labs, under version control"), *_solutions_branch()]


def _solutions_branch() -> list[Fact]:
    """For instructors: without a branch `solutions`, git takes that word for the folder."""
    if not (ROOT / "solutions").is_dir():
        return []  # the students' repository
    command = ["git", "-C", str(ROOT), "for-each-ref", "--count=1", "refs/heads/solutions", "refs/remotes/*/solutions"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if result.returncode or result.stdout:
        return []
    text = "there is no branch of this name, so `git checkout solutions` discards what you edited in the folder"
    return [note("solutions", text, "gpulabs release --branch solutions")]


def _extras() -> Fact:
    there = [extra for extra, module, _ in EXTRAS if is_here(module)]
    absent = [(extra, what) for extra, module, what in EXTRAS if extra not in there]
    parts = [f"{extra}: installed" for extra in there]
    parts += [f"{extra}: not installed ({what})" for extra, what in absent]
    if "jupyterlab" in there:
        return ok("extras", "; ".join(parts))
    if sys.prefix == sys.base_prefix:  # first an environment to install it into
        return note("extras", "; ".join(parts))
    return note("extras", "; ".join(parts), install("jupyterlab"))
