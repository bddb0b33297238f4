"""One release of the course into the students' repository: branch `main`, and `solutions` once it may be seen.

Puts together what goes in (`contents.py`), what must not (`leaks.py`), what changed (`changes.py`), and where it is
kept (`repository.py`). Nothing is pushed: that is for whoever runs the course.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gradebox.authoring.release.stubs import ReleaseError
from grader.release import changes, contents
from grader.release.leaks import Leak, Secrets
from grader.release.repository import Repository

STUDENTS, SOLUTIONS = "main", "solutions"
MANIFEST = ".release.json"
"""In the repository: number and date of the release, and the hash of every released file."""
_HOLD = "holdSolutionsUntil"
_ADDRESS = "address"
_IS_ADDRESS = re.compile(r"https://[\w.-]+(?::\d+)?(?:/[\w.~-]+)+")
_MAX_NAMED = 12


@dataclass(frozen=True)
class Outcome:
    """What a release did; `solutions` says in words what became of that branch."""

    release: int
    commit: str
    is_new: bool
    solutions: str
    address: str | None
    """What notebooks clone where the course is not installed."""


@dataclass(frozen=True)
class _Plan:
    """What both branches are to hold."""

    files: dict[str, bytes]
    """What the course brings."""
    kept: dict[str, bytes]
    """What the repository had next to it."""
    previous: dict[str, bytes]
    """What was released last time."""
    number: int
    log: str
    tip: str | None


def release(
    course: Path,
    folder: Path,
    *,
    now: datetime,
    hold_until: datetime | None = None,
    address: str | None = None,
    force: bool = False,
) -> Outcome:
    """Commit the course to the repository in `folder`, which is made where there is none.

    Args:
        course: the checkout that holds `solutions/`.
        folder: the students' repository.
        now: the date of the release, with its time zone.
        hold_until: before this moment there is no branch `solutions`; remembered for later releases.
        address: an https address that students can clone the repository from; remembered for later releases.
        force: replace released files that were edited in the repository's own commits.

    Raises:
        ReleaseError: something of a solution would reach students, work would be lost, or a branch that is held back
            is there already. Nothing was committed then.
    """
    if address is not None and not _IS_ADDRESS.fullmatch(address):
        raise ReleaseError(f"{address!r} is no address to clone from; write https://github.com/ORGANISATION/REPOSITORY")
    secrets = Secrets(course / "solutions")
    repository = Repository(folder)
    for branch in (STUDENTS, SOLUTIONS):
        repository.require_clean(branch)
    held = _held_until(repository, hold_until)
    if held is not None and now < held and repository.tip(SOLUTIONS):
        raise ReleaseError(
            f"the solutions are to be held back until {held:%Y-%m-%d %H:%M}, but {folder} has a branch {SOLUTIONS} "
            f"already; delete it there (git branch -D {SOLUTIONS}) and wherever it was pushed"
        )
    address = address or repository.setting(_ADDRESS)
    plan = _plan(course, repository, address, force=force)
    if plan.tip:
        _refuse(secrets.leaks(repository.history(plan.tip)), f"{folder}, in the history of {STUDENTS}")
    _refuse(secrets.leaks({**plan.kept, **plan.files}.items()), "what students would get")
    if hold_until is not None:
        repository.set(_HOLD, hold_until.isoformat())
    if address is not None:
        repository.set(_ADDRESS, address)
    number, tip = plan.number, plan.tip
    is_new = tip is None or plan.files != plan.previous
    if is_new:
        number += 1
        tree = _tree(plan, number, now)
        tip = repository.commit(STUDENTS, tree, [tip] if tip else [], f"Release {number}\n\nSee {changes.FILE}.\n")
    assert tip is not None
    solutions = _release_solutions(course, repository, tip, number, held if held is not None and now < held else None)
    return Outcome(number, tip, is_new, solutions, address)


def drift(course: Path, folder: Path) -> list[str]:
    """Where the branches differ from what a release would make of the course now; empty when they do not."""
    repository = Repository(folder)
    plan = _plan(course, repository, repository.setting(_ADDRESS), force=True)
    if plan.tip is None:
        return [f"{folder} has no branch {STUDENTS}: release first"]
    files = {**repository.files(plan.tip), **plan.files}
    gone = plan.previous.keys() - plan.files.keys()
    expected = {name: content for name, content in files.items() if name not in gone}
    messages = [f"{STUDENTS}: {name} differs" for name in repository.tree_equals(plan.tip, expected)]
    if solutions := repository.tip(SOLUTIONS):
        filled = {**expected, **contents.filled_in(course)}
        messages += [f"{SOLUTIONS}: {name} differs" for name in repository.tree_equals(solutions, filled)]
    return messages


def _plan(course: Path, repository: Repository, address: str | None, *, force: bool) -> _Plan:
    files = contents.for_students(course, address)
    tip = repository.tip(STUDENTS)
    there = repository.files(tip) if tip else {}
    manifest = _manifest(there.get(MANIFEST))
    hashes: Mapping[str, str] = manifest.get("files", {})
    edited = [name for name, digest in hashes.items() if name in there and _hash(there[name]) != digest]
    edited += [name for name in files if name not in hashes and name in there and there[name] != files[name]]
    if edited and not force:
        more = f" and {len(edited) - _MAX_NAMED} more" if len(edited) > _MAX_NAMED else ""
        raise ReleaseError(
            f"{repository.folder}: these files were edited in the repository itself and would be replaced: "
            f"{', '.join(sorted(edited)[:_MAX_NAMED])}{more}; change them in the course instead, or add --force"
        )
    own = {MANIFEST, changes.FILE}
    return _Plan(
        files=files,
        kept={name: content for name, content in there.items() if name not in hashes and name not in own},
        previous={name: there[name] for name in hashes if name in there},
        number=int(manifest.get("release", 0)),
        log=there.get(changes.FILE, b"").decode("utf-8", "replace"),
        tip=tip,
    )


def _tree(plan: _Plan, number: int, now: datetime) -> dict[str, bytes]:
    title = f"Release {number}, {now:%Y-%m-%d}"
    log = changes.render(plan.log, plan.previous, plan.files, title=title)
    hashes = {name: _hash(content) for name, content in sorted(plan.files.items())}
    manifest = {"schema": 1, "release": number, "date": f"{now:%Y-%m-%d}", "files": hashes}
    own = {changes.FILE: log.encode(), MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()}
    return {**plan.kept, **plan.files, **own}


def _release_solutions(course: Path, repository: Repository, tip: str, number: int, held: datetime | None) -> str:
    if held is not None:
        return f"held back until {held:%Y-%m-%d %H:%M %Z}: the branch does not exist; release again after that"
    filled = {**repository.files(tip), **contents.filled_in(course)}
    before = repository.tip(SOLUTIONS)
    if before and not repository.tree_equals(before, filled):
        return "up to date"
    parents = [before, tip] if before else [tip]
    repository.commit(SOLUTIONS, filled, parents, f"Release {number} with every task solved\n")
    return "committed; push it only when students may see it"


def _held_until(repository: Repository, hold_until: datetime | None) -> datetime | None:
    if hold_until is not None:
        return hold_until
    remembered = repository.setting(_HOLD)
    return datetime.fromisoformat(remembered) if remembered else None


def _manifest(content: bytes | None) -> dict[str, Any]:
    try:
        manifest = json.loads(content or b"{}")
        if isinstance(manifest, dict) and isinstance(manifest.get("files", {}), dict):
            return manifest
    except ValueError:
        pass
    raise ReleaseError(f"{MANIFEST} in the repository is damaged; restore it from an earlier commit")


def _refuse(leaks: Iterable[Leak], where: str) -> None:
    all_leaks = list(leaks)
    if all_leaks:
        lines = "\n".join(f"  {leak}" for leak in all_leaks[:_MAX_NAMED])
        more = f"\n  and {len(all_leaks) - _MAX_NAMED} more" if len(all_leaks) > _MAX_NAMED else ""
        raise ReleaseError(
            f"{len(all_leaks)} lines of solutions would be in {where}:\n{lines}{more}\n"
            "Take them out; a line that everybody would write so belongs in grader/release/allowed_lines.txt."
        )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
