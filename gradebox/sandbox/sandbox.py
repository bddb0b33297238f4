"""The judge's end of the sandbox: starts the server, keeps the copy of the submission, asks, and reads replies.

Imports neither torch nor anything of a submission, and believes nothing it reads without checking its form. Other
modules decide what a reply means for a grade.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from gradebox.sandbox import codec, copying, replies, starting, wire
from gradebox.sandbox.root import SUBMISSION
from gradebox.sandbox.types import CourseFault, Environment, Isolation, Limits, Note, Reply, Request, SandboxError

_TEXT_BYTES = 2**20
"""Of a report or a file of results: ten times what any of them has."""
_START_SECONDS = 180.0
_PYTHONS = sorted({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, key=len, reverse=True)
"""Where Python keeps modules; one is in the other where there is no virtual environment."""
_REPLY_SLACK_SECONDS = 120.0
"""Beyond a run's own deadline: more than the server allows its supervisor."""


class Sandbox:
    """A submission, and the isolated processes it runs in. Use as a context manager, from one thread.

    Args:
        submission: the folder that holds the labs, or a folder `labs` that does.
        environment: what the course wants in its processes.
        limits: for requests that bring none of their own.
        isolation: `"auto"` takes Linux namespaces where they are allowed; `"namespaces"` insists on them; `"limits"`
            does without.
        preload: modules the server imports before it forks, instead of the environment's.
        optional: those of `preload` that may be missing, besides the environment's.
        probe_paths: folders with probe modules that come before the course's.
        readable: files and folders that children may read besides what they need (data sets).

    Raises:
        SubmissionError: the folder cannot be graded as it is.
    """

    def __init__(
        self,
        submission: Path | str,
        environment: Environment | None = None,
        *,
        limits: Limits | None = None,
        isolation: Literal["auto", "namespaces", "limits"] = "auto",
        preload: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        probe_paths: Sequence[Path | str] = (),
        readable: Sequence[Path | str] = (),
    ) -> None:
        self._folder = Path(submission)
        self._limits = limits or Limits()
        self._wanted = isolation
        self._environment = environment or Environment()
        self._preload = tuple(self._environment.preload if preload is None else preload)
        self._optional = (*self._environment.optional, *optional)
        self._probe_paths = tuple(os.path.realpath(path) for path in probe_paths)
        self._readable = tuple(os.path.realpath(path) for path in readable)
        self._home: str | None = None
        self._copies = 0
        self._copy = ""
        self._entries = copying.scan(self._folder, self._environment.labs)
        self._sha256 = ""
        self._server: starting.Server | None = None
        self._isolation: Isolation | None = None
        self._greeted = False
        self._abandoned = False
        self.side_by_side = 1
        """How many sandboxes share the machine's cores; set before it starts."""
        self.many = True
        """Whether it will be asked much, so that a second spent on making processes cheap to fork pays; set before it
        starts."""
        self.tried: set[str] = set()
        """Devices that `gradebox.run.device_trial` has found to work here."""

    def __enter__(self) -> Self:
        """Copy the submission and start the server.

        Raises:
            SubmissionError: the folder cannot be read.
            SandboxError: there is no room for the copy.
        """
        self._snapshot()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def isolation(self) -> Isolation:
        """How children are isolated; waits for the server when nothing has run yet."""
        if self._isolation is None:
            self._greet()
        assert self._isolation is not None
        return self._isolation

    @property
    def known_isolation(self) -> Isolation | None:
        """How children are isolated; None before the server has said so."""
        return self._isolation

    @property
    def abandoned(self) -> bool:
        """Whether nothing more is run here, see `abandon`."""
        return self._abandoned

    @property
    def preloads(self) -> tuple[str, ...]:
        """What the server imports before it forks."""
        return self._preload

    @property
    def limits(self) -> Limits:
        """For requests that bring none of their own."""
        return self._limits

    @property
    def submission_sha256(self) -> str:
        """Digest of the copied files, names included; the same wherever the folder lies."""
        self._snapshot()
        return self._sha256

    def read_text(self, path: str) -> str | None:
        """A text file of the copy, by its path in our layout (`lab1_gpu_basics/REPORT.md`), without the mark that
        some editors of Windows put at its beginning; None where there is none of a reasonable size.

        Links were resolved when the copy was made, so nothing outside the submission can be read this way.
        """
        self._snapshot()
        try:
            file = Path(self._copy, "labs", path)
            return None if file.stat().st_size > _TEXT_BYTES else file.read_text("utf-8-sig", errors="replace")
        except OSError:
            return None

    @property
    def files(self) -> Sequence[str]:
        """What the copy holds, by path in our layout, in order."""
        return [entry.target for entry in self._entries]

    def python_files(self) -> dict[str, bytes]:
        """The Python files of the copy, by their path in our layout; read, never run."""
        self._snapshot()
        names = [entry.target for entry in self._entries if entry.target.endswith(".py")]
        return {name: Path(self._copy, "labs", name).read_bytes() for name in names}

    def run(self, request: Request) -> Reply:
        """Run one probe and wait until every process it started has ended.

        When the server itself dies it is started again, once per call, and the reply carries a `"restart"` note.

        Raises:
            SandboxError: the sandbox could not do its work.
        """
        started = time.monotonic()
        # From here on only the copy counts: a student who saves a file now does not get a grade of two versions.
        self._snapshot()
        notes: list[Note] = []
        try:
            while True:
                try:
                    answer = self._ask(request)
                    break
                except wire.Closed:
                    # The server holds no code of the submission, but a machine short of memory may end any process. One
                    # new start is chance; a second one means that this request ends servers, and a third would too.
                    if self._abandoned:
                        raise SandboxError("the grading was ended") from None
                    log = self._log()
                    self._stop()
                    if notes:
                        raise SandboxError(f"the sandbox server ended twice during {request.probe}{log}") from None
                    notes.append(Note("restart", f"the sandbox server ended during {request.probe} and was restarted"))
        except BaseException:
            # Interrupted, or out of step with the server: an answer that nobody has read is still in the channel, and
            # the next request would take it for its own. So it gets a new server.
            self._stop()
            raise
        # The answer was written where the submission ran. It is checked field by field before anything believes it.
        seconds, folders = time.monotonic() - started, (SUBMISSION, self._copy)
        reply = replies.read(answer, request.probe, seconds=seconds, notes=notes, submissions=folders)
        ranks = tuple(replace(rank, message=self._without_folders(rank.message)) for rank in reply.ranks)
        return replace(reply, ranks=ranks)

    def _without_folders(self, text: str) -> str:
        """Text with files of ours, the course's and Python's named from their packages on.

        A submission's exceptions may hold them, and students read those.
        """
        for folder in _PYTHONS:
            text = text.replace(f"{folder}/", "")
        for parent, package in (
            (self._environment.course_parent, self._environment.course),
            (os.fspath(Path(__file__).parents[2]), "gradebox"),
        ):
            text = text.replace(f"{parent}/{package}/", f"{package}/") if parent else text
        return text

    def set_submission(self, submission: Path | str) -> None:
        """Take up another submission, or the same folder as it is now; the preloaded server goes on to serve it.

        Raises:
            SubmissionError: the folder cannot be graded as it is; the sandbox still holds the one before.
            SandboxError: there is no room for the copy.
        """
        entries = copying.scan(Path(submission), self._environment.labs)
        self._folder = Path(submission)
        self._entries = entries
        self._sha256 = ""
        if self._copy:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy = ""
        self._snapshot()

    def share_submission(self, other: Sandbox) -> None:
        """Take up the copy that `other` holds, whose clone this one is, after it has turned to another submission."""
        other._snapshot()
        self._folder, self._entries = other._folder, other._entries
        self._copy, self._sha256 = other._copy, other._sha256

    def clone(self) -> Sandbox:
        """Another sandbox over the same copy, with a server of its own, so that two threads can ask side by side.

        The copy ends with this sandbox: close the clone first.

        Raises:
            SandboxError: there is no room for its files.
        """
        self._snapshot()
        other = copy.copy(self)
        other._home, other._copies = None, 0
        other._server = None
        other._isolation, other._greeted, other.tried = None, False, set()
        other._make_home()
        other._start()
        return other

    def abandon(self) -> None:
        """From another thread: let the request that runs now, and all that follow, end with a `SandboxError`."""
        self._abandoned = True
        if self._server is not None:
            self._server.abandon()

    def close(self) -> None:
        """End the server and everything it started, and remove the temporary folder."""
        self._stop(leave_folder=False)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
            self._copy = ""

    # --- the copy of the submission ---------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Copy the submission, once: if somebody edits the folder meanwhile, the grade is still of one version."""
        if self._copy:
            return
        try:
            self._make_home()
            self._copies += 1
            place = f"{self._home}/submission-{self._copies}"
            self._sha256 = copying.copy(self._entries, Path(place), self._environment.labs)
        except OSError as error:
            raise self._no_room(error) from None
        self._copy = place

    def _make_home(self) -> None:
        if self._home is None:
            try:
                self._home = os.path.realpath(tempfile.mkdtemp(prefix="gpulabs-"))
                os.chmod(self._home, 0o711)  # children of root run as somebody else; nobody else knows the names in it
            except OSError as error:
                raise self._no_room(error) from None

    def _no_room(self, error: OSError) -> SandboxError:
        return SandboxError(
            f"there is no space for a copy of the submission in {self._home or 'the folder for temporary files'} "
            f"({error.strerror or error}); free space, or name a folder that has some: TMPDIR=/path"
        )

    # --- the server -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._abandoned:
            raise SandboxError("the grading was ended")
        assert self._home is not None
        with self._new_log() as log:
            self._server = starting.start(self._environment, self._preload, self._optional, log, many=self.many)
        self.tried.clear()
        self._greeted = False
        config = {
            "home": self._home,
            "isolation": self._wanted,
            "probe_paths": list(self._probe_paths),
            "readable": list(self._readable),
            "environment": asdict(self._environment),
            "side_by_side": self.side_by_side,
        }
        with contextlib.suppress(wire.Closed):  # noticed, with the log, when the greeting is read
            wire.send(self._server.channel.fileno(), codec.dump_json(config))

    def _new_log(self) -> IO[bytes]:
        try:
            return open(f"{self._home}/server.log", "wb")
        except OSError as error:
            raise SandboxError(f"the sandbox server's log cannot be written: {error.strerror}") from None

    def _greet(self) -> None:
        """Wait for a started server to be ready, starting one when there is none."""
        if self._server is None:
            self._snapshot()
            self._start()
        if self._greeted:
            return
        assert self._server is not None
        try:
            frame = wire.receive(self._server.channel.fileno(), max_bytes=2**20, timeout_seconds=_START_SECONDS)
        except (wire.Closed, TimeoutError) as error:
            log = self._log()
            self._stop()
            why = "did not start in time" if isinstance(error, TimeoutError) else "ended while starting"
            raise SandboxError(f"the sandbox server {why}{log}") from None
        greeting = codec.load_json(frame)
        if "error" in greeting:
            self._stop()
            if greeting.get("of_course"):
                raise CourseFault(greeting["error"])
            raise SandboxError(f"the sandbox server could not start: {greeting['error']}")
        if self._wanted == "namespaces" and greeting["mode"] != "namespaces":
            self._stop()
            raise SandboxError(f"Linux namespaces cannot be used here: {greeting['reason']}")
        self._isolation = Isolation(
            greeting["mode"], greeting["reason"], greeting["detail"], greeting["unfiltered"], greeting["protected"]
        )
        self._greeted = True

    def _stop(self, *, leave_folder: bool = True) -> None:
        """End the server; returns when the guard has seen everything end."""
        if self._server is not None:
            server, self._server = self._server, None
            server.stop(leave_folder=leave_folder)

    def _log(self) -> str:
        """The end of what the server printed, for an error message."""
        with contextlib.suppress(OSError):
            text = Path(f"{self._home}/server.log").read_text(errors="replace").strip()
            if text:
                return "; it printed: " + text[-1500:]
        return ""

    # --- asking and reading -----------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> list[bytes]:
        """Send a request and receive the parts of its reply.

        Raises:
            wire.Closed: the server ended.
        """
        self._greet()
        assert self._server is not None
        limits = request.limits or self._limits
        head = {
            "probe": request.probe,
            "params": codec.to_json(dict(request.params)),
            "ranks": request.ranks,
            "device": request.device,
            "values": request.values,
            "submission": self._copy if request.student else None,
            "limits": asdict(limits),
        }
        conditions = codec.dump_json(codec.to_json(list(request.conditions))) if request.conditions else b""
        frame = codec.join(codec.dump_json(head), codec.dump_tensors(request.tensors), conditions)
        wire.send(self._server.channel.fileno(), frame)
        cap = request.ranks * (limits.result_bytes + 2**21)  # with what a device reads
        patience = limits.wall_seconds + limits.rank_grace_seconds + _REPLY_SLACK_SECONDS
        try:
            return codec.split(wire.receive(self._server.channel.fileno(), max_bytes=cap, timeout_seconds=patience))
        except TimeoutError:
            raise SandboxError(f"the sandbox server did not answer within {patience:g} s") from None
        except (codec.CodecError, wire.TooLarge) as error:
            raise SandboxError(f"the sandbox server's answer makes no sense: {error}") from None
