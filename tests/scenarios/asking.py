"""A sandbox whose replies are kept: it asks only what nobody has asked before.

What decides a reply, and is its key: the question and its limits; what of the submission the request can reach
(`reuse.py`), or all of it where reading leaves a doubt; our code, the packages' versions and the machine (`ours.py`).
The server, which takes seconds to start, is started with the first question that has no reply yet.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from gradebox.run.grading import Watcher
from gradebox.run.probe_cache import key_of
from gradebox.sandbox import DESCENDANTS, Isolation, Limits, Reply, Request, Sandbox
from gradebox.sandbox.types import Environment
from tests.scenarios import ours
from tests.scenarios.reuse import REFERENCE, Code, code_of
from tests.scenarios.store import Store

PATIENCE_SECONDS = 3.0
"""For what hangs on purpose."""
_BY_CHANCE = frozenset({DESCENDANTS, "restart"})
"""Kinds of notes that another run may not have."""


@dataclass(frozen=True)
class Turn:
    """One submission's turn."""

    code: Code | None = None
    """What reading tells of it; None: nothing, and only the whole submission counts."""
    hangs: frozenset[str] = frozenset()
    """Probes that do not end, or `*` for all."""
    cold: bool = True
    """Whether programs are run that start new interpreters, which costs more than all other checks of Lab 3 together;
    otherwise those of the reference speak for them."""
    fresh: bool = False
    """Whether nothing is answered by the store."""


class Asking(Watcher):
    """Stands where `gradebox.run.grading` wants a sandbox."""

    def __init__(self, sandbox: Sandbox, store: Store) -> None:
        self.sandbox = sandbox
        self.asked = 0
        """Requests that reached the sandbox."""
        self.answered = 0
        """Requests that were answered by the store."""
        self.too_long: list[str] = []
        """Probes that did not end in time although nothing says that they hang."""
        self.store = store
        self.patience_seconds = PATIENCE_SECONDS
        self._turn = Turn()
        self._folder = REFERENCE
        self.check = ""
        """The check that runs now."""

    def starting(self, check: str) -> None:
        self.check = check

    def begin(self, turn: Turn) -> None:
        """Another submission's turn; `gradebox.run.grading` turns the sandbox to its folder."""
        self._turn = turn
        self.too_long = []

    def run(self, request: Request) -> Reply:
        """The reply that is kept, or the sandbox's own."""
        if not self._turn.cold and _starts_interpreters(request):
            return self._of_the_reference(request)
        hangs = request.student and bool(self._turn.hangs & {request.probe, "*"})
        if hangs:
            limits = request.limits or self.sandbox.limits
            patience = min(limits.wall_seconds, self.patience_seconds)
            request = replace(request, limits=replace(limits, wall_seconds=patience))
        narrow, wide = self._keys(request)
        for key in (narrow, wide):
            if key is not None and not self._turn.fresh and (kept := self.store.get(key)) is not None:
                self.answered += 1
                return kept
        self.asked += 1
        reply = self.sandbox.run(request)
        kinds = {rank.kind for rank in reply.ranks} - {"ok"}
        if kinds == {"timeout"} and not hangs:  # next to a rank that failed, others may wait for it
            self.too_long.append(request.probe)
        elif not any(note.kind in _BY_CHANCE for note in reply.notes):
            # Where something went wrong, the reply names files and lines, which reading leaves out.
            plain = reply.kind == "ok" and not reply.notes
            self.store.put(narrow if plain and narrow is not None else wide, reply)
        return reply

    def _of_the_reference(self, request: Request) -> Reply:
        turn, folder = self._turn, self._folder
        self._turn = Turn(_reference())
        try:
            narrow, _ = self._keys(request)
            kept = self.store.get(narrow) if narrow else None
            if kept is not None:
                self.answered += 1
                return kept
            self.set_submission(REFERENCE)
            return self.run(request)
        finally:
            self._turn = turn
            if self._folder != folder:
                self.set_submission(folder)

    def _keys(self, request: Request) -> tuple[str | None, str]:
        """Where the reply is kept if all went well; and where else."""
        whole = self.sandbox.submission_sha256 if request.student else "nobody's"
        digest = "nobody's" if not request.student else self._turn.code.digest(request) if self._turn.code else None
        question = f"{key_of(request)} {request.limits} {ours.of_probe(request.probe)} {self._machine}"
        return (_digest(f"{question} reached {digest}") if digest else None), _digest(f"{question} whole {whole}")

    @functools.cached_property
    def _machine(self) -> str:
        return ours.of_machine(self.isolation)

    # --- what else a sandbox is -------------------------------------------------------------------------------------

    @functools.cached_property
    def isolation(self) -> Isolation:
        return isolation()

    @property
    def known_isolation(self) -> Isolation:
        return self.isolation

    def set_submission(self, folder: Path) -> None:
        self.sandbox.set_submission(folder)
        self._folder = folder

    @property
    def limits(self) -> Limits:
        return self.sandbox.limits

    @property
    def tried(self) -> set[str]:
        return self.sandbox.tried

    @property
    def submission_sha256(self) -> str:
        return self.sandbox.submission_sha256

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.sandbox.files)

    def read_text(self, path: str) -> str | None:
        return self.sandbox.read_text(path)

    def python_files(self) -> dict[str, bytes]:
        return self.sandbox.python_files()


@functools.cache
def isolation() -> Isolation:
    """How a sandbox on this machine keeps its processes apart; asked of one that imports nothing of the course."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "lab1_empty")
        folder.mkdir()
        with Sandbox(Path(name), Environment(), preload=()) as sandbox:
            return sandbox.isolation


def _starts_interpreters(request: Request) -> bool:
    return request.probe.startswith("lab3.shared.launch.") and "ddp_training" in str(request.params["module"])


@functools.cache
def _reference() -> Code:
    return code_of(REFERENCE)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
