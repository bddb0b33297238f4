"""What a Dockerfile says about packages, its base image and its user: what several criteria need to know."""

from __future__ import annotations

import re

from grader.container.shared.checks.dockerfile import Dockerfile, Instruction
from grader.container.shared.checks.words import commands, started

NVIDIA_CUDA = re.compile(r"(?:docker\.io/)?(?:nvcr\.io/)?nvidia/cuda:(?P<cuda>\d+)\.\d+")
WITH_PYTORCH = re.compile(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-|(?:docker\.io/)?pytorch/pytorch:.*cuda")
_TORCH_PIN = re.compile(r"(?<![\w-])torch==(?P<version>\d+(?:\.\d+)+)(?![\d.]*\*)")
_REQUIREMENTS = re.compile(r"(?:-r|--requirement)[ =](?P<file>\S+)")
_CARRIES = re.compile(
    r"python[\d.]*|uv|pipx|conda|mamba|micromamba|pixi|poetry|su|gosu|runuser|setpriv|xargs|timeout|nohup|eval|-.*"
)
"""Programs that start another one, which they name; or the options of `sudo` and its kin."""
_IDLE = {"--dry-run", "--simulate", "--just-print", "--no-act", "--recon", "--print-uris", "--download-only", "--help"}
"""Options with which nothing is installed."""
_TARGET = re.compile(r"(?:target|dst|destination)=([^,]+)")
_CACHES = re.compile(r"cache|tmp|/apt|/pkgs")


def calls(words: list[str], programs: set[str], verb: str) -> bool:
    """Whether one of these programs is called, wherever it lies, with this word after it, and not only printed."""
    if verb not in words or not _IDLE.isdisjoint(words):
        return False
    before = [word.rpartition("/")[2] for word in words[: words.index(verb)]]
    carrier = (started(before) or [""])[0]
    return any(word in programs for word in before) and (carrier in programs or _CARRIES.fullmatch(carrier) is not None)


def stays(run: Instruction) -> bool:
    """Whether what a RUN installs is in the image: a mount that is no cache of an installer is gone with the build."""
    mounts = re.findall(r"--mount=(\S+)", run.arguments)
    passing = [mount for mount in mounts if re.search(r"type=(?:tmpfs|cache)\b", mount)]
    return all(_CACHES.search(re.sub(r"type=\w+", "", place)) for mount in passing for place in _TARGET.findall(mount))


def installs_packages(run: Instruction) -> bool:
    return stays(run) and bool(installers(run))


def installers(run: Instruction) -> set[str]:
    """Which programs install Python packages in a RUN: "pip" or "uv", which has a pip of its own."""
    found = set()
    for words in commands(run.arguments):
        if calls(words, {"uv"}, "sync") or calls(words, {"uv"}, "install"):
            found.add("uv")
        elif calls(words, {"pip", "pip3"}, "install"):
            found.add("pip")
    return found


def installs(dockerfile: Dockerfile) -> list[Instruction]:
    """The RUNs that install Python packages, of any stage that the image has something of."""
    return [run for run in dockerfile.used("RUN") if installs_packages(run)]


def pinned_torch(dockerfile: Dockerfile, requirements: dict[str, str]) -> set[str]:
    """The versions that torch is pinned to, without what is behind a `+`; empty if the base image brings torch."""
    texts = install_texts(dockerfile, requirements)
    return {match["version"] for text in texts for match in _TORCH_PIN.finditer(text)}


def install_texts(dockerfile: Dockerfile, requirements: dict[str, str]) -> list[str]:
    """The RUNs that install packages, and the files of requirements that they name."""
    runs = installs(dockerfile)
    texts = [_installing(run) for run in runs]
    files = [match["file"].split("/")[-1] for text in texts for match in _REQUIREMENTS.finditer(text)]
    return texts + [_without_comments(requirements.get(name, "")) for name in files]


def _installing(run: Instruction) -> str:
    """What installers are told in a RUN: a version or an address in another command's words pins nothing."""
    return "; ".join(" ".join(words) for words in commands(run.arguments) if _tells_an_installer(words))


def _tells_an_installer(words: list[str]) -> bool:
    name = (started(words) or [""])[0].rpartition("/")[2]
    return name in ("", "pip", "pip3", "export") or (_CARRIES.fullmatch(name) is not None and not name.startswith("-"))


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def final_user(dockerfile: Dockerfile) -> str:
    """As whom the container runs: NAME or NAME:GROUP."""
    users = [user.arguments.strip("\"'") for user in dockerfile.in_image("USER")]
    return users[-1] if users else "root"
