"""Which commit of a repository is the submission, and when it was handed in.

A commit's own time is whatever its author's clock said. If a table of pushes (`times.py`) says when commits reached the
server, that decides instead. Not for fetching and reading a repository (`repositories.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gradebook.intake import not_counted
from gradebook.intake.accepted_files import Refused, Undecided
from gradebook.intake.repositories import Commit, Repository
from gradebook.settings import GitSettings
from gradebox.sandbox import copying

_BRANCHES = 3
"""So many others are named."""
_COMPARED_BYTES = 2**20
_NAMED = 3
"""So many submodules are named."""
_REFS = "refs/heads/"
_BOT = "[bot]"
"""So end the names of GitHub's programs, which set repositories up: `github-classroom[bot]`."""
_USUAL = ("main", "master")


_LAST_SECOND = 253402300799
"""Of the year 9999; who sets a clock may set it later."""


@dataclass(frozen=True)
class Push:
    """The server's word about one push."""

    commit: str
    """The newest commit that it brought, in full."""
    at: datetime
    branch: str = ""
    """Empty where the table does not say it: any."""


@dataclass(frozen=True)
class Chosen:
    """The submission."""

    commit: Commit
    pushed_at: datetime | None = None
    """When it reached the server; None where no push of the table brought it."""
    later: int = 0
    """Commits of its branch that came after it and do not count."""
    elsewhere: tuple[str, ...] = ()
    """Other branches with commits that its branch does not have, and so do not count, the newest first."""
    branch: str = ""
    is_guessed: bool = False
    """Whether the repository names no branch as its own, as where somebody has checked out a commit in it."""
    is_cut_off: bool = False
    """Whether a commit in time may be missing, because the clone has no earlier ones."""
    is_begun_late: bool = False
    """Whether only what the platform committed by itself was in time, such as the hand-out."""
    replaced: Push | None = None
    """The last push in time, if what it brought is no longer there, because a later push replaced it."""
    impossible: datetime | None = None
    """The time of a later commit that is still to come; None where no push says when it came, or there is none."""


def choose(
    repository: Repository,
    revision: str | None,
    deadline: datetime | None,
    settings: GitSettings,
    pushes: Sequence[Push] = (),
) -> Chosen:
    """The commit that is the submission: the `revision` one, else by `settings`.

    Args:
        repository: our copy of the student's.
        revision: a commit, tag or branch.
        deadline: up to which a commit is in time.
        settings: of the class.
        pushes: of this repository, in any order; without any, commits' own times count.

    Raises:
        Refused: there is no such commit or branch; `Undecided` if an instructor named it, and there are others.
    """
    if revision is not None:
        commit = _named(repository, revision, _no_revision(repository, revision))
        return Chosen(commit, _pushed_at(repository, commit, pushes))
    branch = settings.branch or repository.head
    is_guessed = branch is None
    if branch is None:
        branch = _only_branch(repository)
    name = ""
    tip = _named(repository, f"{_REFS}{branch}", _no_branch(repository, branch))
    here = [push for push in pushes if push.branch.removeprefix(_REFS) in ("", branch)]
    elsewhere = _elsewhere(repository, tip)
    chosen = Chosen(tip, _pushed_at(repository, tip, here), elsewhere=elsewhere, branch=branch, is_guessed=is_guessed)
    if deadline is None or not settings.only_in_time:
        return chosen
    replaced = None
    if here:
        in_time = sorted((push for push in here if push.at <= deadline), key=lambda push: push.at, reverse=True)
        name = next((push.commit for push in in_time if repository.contains(push.commit, tip.id)), "")
        if in_time and name != in_time[0].commit:
            replaced = in_time[0]
    else:
        name = repository.run("rev-list", "-1", f"--min-age={int(deadline.timestamp())}", tip.id)
    if not name and repository.is_shallow:  # what was in time may be among the commits that are not here
        return replace(chosen, is_cut_off=True)
    if name and _is_the_platforms(repository, name, tip.id):
        return replace(chosen, replaced=replaced, is_begun_late=True)
    if not name:
        return replace(chosen, replaced=replaced)
    times = [
        int(line.split()[0]) for line in repository.run("rev-list", "--timestamp", tip.id, f"^{name}").splitlines()
    ]
    latest = datetime.fromtimestamp(min(max(times, default=0), _LAST_SECOND), UTC)
    impossible = latest if not here and latest > datetime.now(UTC) + timedelta(days=1) else None
    commit = repository.commit(name, "")
    pushed_at = _pushed_at(repository, commit, here)
    return replace(
        chosen, commit=commit, pushed_at=pushed_at, later=len(times), replaced=replaced, impossible=impossible
    )


def _is_the_platforms(repository: Repository, name: str, tip: str) -> bool:
    """Whether programs made this commit and all before it, and a person made one of those up to the tip."""

    def people(commits: str) -> bool:
        return any(not author.endswith(_BOT) for author in repository.run("log", "--format=%an", commits).splitlines())

    return not people(name) and people(f"{name}..{tip}")


def _named(repository: Repository, name: str, otherwise: str) -> Commit:
    """The commit of this name; the repository's work is elsewhere if it has any."""
    try:
        return repository.commit(name, otherwise)
    except Refused as refusal:
        if repository.run("for-each-ref", "--count=1", "--format=%(refname)", "refs/heads", "refs/tags").strip():
            raise Undecided(str(refusal)) from None
        raise


def _no_branch(repository: Repository, branch: str) -> str:
    """Why there is nothing on the branch that counts, with the branches that there are."""
    branches = [name for name in repository.run("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
                if name != branch]  # fmt: skip
    if not branches:
        return f"has no branch {branch}, or nothing is committed on it; push it"
    names = ", ".join(map(repr, branches[:_BRANCHES]))
    more = f" and {len(branches) - _BRANCHES} more" if len(branches) > _BRANCHES else ""
    return f"has no branch {branch!r}, which counts, but {names}{more}: push the work to {branch!r}"


def _no_revision(repository: Repository, revision: str) -> str:
    """Why there is no such commit, with the tags that there are: people spell them in another way, or forget them."""
    tags = repository.run("for-each-ref", "--format=%(refname:short)", "refs/tags").split()
    names = ", ".join(map(repr, tags[:_BRANCHES])) + (f" and {len(tags) - _BRANCHES} more" if tags[_BRANCHES:] else "")
    there = f", but {'a tag' if len(tags) == 1 else 'tags'} {names}" if tags else " (and no tag at all)"
    return f"has no commit, tag or branch {revision}{there}: push it, or name a commit in a list of repositories"


def _only_branch(repository: Repository) -> str:
    """The branch to grade in a repository that names none as its own.

    Raises:
        Refused: there is none, or it cannot be known which.
    """
    branches = repository.run("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    usual = [name for name in _USUAL if name in branches]
    if not branches:
        raise Refused("has no commits on a branch of its own; commit the labs and push them")
    if len(branches) > 1 and len(usual) != 1:
        names = ", ".join(map(repr, branches[:_BRANCHES]))
        raise Undecided(
            f"has several branches ({names}) and names none as its own (its HEAD is a commit): check out the one to be "
            "graded, or name it in class.toml under [git]"
        )
    return usual[0] if len(branches) > 1 else branches[0]


def _pushed_at(repository: Repository, commit: Commit, pushes: Sequence[Push]) -> datetime | None:
    """When the first push brought this commit, by itself or below a newer one."""
    for push in sorted(pushes, key=lambda push: push.at):
        if repository.contains(commit.id, push.commit):
            return push.at
    return None


def _elsewhere(repository: Repository, tip: Commit) -> tuple[str, ...]:
    newest = ("--sort=-committerdate", "--format=%(refname:short)", f"--no-merged={tip.id}", "refs/heads")
    return tuple(repository.run("for-each-ref", f"--count={_BRANCHES}", *newest).split())


def remarks(chosen: Chosen | None, submodules: Sequence[str]) -> list[str]:
    """What a student should know of a repository whose work is not all where it counts."""
    if chosen is None:
        return []
    said = []
    if chosen.is_guessed:
        said.append(f"the repository names no branch as its own (its HEAD is a commit), so {chosen.branch!r} counts")
    if chosen.is_cut_off:
        said.append(
            "no commit in time is here, but the clone is shallow (git clone --depth) and has no earlier ones, so the "
            "last one counts: fetch all of them (git fetch --unshallow)"
        )
    if chosen.is_begun_late:
        said.append("only commits of the platform itself were in time, so the last one counts, which came later")
    if chosen.later:
        several = chosen.later > 1
        said.append(
            f"commit {chosen.commit.id[:10]} was the last in time; {chosen.later} later "
            f"{'ones' if several else 'one'} came after the deadline and {'were' if several else 'was'} not graded"
        )
    if chosen.impossible is not None:
        said.append(
            f"a commit has the time {chosen.impossible:%Y-%m-%d %H:%M %Z}, which is in the future, so the clock of the "
            "computer was wrong: its work may have been in time"
        )
    if chosen.replaced is not None:
        said.append(
            f"commit {chosen.replaced.commit[:10]}, which was pushed in time, at "
            f"{chosen.replaced.at:%Y-%m-%d %H:%M %Z}, is not in the repository any more: a later push replaced it"
        )
    said += of_submodules(submodules)
    if chosen.elsewhere:
        names = ", ".join(map(repr, chosen.elsewhere))
        which = f"branches {names} have" if len(chosen.elsewhere) > 1 else f"branch {names} has"
        only = f"and only {chosen.branch!r} counts: merge them into it"
        said.append(f"the {which} commits that {chosen.branch!r} does not have, {only}")
    return said


def uncommitted(folder: Path, checkout: Path) -> list[str]:
    """What to say of code and reports in a working tree that its commit does not have, or has otherwise.

    Args:
        folder: the repository with its working tree, as it was handed in.
        checkout: the files of the commit that counts.
    """
    names = []
    for place, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not _is_left_out(Path(place, name))]
        names += [
            repr(path.relative_to(folder).as_posix())
            for path in (Path(place, name) for name in files if name.endswith((".py", ".md")))
            if _differs(path, checkout / path.relative_to(folder))
        ]
    if not names:
        return []
    verb = "is not committed as it is" if len(names) == 1 else "are not committed as they are"
    return [f"{not_counted.some(sorted(names))} {verb} in the folder, and only the commit counts"]


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in copying.LEFT_BEHIND or (folder / "pyvenv.cfg").exists()


def _differs(file: Path, committed: Path) -> bool:
    """Whether a file has not what is committed, whatever line ends the system writes."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _COMPARED_BYTES:
            return False
        here = file.read_bytes()
    except OSError:
        return False  # the commit counts, which is readable
    there = committed.read_bytes() if committed.is_file() else None
    return there is None or here.replace(b"\r\n", b"\n") != there.replace(b"\r\n", b"\n")


def of_submodules(names: Sequence[str]) -> list[str]:
    """What a student should know of folders whose files are in another repository, so that they look empty here."""
    return [
        f"{name!r} is a submodule, which is another repository and not fetched: commit its files themselves"
        for name in names[:_NAMED]
    ]


@contextlib.contextmanager
def naming(submodules: Sequence[str]) -> Iterator[None]:
    """Let a refusal say as well which folders look empty because their files are in another repository."""
    try:
        yield
    except Refused as refusal:
        raise type(refusal)("; ".join([str(refusal), *of_submodules(submodules)])) from None
