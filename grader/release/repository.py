"""A git repository that releases are committed to, without touching anything in its working tree that was not clean.

Works on git's objects: a release is built next to the working tree, and the working tree follows only where git itself
finds nothing to lose. Nothing is ever pushed. Not for what a release holds (`contents.py`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from gradebox.authoring.release.stubs import ReleaseError

_AUTHOR = {
    "GIT_AUTHOR_NAME": "gpulabs release",
    "GIT_AUTHOR_EMAIL": "gpulabs@localhost",
    "GIT_COMMITTER_NAME": "gpulabs release",
    "GIT_COMMITTER_EMAIL": "gpulabs@localhost",
}
"""Who commits where git does not know the user."""
_MAX_NAMED = 8


class Repository:
    """The repository in `folder`; made, with an empty branch `main`, where there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / ".git").exists():
            if folder.exists() and any(folder.iterdir()):
                raise ReleaseError(f"{folder} is neither empty nor a git repository; name another folder")
            folder.mkdir(parents=True, exist_ok=True)
            self._git("init", "--quiet", "--initial-branch=main")

    def tip(self, branch: str) -> str | None:
        """The branch's last commit, or None where there is no such branch."""
        answer = self._run("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}")
        return answer.stdout.decode().strip() if answer.returncode == 0 else None

    def resolve(self, name: str) -> str | None:
        """The object that a name stands for; None if there is none."""
        answer = self._run("rev-parse", "--verify", "--quiet", name)
        return answer.stdout.decode().strip() if answer.returncode == 0 else None

    def current_branch(self) -> str | None:
        """The branch that the working tree shows; None if it shows a commit."""
        answer = self._run("symbolic-ref", "--quiet", "--short", "HEAD")
        return answer.stdout.decode().strip() or None

    def message(self, commit: str) -> str:
        """A commit's message."""
        return self._git("log", "-1", "--format=%B", commit).decode("utf-8", "replace")

    def edited(self, folder: str) -> list[str]:
        """Files of a folder that differ from the last commit, or that it does not have; ignored ones aside."""
        status = self._git("status", "--porcelain", "-z", "--untracked-files=all", "--", folder)
        return [entry[3:] for entry in status.decode("utf-8", "replace").split("\0") if entry]

    def files(self, commit: str) -> dict[str, bytes]:
        """Content by path of a commit's tree."""
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        blobs: dict[str, str] = {}
        for entry in filter(None, listing.split(b"\0")):
            head, _, name = entry.partition(b"\t")
            mode, kind, blob = head.decode().split()
            if kind == "blob" and mode != "120000":
                blobs[name.decode("utf-8", "surrogateescape")] = blob
        contents = self._blobs(list(blobs.values()))
        return {name: contents[blob] for name, blob in blobs.items()}

    def history(self, commit: str) -> list[tuple[str, bytes]]:
        """Every content that can be reached from a commit, its ancestors' too, each with a path that it had."""
        listing = self._git("rev-list", "--objects", commit).decode("utf-8", "surrogateescape")
        paths = {name: path for name, _, path in (line.partition(" ") for line in listing.splitlines()) if path}
        return [(paths[name], content) for name, content in self._blobs(list(paths)).items()]

    def setting(self, name: str) -> str | None:
        """A setting of ours in this clone; it does not travel with a push."""
        answer = self._run("config", "--local", "--get", f"gpulabs.{name}")
        return answer.stdout.decode().strip() or None

    def set(self, name: str, value: str) -> None:
        self._git("config", "--local", f"gpulabs.{name}", value)

    def require_clean(self, branch: str) -> None:
        """Refuse where the working tree shows `branch` and holds work that is not committed.

        Raises:
            ReleaseError: naming files.
        """
        if not self._shows(branch):
            return
        status = self._git("status", "--porcelain", "-z", "--untracked-files=normal").decode("utf-8", "replace")
        if names := [entry[3:] for entry in status.split("\0") if entry]:
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise ReleaseError(
                f"{self.folder} holds work that is not committed: {', '.join(names[:_MAX_NAMED])}{more}; "
                "commit or stash it, then release again"
            )

    def commit(self, branch: str, files: Mapping[str, bytes], parents: list[str], message: str) -> str:
        """Make `files` the content of `branch`; the working tree follows where it shows that branch.

        Raises:
            ReleaseError: git refuses, so nothing was changed.
        """
        return self.commit_tree(branch, self.tree_with(None, files), parents, message)

    def tree_with(self, base: str | None, files: Mapping[str, bytes]) -> str:
        """A tree: that of the commit `base`, or an empty one, with these files instead of those of their names."""
        with tempfile.TemporaryDirectory() as scratch:
            index = {"GIT_INDEX_FILE": f"{scratch}/index"}
            if base is not None:
                self._git("read-tree", base, environment=index)
            blobs = self._store(set(files.values()), Path(scratch))
            entries = b"".join(
                f"100644 {blobs[content]}\t{name}\0".encode("utf-8", "surrogateescape")
                for name, content in files.items()
            )
            self._git("update-index", "-z", "--add", "--index-info", stdin=entries, environment=index)
            return self._git("write-tree", environment=index).decode().strip()

    def commit_tree(self, branch: str, tree: str, parents: list[str], message: str) -> str:
        """Commit a tree to `branch`; the working tree follows if it shows that branch.

        Raises:
            ReleaseError: git refuses, so nothing was changed.
        """
        arguments = [argument for parent in parents for argument in ("-p", parent)]
        commit = self._git("commit-tree", tree, *arguments, "-F", "-", stdin=message.encode()).decode().strip()
        before = self.tip(branch)
        if self._shows(branch):
            move = ["read-tree", "-m", "-u", *([before] if before else []), commit]
            self._git(*move[:1], "--dry-run", *move[1:])
            self._git(*move)
        self._git(
            "update-ref", "-m", f"release: {message.splitlines()[0]}", f"refs/heads/{branch}", commit, before or ""
        )
        return commit

    def tree_equals(self, commit: str, files: Mapping[str, bytes]) -> list[str]:
        """Paths where a commit differs from `files`."""
        there = self.files(commit)
        return sorted(name for name in {*there, *files} if there.get(name) != files.get(name))

    def _shows(self, branch: str) -> bool:
        if self._git("rev-parse", "--is-bare-repository").strip() == b"true":
            return False
        head = self._run("symbolic-ref", "--quiet", "HEAD")
        return head.stdout.decode().strip() == f"refs/heads/{branch}"

    def _store(self, contents: Iterable[bytes], scratch: Path) -> dict[bytes, str]:
        """Add blobs to the repository, all by one process; returns their names."""
        paths = {content: scratch / str(number) for number, content in enumerate(contents)}
        for content, path in paths.items():
            path.write_bytes(content)
        listed = "".join(f"{path}\n" for path in paths.values()).encode()
        names = self._git("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listed).decode().split()
        return dict(zip(paths, names, strict=True))

    def _blobs(self, names: list[str]) -> dict[str, bytes]:
        """The content of blobs; other objects are passed over."""
        answer = self._git("cat-file", "--batch", stdin="\n".join(names).encode())
        contents: dict[str, bytes] = {}
        start = 0
        while start < len(answer):
            end = answer.index(b"\n", start)
            name, kind, size = answer[start:end].decode().split()
            if kind == "blob":
                contents[name] = answer[end + 1 : end + 1 + int(size)]
            start = end + 2 + int(size)
        return contents

    def _git(self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
        answer = self._run(*arguments, stdin=stdin, environment=environment)
        if answer.returncode:
            said = answer.stderr.decode("utf-8", "replace").strip()
            raise ReleaseError(f"git {arguments[0]} in {self.folder} failed: {said}")
        return answer.stdout

    def _run(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", str(self.folder), *arguments]
        try:
            return subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                env={**inherited, **self._author(arguments, inherited), **(environment or {})},
            )
        except OSError as error:
            raise ReleaseError(f"git cannot be run: {error.strerror}; install it") from None

    def _author(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
        if arguments[0] != "commit-tree":
            return {}
        known = subprocess.run(
            ["git", "-C", str(self.folder), "config", "user.email"], capture_output=True, env=dict(environment)
        )
        return {} if known.stdout.strip() else _AUTHOR
