"""What a Dockerfile says about packages, its base image and its user: what several criteria need to know."""

from __future__ import annotations

import re

from grader.container.shared.checks.dockerfile import Dockerfile, Instruction
from grader.container.shared.checks.words import commands

NVIDIA_CUDA = re.compile(r"(?:docker\.io/)?(?:nvcr\.io/)?nvidia/cuda:(?P<cuda>\d+)\.\d+")
WITH_PYTORCH = re.compile(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-|(?:docker\.io/)?pytorch/pytorch:.*cuda")
_TORCH_PIN = re.compile(r"(?<![\w-])torch==(?P<version>\d+(?:\.\d+)+)(?![\d.]*\*)")
_REQUIREMENTS = re.compile(r"(?:-r|--requirement)[ =](?P<file>\S+)")


def calls(words: list[str], programs: set[str], verb: str) -> bool:
    """Whether one of these programs is called, wherever it lies, with this word after it."""
    return verb in words and any(word.rpartition("/")[2] in programs for word in words[: words.index(verb)])


def installs_packages(run: Instruction) -> bool:
    return any(
        calls(words, {"pip", "pip3"}, "install") or calls(words, {"uv"}, "sync") for words in commands(run.arguments)
    )


def installs(dockerfile: Dockerfile) -> list[Instruction]:
    """The RUNs of any stage that install Python packages."""
    return [run for run in dockerfile.anywhere("RUN") if installs_packages(run)]


def pinned_torch(dockerfile: Dockerfile, requirements: dict[str, str]) -> set[str]:
    """The versions that torch is pinned to, without what is behind a `+`; empty if the base image brings torch."""
    texts = install_texts(dockerfile, requirements)
    return {match["version"] for text in texts for match in _TORCH_PIN.finditer(text)}


def install_texts(dockerfile: Dockerfile, requirements: dict[str, str]) -> list[str]:
    """The RUNs that install packages, and the files of requirements that they name."""
    runs = installs(dockerfile)
    files = [match["file"].split("/")[-1] for run in runs for match in _REQUIREMENTS.finditer(run.arguments)]
    return [run.arguments for run in runs] + [_without_comments(requirements.get(name, "")) for name in files]


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def final_user(dockerfile: Dockerfile) -> str:
    """As whom the container runs: NAME or NAME:GROUP."""
    users = [user.arguments.strip("\"'") for user in dockerfile.in_image("USER")]
    return users[-1] if users else "root"
