"""The judge's view of a submission: ask a probe, get what it observed, or an honest reason why there is nothing.

Not for what it means if there is nothing (`endings.py`), not for judging values (a lab's `checks/`), and not for
isolation (`gradebox/sandbox/`).
"""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack, overload

from numpy.typing import NDArray

from gradebox.common.texts import printable
from gradebox.run import endings
from gradebox.run.array_reference import ArrayReference
from gradebox.run.assertions import CheckFailed, NeedsReview, shown
from gradebox.run.encode_inputs import apart
from gradebox.run.probe_cache import ProbeCache, ProbeCall
from gradebox.sandbox import Limits, Reply, Request, Sandbox, SandboxError, codec
from gradebox.sandbox.devices import Device
from gradebox.sandbox.probe_types import ProbeInputs, build, misfit
from gradebox.sandbox.types import TAMPERING

Observation = TypeVar("Observation")
"""What a probe says it returns."""

_IMPORT_TIMEOUTS = 2
"""So many imports without an end, and nothing of that lab is asked again: each costs a minute."""
_MIN_SECONDS = 1.0
"""With less time left than this, nothing more is asked."""

_SUSPICIOUS_ENDINGS = frozenset({"crashed", "timeout", "memory", "output"})
_SUSPICIOUS_ERRORS = frozenset({"SystemExit", "Skipped", "Exit", "KeyboardInterrupt"})
"""Honest mistakes end like this too, so it costs nothing; but somebody may want to look."""


class Options(TypedDict, total=False):
    """How a probe is run."""

    device: str | None
    """Instead of the grading device."""
    values: bool
    """False asks a simulated device for shapes only."""
    student: bool
    """False keeps the submission out of the child, for a reference run."""
    limits: Limits | None
    conditions: Sequence[Mapping[str, Any]]
    """Sent to a simulated device alone (`DeviceModule.serve`): a submission can only measure them."""


class Seen:
    """What a probe observed: JSON values and arrays, read as attributes or items.

    An array inside a list or a dictionary is an item under its path, `seen["rows/0"]`, and in its place stands an
    `ArrayReference`, so that code that expects a number or a text there does not take an array for one. `whole` has it
    in place.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        references = {path: ArrayReference(path, array) for path, array in arrays.items()}
        self._values = {**codec.put_back(values, references), **arrays}
        self._arrays = arrays

    def whole(self, name: str) -> Any:
        """The value of this name with every array where it stood.

        Raises:
            AttributeError: the probe did not report it.
        """
        return codec.put_back(self[name], self._arrays, name)

    def read_as(self, kind: type[Observation], probe: str) -> Observation:
        """What was observed, as the dataclass that the probe says it returns."""
        return build(kind, self._fields(), f"the probe {probe} reported", self._whole_fields())

    def misfit(self, kind: type) -> str | None:
        """What of it is not of the type that the probe says it returns, in words; None if all is."""
        return misfit(kind, self._fields(), self._whole_fields())

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._values.items() if "/" not in name}

    def _whole_fields(self) -> dict[str, Any]:
        return {name: codec.put_back(value, self._arrays, name) for name, value in self._values.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._values, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"the probe did not report {name!r}{meant}") from None

    __getitem__ = __getattr__


class Submission:
    """One student's folder as one check sees it: run probe by probe."""

    def __init__(self, device: Device, sandbox: Sandbox, probe_cache: ProbeCache, check: str) -> None:
        """`check` is the id of the one that runs: notes are filed under it.

        Raises:
            NeedsReview: the time limit of the whole grading has been reached.
        """
        self.device = device
        self._sandbox = sandbox
        self._probe_cache = probe_cache
        self._check = check
        if time.monotonic() > probe_cache.deadline - _MIN_SECONDS:
            raise self._left_out()

    @overload
    def probe(self, probe: ProbeInputs[Observation], /, **options: Unpack[Options]) -> Observation: ...
    @overload
    def probe(self, probe: str, options: Options | None = None, /, **inputs: Any) -> Seen: ...
    def probe(self, probe: ProbeInputs[Any] | str, options: Options | None = None, /, **more: Any) -> Any:
        """Run a probe of a lab next to the student's code; what it returned.

        Args:
            probe: its inputs, a dataclass that names the probe (`gradebox.sandbox.probe_types`), or its name
                ("lab1.basics.product").
            options: how a probe is run that is given by its name.
            more: of a probe that is given by its name, its inputs, whatever they are called; else options.

        Arrays among the inputs, and in their lists and dictionaries, reach the probe as arrays, or as the tensors that
        the course's devices make of them; everything else must be JSON. The same question asked twice in one grading is
        answered from memory.

        Raises:
            TypeError: an input cannot be sent; the message names it.
            CheckFailed: the student's code is not written, raised, crashed, took too long or too much memory.
            NeedsReview: the virtual GPU does not support what the code does, or the probe itself failed.
        """
        (reply,) = self._replies(probe, 1, options, more)
        return reply

    @overload
    def rank_probe(
        self, probe: ProbeInputs[Observation], ranks: int, /, **options: Unpack[Options]
    ) -> list[Observation]: ...
    @overload
    def rank_probe(self, probe: str, ranks: int, options: Options | None = None, /, **inputs: Any) -> list[Seen]: ...
    def rank_probe(
        self, probe: ProbeInputs[Any] | str, ranks: int, options: Options | None = None, /, **more: Any
    ) -> list[Any]:
        """`probe` in several processes at once, which may meet at `student.rendezvous`; what each returned, by rank.

        A virtual machine has one GPU for each rank. Raises as `probe` does, for the rank whose ending explains the
        others': a rank that waits for a failed one fails as well.
        """
        return self._replies(probe, ranks, options, more)

    def _replies(
        self, probe: ProbeInputs[Any] | str, ranks: int, chosen: Options | None, more: dict[str, Any]
    ) -> list[Any]:
        # Inputs of a probe that is given by its name may be called as options are; a dataclass keeps its own apart.
        options, inputs = (chosen or {}, more) if isinstance(probe, str) else (more, probe.fields_by_name())
        if unknown := [name for name in options if name not in Options.__annotations__]:
            raise TypeError(f"{unknown[0]} is no option of a probe: there are {', '.join(Options.__annotations__)}")
        kind = None if isinstance(probe, str) else probe.reply_type()
        name = probe if isinstance(probe, str) else probe.probe
        params, tensors = apart(inputs)
        request = Request(
            probe=name,
            params=params,
            tensors=tensors,
            ranks=ranks,
            device=options.get("device") or self.device.name,
            values=options.get("values", True),
            student=options.get("student", True),
            limits=options.get("limits"),
            conditions=options.get("conditions", ()),
        )
        reply = self._run(request)
        if failed := [answer for answer in reply.ranks if answer.kind != "ok"]:
            if ranks > 1 and all(endings.left_alone(answer) or answer.kind == "timeout" for answer in failed):
                raise endings.did_not_meet(reply)
            worst = min(failed, key=endings.blame)
            raise endings.problem(request, reply, worst, self.device.label, lambda: self._sandbox.files)
        replies = []
        for answer in reply.ranks:
            if not isinstance(answer.value, dict):
                self._refuse(request, f"it must be a dictionary, not {shown(answer.value, 80)}")
            observed = Seen(answer.value, answer.tensors)
            if kind is not None and (problem := observed.misfit(kind)):
                self._refuse(request, problem)
            replies.append(observed)
        return replies if kind is None else [each.read_as(kind, name) for each in replies]

    def _refuse(self, request: Request, problem: str) -> NoReturn:
        """A reply that the probe would not have sent: it is wrong itself, or somebody else has sent it."""
        what = f"the reply of {request.probe} is not what the probe returns: {problem}"
        call = self._probe_cache.call(request, self._check)
        if (TAMPERING, what, "") not in call.notes:
            call.notes.append((TAMPERING, what, ""))
        raise NeedsReview(what, "either the probe does not declare what it returns, or the submission wrote the reply")

    @overload
    def numeric_probe(self, probe: ProbeInputs[Observation], /, **options: Unpack[Options]) -> Observation: ...
    @overload
    def numeric_probe(self, probe: str, options: Options | None = None, /, **inputs: Any) -> Seen: ...
    def numeric_probe(self, probe: ProbeInputs[Any] | str, options: Options | None = None, /, **more: Any) -> Any:
        """`probe`, repeated on the plain CPU where the virtual GPU cannot do what the student's code asks for."""
        try:
            return self._replies(probe, 1, options, dict(more))[0]
        except NeedsReview:
            if not self.device.simulated:
                raise
            if isinstance(probe, str):
                return self.probe(probe, {**(options or {}), "device": "cpu"}, **more)
            return self.probe(probe, **{**more, "device": "cpu"})

    def run_expected(self, probes: Mapping[str, str]) -> None:
        """Have the course's own probe do what was last asked of the submission's, to be shown next to it in a picture.

        `probes` names it (`criterion.criterion`). One more run, for a check that failed; without a picture of the
        submission's, or where the run comes to nothing, there is none.
        """
        request = self._probe_cache.alone(self._check)
        if request is not None and request.probe in probes:
            with contextlib.suppress(CheckFailed, NeedsReview, SandboxError):
                self._run(replace(request, probe=probes[request.probe], student=False))

    def read_text(self, path: str) -> str | None:
        """A text file of the submission, by its path in our layout; None where there is none that can be read."""
        text = self._sandbox.read_text(path)
        self._probe_cache.note_reading(self._check, path, text)
        return text

    def _run(self, request: Request) -> Reply:
        call = self._probe_cache.call(request, self._check)
        with call.lock:
            if call.reply is None:
                references = self._probe_cache.references

                def ask(request: Request) -> Reply:
                    return self._ask(request, call)

                call.reply = ask(request) if references is None else references.answer(request, ask)
                self._note(call, request, call.reply)
            return call.reply

    def _ask(self, request: Request, call: ProbeCall) -> Reply:
        self._stop_if_endless()
        limits = request.limits or self._sandbox.limits
        left = self._probe_cache.deadline - time.monotonic()
        if left < _MIN_SECONDS:
            raise self._left_out()
        cut = left < limits.wall_seconds
        timed = replace(request, limits=replace(limits, wall_seconds=left)) if cut else request
        reply = self._run_in_turn(timed, call)
        if any(map(endings.timed_out, reply.ranks)):
            if cut:
                raise self._left_out()
            if endings.was_starved(reply):
                reply = self._run_in_turn(timed, call)
        return reply

    def _run_in_turn(self, request: Request, call: ProbeCall) -> Reply:
        answer = self._probe_cache.device_use.run(request, self._sandbox)
        call.measured = answer.measured
        if answer.disturbance:
            call.disturbances.append(answer.disturbance)
        return answer.reply

    def _stop_if_endless(self) -> None:
        """Raise when the imports of this lab have not ended so often that the next one will not either."""
        places = self._probe_cache.endless.get(self._lab, [])
        if len(places) >= _IMPORT_TIMEOUTS:
            raise CheckFailed(
                f"not asked again: importing the lab's modules did not end, {len(places)} times, last at {places[-1]}",
                "code outside of functions runs at every import: leave there nothing that takes long",
                answered=False,
            )

    def _left_out(self) -> NeedsReview:
        return NeedsReview(
            f"left out: the time limit of {self._probe_cache.time_limit:g} s for the whole grading was reached",
            "grade this lab alone with --lab, or all of them with a longer --time-limit",
        )

    @property
    def _lab(self) -> str:
        return self._check.partition(".")[0]

    def _note(self, call: ProbeCall, request: Request, reply: Reply) -> None:
        """File what the sandbox noticed, and ends that a trick would have."""
        notes = [(note.kind, note.detail, note.where) for note in reply.notes]
        if endless := next((answer for answer in reply.ranks if answer.kind == "timeout" and answer.importing), None):
            with self._probe_cache.lock:
                places = self._probe_cache.endless.setdefault(self._lab, [])
                places.append(endless.where or "a place that is not known")
        for answer in reply.ranks:
            if answer.kind in _SUSPICIOUS_ENDINGS or answer.error in _SUSPICIOUS_ERRORS:
                notes.append(("ending", f"{request.probe} ended as {answer.kind}: {answer.message}", answer.where))
        call.notes = [(kind, printable(detail), printable(where or "")) for kind, detail, where in notes]
