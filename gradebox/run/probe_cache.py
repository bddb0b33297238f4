"""The requests of one grading so far, each with the checks that made it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradebox.run.device_use import DeviceUse
from gradebox.run.grade import IntegrityNote
from gradebox.run.pictures import Picture, timeline
from gradebox.sandbox import Reply, Request


@dataclass(frozen=True)
class CheckInputs:
    """What a check's report follows from."""

    requests: tuple[Request, ...]
    texts: Mapping[str, str | None]
    """Files of the submission, by path; None where there was none."""
    remarkable: bool
    """Whether the sandbox noticed something."""


class Remembered(Protocol):
    """What outlives a grading (`gradebox.run.reference_cache`)."""

    def answer(self, request: Request, ask: Callable[[Request], Reply]) -> Reply:
        """What is known, or else what `ask` gets."""


class ProbeCall:
    """One question, asked once however many checks want its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.lock = threading.Lock()
        self.reply: Reply | None = None
        self.checks: list[str] = []
        self.notes: list[tuple[str, str, str]] = []
        self.measured = False
        """Whether the reply was measured on a real device."""
        self.disturbances: list[str] = []
        """What else happened to the device meanwhile."""


class ProbeCache:
    """What one grading has asked so far and what was noticed on the way; shared by its checks, and by threads."""

    def __init__(
        self,
        time_limit_seconds: float | None = None,
        order: Sequence[str] = (),
        references: Remembered | None = None,
        device_use: DeviceUse | None = None,
    ) -> None:
        """Nothing is asked any more when `time_limit_seconds` from now have passed; `order` is that of the checks.

        `references` has the answers that other gradings got; `device_use` runs the requests.
        """
        self.device_use = device_use or DeviceUse()
        self.references = references
        self.time_limit = math.inf if time_limit_seconds is None else time_limit_seconds
        self.deadline = time.monotonic() + self.time_limit
        self.lock = threading.Lock()
        self.endless: dict[str, list[str]] = {}
        """Where imports did not end, by lab."""
        self._places = {check: place for place, check in enumerate(order)}
        self._asked: dict[str, ProbeCall] = {}
        self._read: dict[str, dict[str, str | None]] = {}

    @property
    def integrity(self) -> tuple[IntegrityNote, ...]:
        """What was noticed, each note under the first of the checks that asked for it."""
        with self.lock:
            return tuple(
                IntegrityNote(kind, detail, where, min(call.checks, key=lambda check: self._places.get(check, -1)))
                for call in self._asked.values()
                for kind, detail, where in call.notes
            )

    def call(self, request: Request, check: str) -> ProbeCall:
        """The call that `check` makes, with its reply if another check has made it before."""
        with self.lock:
            call = self._asked.setdefault(key_of(request), ProbeCall(request))
            call.checks.append(check)
            return call

    def measured(self, check: str) -> Sequence[ProbeCall]:
        """Those of the questions of `check` that were measured on a real device."""
        with self.lock:
            return [call for call in self._asked.values() if call.measured and check in call.checks]

    def of_submission(self, check: str) -> Sequence[ProbeCall]:
        """Those of the questions of `check` that run the submission's code."""
        with self.lock:
            return [call for call in self._asked.values() if check in call.checks and call.request.student]

    def note_reading(self, check: str, path: str, text: str | None) -> None:
        """`check` has read a file of the submission by itself."""
        with self.lock:
            self._read.setdefault(check, {})[path] = text

    def alone(self, check: str) -> Request | None:
        """What `check` last asked of the submission's code, if that is shown, and no run of ours next to it."""
        last = self._shown(check)
        return last[True].request if True in last and False not in last else None

    def timeline(self, check: str) -> Picture | None:
        """What ran on a simulated device when `check` last asked for the submission's code, and in a run of ours."""
        last = self._shown(check)
        if True not in last:
            return None
        return timeline(
            (title, rows)
            for student, title in ((True, "yours"), (False, "expected"))
            if student in last and (reply := last[student].reply) is not None
            for rows in [max(reply.shown, key=len)]
        )

    def _shown(self, check: str) -> dict[bool, ProbeCall]:
        """The last question of a check of which something can be drawn: of the submission's code, and of ours alone."""
        with self.lock:
            calls = [
                call
                for call in self._asked.values()
                if check in call.checks
                and call.reply is not None
                and any(call.reply.shown)
                and (call.request.student or all(rank.kind == "ok" for rank in call.reply.ranks))
            ]
        return {call.request.student: call for call in calls}

    def grounds(self, check: str) -> CheckInputs:
        """All answers to a check that has reported."""
        with self.lock:
            calls = [call for call in self._asked.values() if check in call.checks]
            return CheckInputs(
                tuple(call.request for call in calls),
                dict(self._read.get(check, {})),
                remarkable=any(call.notes for call in calls),
            )


def key_of(request: Request) -> str:
    """The same for the same question; time and memory limits do not count."""
    arrays = {name: [str(array.dtype), array.shape, array.tobytes().hex()] for name, array in request.tensors.items()}
    return json.dumps(
        [
            *(request.probe, dict(request.params), arrays, request.ranks, request.device, request.values),
            *(request.student, [dict(condition) for condition in request.conditions]),
        ],
        sort_keys=True,
    )
