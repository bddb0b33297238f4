"""A student's git repository: which commit counts, and its files. Nothing of the repository is ever executed or obeyed.

The repository is fetched into a bare one of our own, because git obeys the configuration of the one it runs in; then
only objects are read: no working tree, no hooks, filters or submodules. Of one on this machine git sees a
plain copy only (`plain_copy.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gradebook.intake import plain_copy
from gradebook.intake.accepted_files import Budget, Names, Refused, write
from gradebox.common.texts import printable

_FETCH_SECONDS = 600.0
_READ_SECONDS = 120.0
_STALL_SECONDS = 60
_PACK_BYTES = 2 * 2**30
_MEMORY_BYTES = 2 * 2**30
"""What one process of git may fill; what it only reserves or maps from files does not count."""
# The shell sets git's limits. In Python, `preexec_fn` would do it, but forks all of this process: git then starts up to
# ten times later, and it is not safe next to threads. A limit that a system does not know is left out.
_LIMITED = 'command ulimit -f "$0" 2>/dev/null; command ulimit -d "$1" 2>/dev/null; shift; exec "$@"'
_OUTPUT_BYTES = 8 * 2**20
_SAID_BYTES = 2**16
_INSTRUCTORS = ("GIT_SSH_COMMAND", "GIT_SSH", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL")
"""Variables that may be needed to reach a server; used for addresses only, never for a folder that was handed in."""
_CONFIGURATION = (
    # The owner of the files says nothing here, and is not trusted anyway.
    ("safe.directory", "*"),
    ("core.hooksPath", os.devnull),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    # One file, whose size has a limit, instead of many; and no more memory than they need.
    ("fetch.unpackLimit", "1"),
    ("pack.threads", "1"),
    ("core.packedGitWindowSize", "64m"),
    ("core.packedGitLimit", "512m"),
)
_OURS = re.compile(
    r"No space left|Disk quota|[Oo]ut of memory|[Cc]annot allocate|Input/output error|Too many open files|"
    r"[Rr]ead-only file system|unable to create t(hread|emporary)|cannot (fork|create async)"
)
"""In what git says when this machine failed it and not the repository."""
_NOWHERE = re.compile(
    r"(repository|project|remote: Not) .*not found|Not Found|could not be found|does not appear to be a git repository|"
    r"does not exist|returned error: (404|410)|no path specified|"
    r"transport '.*' not allowed|protocol .* not supported|URL using bad/illegal format|"
    r"unable to find remote helper|strange (host|path)name|URL rejected",
    re.IGNORECASE,
)
"""In what git says when it reached whom it was sent to, and there is no such repository; or the address is none."""
_NO_NEWS = ("Please make sure you have", "and the repository exists", "Warning: Permanently added")
_SECRET = re.compile(r"(?<=://)[^/@\s]*@|(?<=\?)[^\s'\"?=]+=[^\s'\"]*")
"""Of an address, before the server and behind a `?`, where people and programs write tokens."""
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")


class CouldNotFetch(Exception):
    """It could not be fetched, which says nothing about the work; the message is one line for the instructor."""

    def __init__(self, message: str, *, nowhere: bool = False) -> None:
        """`nowhere`: the address seems to be wrong, or not for us; otherwise it is the way there, or this machine."""
        super().__init__(message)
        self.nowhere = nowhere


class GitError(Exception):
    """Git ended with an error about what it read; the message is what it said, in one line."""

    def __init__(self, said: str) -> None:
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_NO_NEWS)]
        super().__init__(shown("; ".join(lines)))
        self.said = said


class TooMuch(GitError):
    """Git would print more than is read here."""


def not_taken(error: Exception) -> Refused | CouldNotFetch:
    """What a file that cannot be copied means: a right that is missing on this machine is no fault of the student's."""
    if not isinstance(error.__context__, PermissionError):
        return Refused(str(error))
    return CouldNotFetch(f"{error}: let yourself read it (chmod -R u+rX on the submissions), and run the command again")


@dataclass(frozen=True)
class Commit:
    id: str
    time: datetime
    """The committer's clock said so: a student can write any time."""


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
        self.head = head
        """The branch that the repository itself names as its own."""

    @classmethod
    def of_folder(cls, folder: Path, room: Path) -> Repository:
        """Fetch a repository that was handed in.

        Raises:
            Refused: it is none that stands by itself, or git cannot read it.
            CouldNotFetch: this machine failed, or git took too long.
        """
        folder = folder.resolve()
        environment = _environment(room, "file", ())
        store, copy = _fresh(room, str(folder), environment), _fresh(room, f"copy of {folder}", environment)
        try:
            copied = plain_copy.copy(folder, copy)
            cls._fetch(str(copy), store, environment, "--update-shallow")
        except plain_copy.Unreadable as error:
            raise CouldNotFetch(str(error)) from None
        except GitError as error:
            if copied.is_partial:
                raise Refused("is a partial clone, which lacks files; hand in a clone without --filter") from None
            raise Refused(f"git cannot read it: {error}") from None
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return cls(store, {**environment, "GIT_DIR": str(store)}, copied.branch)

    @classmethod
    def of_address(cls, address: str, room: Path, protocols: tuple[str, ...]) -> Repository:
        """Fetch from an address, with the instructor's own git configuration (credentials).

        Raises:
            Refused: it is a folder here, and none that stands by itself.
            CouldNotFetch: there is nothing, or we may not have it by `protocols`, or the way there failed.
        """
        if (folder := _local(address)) is not None:
            if not (folder.is_absolute() and folder.is_dir()):
                what = "there is no such folder, and an address elsewhere begins like https:// or git@SERVER:"
                raise CouldNotFetch(f"no repository at {shown(address)}: {what}", nowhere=True)
            if "file" not in protocols:
                what = "it is on this machine: add 'file' to protocols of [git] in class.toml"
                raise CouldNotFetch(f"no repository at {shown(address)} that we may read: {what}", nowhere=True)
            if not is_repository(folder):
                raise CouldNotFetch(f"no repository at {shown(address)}: the folder is none", nowhere=True)
            return cls.of_folder(folder, room)
        environment = _environment(None, ":".join(name for name in protocols if name != "file"), _INSTRUCTORS)
        store = _fresh(room, address, environment)
        try:
            cls._fetch(address, store, environment)
            listed = _git(["ls-remote", "--symref", "--", address, "HEAD"], environment, _FETCH_SECONDS)
        except GitError as error:
            nowhere = _NOWHERE.search(error.said) is not None
            problem = f"no repository at {shown(address)} that we may read" if nowhere else "could not be fetched"
            raise CouldNotFetch(f"{problem}: {error}", nowhere=nowhere) from None
        environment = {**environment, "GIT_DIR": str(store)}
        if not _git(["for-each-ref", "--count=1"], environment):
            # Git takes the page of a network that wants a login for a repository without branches.
            what = "nothing was ever pushed there, or something else answered in its place"
            raise CouldNotFetch(f"no branch at {shown(address)}: {what}", nowhere=True)
        head = re.match(rb"ref: refs/heads/(\S+)\tHEAD", listed)
        return cls(store, environment, os.fsdecode(head[1]) if head else None)

    @staticmethod
    def _fetch(address: str, store: Path, environment: Mapping[str, str], *more: str) -> None:
        options = ("--quiet", "--prune", "--no-recurse-submodules", "--no-write-fetch-head", *more)
        everything = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        fetch = ["fetch", *options, "--", address, *everything]
        _git(fetch, {**environment, "GIT_DIR": str(store)}, _FETCH_SECONDS)

    @property
    def is_shallow(self) -> bool:
        """Whether it lacks the beginning of its history."""
        return (self._store / "shallow").is_file()

    def contains(self, commit: str, newer: str) -> bool:
        """Whether both are commits here, and `newer` is `commit` or came after it."""
        ids = (commit, newer)
        if not all(_COMMIT_ID.fullmatch(name) for name in ids):
            return False
        try:
            _git(["merge-base", "--is-ancestor", *ids], self._environment)
        except GitError:
            return False  # it is none, or one of them is not here
        return True

    def run(self, *arguments: str) -> str:
        """What git prints about our copy, without space around. Raises `Refused` if it cannot read it."""
        return self._run(*arguments).decode(errors="replace").strip()

    def extract(self, commit: Commit, target: Path, *, files: int, limit_bytes: int) -> list[str]:
        """Write the commit's files into the empty folder `target`; say which submodules are left out.

        Raises:
            Refused: for the same reasons as an archive.
        """
        names, budget = Names(files), Budget(limit_bytes)
        listing = self._listing(commit)
        blobs: list[tuple[str, tuple[str, ...]]] = []
        submodules: list[str] = []
        declared = 0
        for line in filter(None, listing.split(b"\0")):
            head, _, raw = line.partition(b"\t")
            mode, _, object_id, size = head.decode().split()
            name = raw.decode("utf-8", "surrogateescape")
            if mode == "160000":
                submodules.append(name)  # another repository
                continue
            parts = names.file(name)
            if not parts:
                continue
            if mode == "120000":
                raise Refused(f"{name!r} is a link; commit the file itself")
            declared += int(size)
            if declared > limit_bytes:
                budget.take(declared)
            blobs.append((object_id, parts))
        for object_id, parts in blobs:
            content = self._run("cat-file", "blob", object_id, most=limit_bytes)
            write(target, parts, io.BytesIO(content), budget)
        return submodules

    def _listing(self, commit: Commit) -> bytes:
        """`ls-tree` of everything; its output is capped, because few objects can make a tree with billions of files."""
        try:
            return _git(["ls-tree", "-r", "-z", "-l", "--full-tree", commit.id], self._environment)
        except TooMuch:
            raise Refused("holds far too many files; hand in the labs only") from None
        except GitError:
            raise Refused(f"git cannot read the tree of {commit.id[:12]}; push it again") from None

    def commit(self, name: str, otherwise: str) -> Commit:
        """The commit of this name. Raises `Refused` with the text `otherwise` if there is none."""
        try:
            revision = f"{name}^{{commit}}"
            commit_id = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", revision).decode().strip()
            seconds = self._run("log", "-1", "--no-show-signature", "--format=%ct", commit_id).decode().strip()
            return Commit(commit_id, datetime.fromtimestamp(int(seconds), UTC))
        except (Refused, ValueError, OverflowError):
            raise Refused(otherwise or f"has a commit {name[:12]} that git cannot read; push it again") from None

    def _run(self, *arguments: str, most: int = _OUTPUT_BYTES) -> bytes:
        try:
            return _git(list(arguments), self._environment, most=most)
        except GitError as error:
            raise Refused(f"git cannot read it: {error}") from None


def _local(address: str) -> Path | None:
    """The folder on this machine that git would take the address for; None for one elsewhere, or of a helper of git."""
    if address.startswith("file://"):
        return Path(urllib.parse.unquote(address.removeprefix("file://")))
    if "://" in address or re.match(r"\w+::", address):
        return None
    before, colon, _ = address.partition(":")
    return Path(address) if not colon or "/" in before else None


def _fresh(room: Path, name: str, environment: Mapping[str, str]) -> Path:
    """A new, empty repository in the room."""
    store = room.resolve() / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:20]}.git"
    shutil.rmtree(store, ignore_errors=True)
    try:
        _git(["init", "--quiet", "--bare", "--template=", "--object-format=sha1", str(store)], environment)
    except GitError as error:
        raise CouldNotFetch(f"git cannot make a repository of ours on this machine: {error}") from None
    return store


def _environment(room: Path | None, protocols: str, kept: tuple[str, ...]) -> dict[str, str]:
    """What git sees: none of our own variables, and with a `room` no configuration but ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in kept}
    ours = {
        "GIT_ALLOW_PROTOCOL": protocols or "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": str(_STALL_SECONDS),
        "LC_ALL": "C",
    }
    if room is None:
        for number, (name, value) in enumerate(_CONFIGURATION):
            ours |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        ours["GIT_CONFIG_COUNT"] = str(len(_CONFIGURATION))
    else:
        # In a file, because git passes no variables of configuration on to what reads the other repository.
        room.mkdir(parents=True, exist_ok=True)
        configuration = room / "gitconfig"
        lines = [(*name.split("."), value) for name, value in _CONFIGURATION]
        configuration.write_text("".join(f"[{section}]\n\t{key} = {value}\n" for section, key, value in lines))
        ours |= {"GIT_CONFIG_GLOBAL": str(configuration), "GIT_CONFIG_NOSYSTEM": "1"}
    return {**inherited, **ours}


def _git(
    arguments: list[str], environment: Mapping[str, str], seconds: float = _READ_SECONDS, most: int = _OUTPUT_BYTES
) -> bytes:
    """Run git and return what it printed.

    Raises:
        GitError: it could not do it. TooMuch: it printed more than `most` bytes.
        CouldNotFetch: it is not there, or took too long, or had too little of this machine.
    """
    git = shutil.which("git", path=environment.get("PATH"))
    if git is None:
        raise CouldNotFetch("git is not installed on the grading machine")
    process = subprocess.Popen(
        # In a session of its own it has no terminal, so it asks nobody for a password in the middle of a class.
        ["/bin/sh", "-c", _LIMITED, str(_PACK_BYTES // 512), str(_MEMORY_BYTES // 1024), git, *arguments],
        env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, said = _outputs(process, seconds, most)
        code = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever it started and left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    if code < 0 or (code and _OURS.search(said)):
        raise CouldNotFetch(f"git failed on this machine: {GitError(said or signal.Signals(-code).name)}")
    if code:
        raise GitError(said or f"exit code {code}")
    return printed


def _outputs(process: subprocess.Popen[bytes], seconds: float, most: int) -> tuple[bytes, str]:
    """Everything that git prints, and the beginning of what it says; the rest of that is read and forgotten."""
    assert process.stdout is not None
    assert process.stderr is not None
    printed, said = bytearray(), bytearray()
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, said)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise CouldNotFetch(f"git did not finish within {seconds:g} s; look at the address and at its size")
            for key, _ in ready:
                chunk = os.read(key.fd, 2**16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.data is printed or len(said) < _SAID_BYTES:
                    key.data.extend(chunk)
            if len(printed) > most:
                raise TooMuch("it holds too much")
    return bytes(printed), said.decode(errors="replace")


def shown(text: str) -> str:
    """Text of a stranger in one line, without passwords."""
    return _SECRET.sub("", " ".join(printable(text).split()))[:300]
