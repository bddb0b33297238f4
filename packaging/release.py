"""Makes a release of this project, and pushes nothing: `make release VERSION=1.0.0`.

It gives the first section of both changelogs its number and date, sets the version (also of the parts that the
course's wheel requires), builds wheels and site, commits and tags. Everything is built before the commit, so a release
that fails leaves the checkout as it was.
Students' repositories are released by `gpulabs release` instead.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
_UNRELEASED = "## Not released yet"
_CHANGELOGS = ("CHANGELOG.md", "packaging/vgpu/CHANGELOG.md")
_PARTS = ("vgpu", "gradebox")
"""Distributions that the course's own one requires at its version."""
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """Why nothing was released, and what to do."""


def release(version: str, root: Path, build: Callable[[], None], today: datetime.date) -> str:
    """Release a checkout.

    Args:
        version: three numbers, larger than the version so far.
        root: the checkout; its work tree must be clean.
        build: makes wheels and site from the work tree; raises if it cannot.
        today: the date of the section in the changelog.

    Returns:
        What to do next.

    Raises:
        ReleaseError: if it cannot be released; every file is as it was.
    """
    _check(version, root)
    texts = new_texts(version, root, today)
    before = {path: path.read_bytes() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        build()
        if others := _edited(root) - {str(path.relative_to(root)) for path in texts}:
            raise ReleaseError(f"the build changed files; commit them first: {', '.join(sorted(others))}")
        _git(root, "add", *(str(path) for path in texts))
        _git(root, "commit", "--quiet", "-m", f"Release {version}")
    except BaseException:
        for path, content in before.items():
            path.write_bytes(content)
        _git(root, "reset", "--quiet")
        raise
    _git(root, "tag", "--annotate", f"v{version}", "-m", f"Version {version}")
    return (
        f"v{version} is committed and tagged, the wheels are in dist/, the site in build/docs.\n"
        "Publish it: git push --follow-tags"
    )


def _check(version: str, root: Path) -> None:
    """Raise a `ReleaseError` if this version of this checkout cannot be released."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"a version is three numbers such as 1.0.0, not {version!r}")
    if dirty := _git(root, "status", "--porcelain"):
        raise ReleaseError(f"commit or stash your changes first:\n{dirty}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"v{version} exists; choose a larger version")
    now = _version_of(root)
    if _numbers(version) <= _numbers(now) and _git(root, "tag", "--list", f"v{now}"):
        raise ReleaseError(f"{version} is not larger than {now}, which is released")


def new_texts(version: str, root: Path, today: datetime.date) -> Mapping[Path, str]:
    """The files of a release with their new texts."""
    now = _version_of(root)
    project = root / "pyproject.toml"
    texts = {project: project.read_text(encoding="utf-8").replace(f'version = "{now}"', f'version = "{version}"', 1)}
    course = root / "packaging" / "gpu-computing-labs" / "pyproject.toml"
    texts[course] = re.sub(
        rf'"((?:{"|".join(_PARTS)})(?:\[[a-z,]+\])?)=={re.escape(now)}"',
        rf'"\1=={version}"', course.read_text(encoding="utf-8"),
    )  # fmt: skip
    citation = root / "CITATION.cff"
    dated = re.sub(r"(?m)^date-released: .*\n", "", citation.read_text(encoding="utf-8"))
    texts[citation] = re.sub(r"(?m)^version: .*$", f"version: {version}\ndate-released: {today.isoformat()}", dated)
    texts |= {root / name: _section(root / name, version, today) for name in _CHANGELOGS}
    return texts


def _version_of(root: Path) -> str:
    now = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if now is None:
        raise ReleaseError("pyproject.toml has no line version = ...")
    return now[1]


def _section(file: Path, version: str, today: datetime.date) -> str:
    """A changelog whose first section has its number; above it is an empty section for what comes next."""
    text = file.read_text(encoding="utf-8")
    if text.count(_UNRELEASED) != 1:
        raise ReleaseError(f'{file.name} needs one section "{_UNRELEASED}"')
    head, _, rest = text.partition(_UNRELEASED)
    if not rest.partition("\n## ")[0].strip():
        raise ReleaseError(f'{file.name}: write down what changed below "{_UNRELEASED}"')
    return f"{head}{_UNRELEASED}\n\n## {version} ({today.isoformat()}){rest}"


def _edited(root: Path) -> set[str]:
    """Files of the repository that differ from the last commit."""
    return set(_git(root, "diff", "--name-only", "HEAD").splitlines())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _build() -> None:
    for target in ("wheels", "docs"):
        if subprocess.run(["make", target], cwd=ROOT, check=False).returncode:
            raise ReleaseError(f"make {target} failed; nothing is released")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description="Release this project; nothing is pushed.")
    parser.add_argument("version", help="three numbers, for instance 1.0.0")
    try:
        print(release(parser.parse_args().version, ROOT, _build, datetime.date.today()))
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
