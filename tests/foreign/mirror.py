"""Finds public repositories in a local mirror and unpacks one commit of them. Nothing of theirs is kept here.

A mirror is a folder with a Git repository, bare or not, for each `owner/name`, named `owner+name`, `owner+name/repo` or
`owner/name`. FOREIGN_MIRROR names the folder; where it is not set, there is none. Not here: what is run.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

VARIABLE = "FOREIGN_MIRROR"


class NotMirrored(Exception):
    """The mirror lacks this repository, or this commit of it."""


def mirror() -> Path | None:
    """The folder of the mirror, or None where there is none."""
    value = os.environ.get(VARIABLE, "")
    return Path(value) if value and Path(value).is_dir() else None


def git_folder(root: Path, repository: str) -> Path:
    """The Git directory of `owner/name`. Raises NotMirrored."""
    plus = root / repository.replace("/", "+")
    for base in (plus / "repo", plus, root / repository):
        for folder in (base / ".git", base):
            if (folder / "HEAD").is_file():
                return folder
    raise NotMirrored(f"{repository} is not in {root}")


def unpack(root: Path, repository: str, commit: str, folders: list[str], into: Path) -> None:
    """Put the files of a commit, or only some folders of it, into a folder. Raises NotMirrored."""
    git = git_folder(root, repository)
    command = ["git", f"--git-dir={git}", "archive", "--format=tar", commit, "--", *folders]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise NotMirrored(f"{repository} at {commit[:12]}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
