"""A student's git repository: which commit counts, and its files. Nothing of the repository is ever executed or obeyed.

The repository is fetched into a bare one of our own, because git obeys the configuration of the one it runs in; then
only objects are read: no working tree, no hooks, filters or submodules.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from grader.classroom import archives
from grader.classroom.names import Names, Refused
from grader.classroom.settings import GitSettings

_FETCH_SECONDS = 600.0
_READ_SECONDS = 120.0
_PACK_BYTES = 2 * 2**30
_LISTING_BYTES = 8 * 2**20
_MAX_GIT_FILES = 200_000
_INSTRUCTORS = ("GIT_SSH_COMMAND", "GIT_SSH", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL")
"""Variables that may be needed to reach a server; used for addresses only, never for a folder that was handed in."""


@dataclass(frozen=True)
class Commit:
    id: str
    time: datetime
    """The committer's clock said so: a student can write any time."""
    later: int = 0
    """Commits of its branch that came after it and do not count."""


def is_repository(folder: Path) -> bool:
    """Whether the folder is a repository, bare or with a working tree."""
    return (folder / ".git").exists() or (
        (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()
    )


class Repository:
    """Our own copy of a student's repository."""

    def __init__(self, store: Path, environment: Mapping[str, str], head: str | None) -> None:
        self._store = store
        self._environment = environment
        self._head = head

    @classmethod
    def of_folder(cls, folder: Path, room: Path) -> Repository:
        """Fetch a repository that was handed in.

        Raises:
            Refused: it is none that stands by itself, or git cannot read it.
        """
        _refuse_borrowed(folder)
        return cls._fetch(str(folder.resolve()), room, _environment(room, "file", ()), fresh=True)

    @classmethod
    def of_address(cls, address: str, room: Path, protocols: tuple[str, ...]) -> Repository:
        """Fetch from an address, with the instructor's own git configuration (credentials).

        Raises:
            Refused: git cannot fetch it, or may not by `protocols`.
        """
        return cls._fetch(address, room, _environment(None, ":".join(protocols), _INSTRUCTORS), fresh=False)

    @classmethod
    def _fetch(cls, address: str, room: Path, environment: Mapping[str, str], *, fresh: bool) -> Repository:
        store = room / f"{hashlib.sha256(address.encode()).hexdigest()[:20]}.git"
        if fresh:
            shutil.rmtree(store, ignore_errors=True)
        new = not store.exists()
        try:
            return cls._fetch_into(store, address, environment)
        except Refused:
            shutil.rmtree(store, ignore_errors=True)
            if new:
                raise
            return cls._fetch_into(store, address, environment)  # an interrupted run may have left it broken

    @classmethod
    def _fetch_into(cls, store: Path, address: str, environment: Mapping[str, str]) -> Repository:
        if not store.exists():
            _git(["init", "--quiet", "--bare", "--template=", str(store)], environment)
        repository = cls(store, environment, None)
        everything = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        repository._run(
            *("fetch", "--quiet", "--prune", "--no-recurse-submodules", "--no-write-fetch-head", "--", address),
            *everything,
            seconds=_FETCH_SECONDS,
        )
        listed = repository._run("ls-remote", "--symref", "--", address, "HEAD", seconds=_FETCH_SECONDS).decode()
        found = re.match(r"ref: refs/heads/(\S+)\tHEAD", listed)
        return cls(store, environment, found[1] if found else None)

    def choose(self, wanted: str | None, deadline: datetime | None, settings: GitSettings) -> Commit:
        """The commit that is the submission: the `wanted` one, else by `settings`.

        Args:
            wanted: a commit, tag or branch.
            deadline: up to which a commit is in time.

        Raises:
            Refused: there is no such commit or branch.
        """
        if wanted is not None:
            return self._commit(wanted, f"has no commit, tag or branch {wanted}")
        branch = settings.branch or self._head
        if branch is None:
            raise Refused("has no commits on a branch of its own; commit the labs and push them")
        tip = self._commit(f"refs/heads/{branch}", f"has no branch {branch}, or nothing is committed on it; push it")
        if deadline is None or not settings.only_in_time:
            return tip
        in_time = self._run("rev-list", "-1", f"--min-age={int(deadline.timestamp())}", tip.id).decode().strip()
        if not in_time:
            return tip
        later = int(self._run("rev-list", "--count", tip.id, f"^{in_time}"))
        return replace(self._commit(in_time, ""), later=later)

    def extract(self, commit: Commit, target: Path, *, files: int, limit_bytes: int) -> None:
        """Write the commit's files into the empty folder `target`.

        Raises:
            Refused: for the same reasons as an archive.
        """
        names, budget = Names(files), archives.Budget(limit_bytes)
        listing = self._listing(commit)
        wanted: list[tuple[str, tuple[str, ...]]] = []
        declared = 0
        for line in filter(None, listing.split(b"\0")):
            head, _, raw = line.partition(b"\t")
            mode, _, object_id, size = head.decode().split()
            name = raw.decode("utf-8", "surrogateescape")
            if mode == "160000":
                continue  # a submodule: another repository
            parts = names.file(name)
            if not parts:
                continue
            if mode == "120000":
                raise Refused(f"{name!r} is a link; commit the file itself")
            declared += int(size)
            if declared > limit_bytes:
                budget.take(declared)
            wanted.append((object_id, parts))
        for object_id, parts in wanted:
            archives.write(target, parts, io.BytesIO(self._run("cat-file", "blob", object_id)), budget)

    def _listing(self, commit: Commit) -> bytes:
        """`ls-tree` of everything; its output is capped, because few objects can make a tree with billions of files."""
        process = self._start("ls-tree", "-r", "-z", "-l", "--full-tree", commit.id)
        assert process.stdout is not None
        with process, process.stdout:
            listing = process.stdout.read(_LISTING_BYTES + 1)
            if len(listing) > _LISTING_BYTES:
                process.kill()
                raise Refused("holds far too many files; hand in the labs only")
        if process.returncode:
            raise Refused(f"git cannot read the tree of {commit.id[:12]}; push it again")
        return listing

    def _commit(self, name: str, otherwise: str) -> Commit:
        try:
            wanted = f"{name}^{{commit}}"
            found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", wanted).decode().strip()
            seconds = self._run("log", "-1", "--no-show-signature", "--format=%ct", found).decode().strip()
            return Commit(found, datetime.fromtimestamp(int(seconds), UTC))
        except (Refused, ValueError, OverflowError):
            raise Refused(otherwise or f"has a commit {name[:12]} that git cannot read; push it again") from None

    def _run(self, *arguments: str, seconds: float = _READ_SECONDS) -> bytes:
        return _git(["-C", str(self._store), *arguments], self._environment, seconds)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["git", "-C", str(self._store), *arguments],
            env=dict(self._environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _refuse_borrowed(folder: Path) -> None:
    """Refuse a repository whose objects or references lie elsewhere: they might be somebody else's."""
    own = folder / ".git" if (folder / ".git").exists() else folder
    if own.is_symlink() or not own.is_dir():
        raise Refused(".git leads to another folder; hand in a clone that stands by itself")
    if (own / "commondir").exists() or (own / "objects" / "info" / "alternates").exists():
        raise Refused("uses the objects of another repository; hand in a clone made with --no-local")
    count = 0
    for parent, folders, names in os.walk(own):
        count += len(names)
        if count > _MAX_GIT_FILES:
            raise Refused(f"has more than {_MAX_GIT_FILES} files inside .git; run git gc before handing it in")
        for name in (*folders, *names):
            if os.path.islink(os.path.join(parent, name)):
                raise Refused(f"has a link inside .git ({name!r}); hand in a plain clone")


def _environment(room: Path | None, protocols: str, kept: tuple[str, ...]) -> dict[str, str]:
    """What git sees: none of our own variables, and with a `room` no configuration but ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in kept}
    ours = {
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }
    # Whose files they are says nothing here; the owner is not trusted anyway.
    lines = [("safe.directory", "*"), ("core.hooksPath", os.devnull), ("gc.auto", "0"), ("maintenance.auto", "false")]
    if room is not None:
        room.mkdir(parents=True, exist_ok=True)
        configuration = room / "gitconfig"
        configuration.write_text(
            "".join(f"[{name.partition('.')[0]}]\n\t{name.partition('.')[2]} = {value}\n" for name, value in lines)
        )
        ours |= {"GIT_CONFIG_GLOBAL": str(configuration), "GIT_CONFIG_NOSYSTEM": "1"}
    return {**inherited, **ours}


def _git(arguments: list[str], environment: Mapping[str, str], seconds: float = _READ_SECONDS) -> bytes:
    """Run git and return what it printed.

    Raises:
        Refused: it failed, or took too long.
    """
    try:
        done = subprocess.run(
            ["git", *arguments], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=seconds, preexec_fn=_cap_files,
        )  # fmt: skip
    except FileNotFoundError:
        raise Refused("git is not installed on the grading machine") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"git did not finish within {seconds:g} s; check the address and the repository's size") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(f"git cannot read it: {lines[-1][:300] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _cap_files() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (_PACK_BYTES, _PACK_BYTES))
