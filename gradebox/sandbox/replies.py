"""What the server answered, checked field by field and turned into a `Reply`.

Runs in the judge on bytes that a submission may have had a hand in: every part has a known form or is refused, and
nothing is executed. Not for deciding what a reply is worth.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradebox.sandbox import codec, failures
from gradebox.sandbox.types import DESCENDANTS, KINDS, TAMPERING, VOID, Note, RankReply, Reply, SandboxError

_TRACE_LINE = re.compile(r'^\s*File "([^"\n]*)", line (\d+) in (\S+)', re.MULTILINE)
_OPTIONAL_TEXTS = ("error", "message", "where", "line", "traceback")


def read(parts: list[bytes], probe: str, *, seconds: float, notes: Sequence[Note], submissions: Sequence[str]) -> Reply:
    """A reply from the supervisor's report and the ranks' payloads.

    Args:
        parts: the report, what the simulated device says (nothing where there is none), then one payload per rank,
            empty where there is none.
        probe: named in errors.
        seconds: of the round trip.
        notes: of our own, put before those of the run.
        submissions: the folders as which a child may know the copy of the submission.

    Raises:
        SandboxError: the supervisor could not do its work.
    """
    report = codec.load_json(parts[0])
    if "failed" in report:
        raise SandboxError(f"the sandbox could not run {probe}: {report['failed']}")
    ranks = []
    all_notes = list(notes)
    none: list[list[Any]] = [[] for _ in report["ranks"]]
    device = codec.load_json(parts[1]) if parts[1] else {"readings": none, "faults": none}
    outcomes = zip(device["readings"], device["faults"], strict=True)
    for side, (readings, fault), payload in zip(report["ranks"], outcomes, parts[2:], strict=True):
        rank = _rank(side, payload, submissions, readings, report["system"])
        noted = list(_notes(side["notes"]))
        void = [note.detail for note in noted if note.kind == VOID]
        if side["flooded"]:
            void.append("the notes: more were written than the sandbox writes")
        if side["silenced"]:
            void.append("the notes: their pipe was closed or replaced")
        if report["hidden"]:
            void.append("the record of files: more were made than it holds")
        if fault:
            void.append(f"the virtual GPU, which was sent what PyTorch would not: {fault}")
        if side["voided"] and not void:
            void.append("the virtual GPU's record, by a process whose notes did not arrive")
        if void and rank.kind != "tampered":
            rank = RankReply("tampered", message=", ".join(void[:8]), stdout=rank.stdout, stderr=rank.stderr)
        ranks.append(rank)
        all_notes += [replace(note, kind=TAMPERING) if note.kind == VOID else note for note in noted]
        if rank.kind == "tampered":
            all_notes.append(Note(TAMPERING, rank.message, rank.where))
    if report["strays"]:
        left = "1 process was" if report["strays"] == 1 else f"{report['strays']} processes were"
        all_notes.append(Note(DESCENDANTS, f"{left} still there at the end"))
    failed = [rank.kind for rank in ranks if rank.kind != "ok"]
    kind = "tampered" if "tampered" in failed else failed[0] if failed else "ok"
    return Reply(kind, tuple(ranks), seconds, tuple(dict.fromkeys(all_notes)), shown=tuple(device.get("shown", ())))


def _rank(
    side: dict[str, Any],
    payload: bytes,
    submissions: Sequence[str],
    readings: Sequence[Any],
    system: Mapping[str, Any],
) -> RankReply:
    common = {name: side[name] for name in ("stdout", "stderr", "cpu_seconds", "starved_seconds")}
    if side["kind"] != "result":
        where, importing = _where(side["trace"], submissions)
        return RankReply(
            side["kind"],
            message=side["message"],
            where=where,
            traceback=side["trace"],
            importing=importing,
            **common,
        )
    try:
        return _parse(payload, common, readings, system)
    except codec.CodecError as error:
        return RankReply("crashed", message=f"the result is malformed: {error}", **common)


def _where(trace: str, submissions: Sequence[str]) -> tuple[str | None, bool]:
    """The innermost line of the submission in what faulthandler wrote, and whether a module was being imported."""
    prefixes = tuple(f"{folder}/labs/" for folder in submissions)
    places = [(path, int(line), name) for path, line, name in _TRACE_LINE.findall(trace) if path.startswith(prefixes)]
    if not places:
        return None, False
    return failures.place(*places[0]), any(function == "<module>" for _, _, function in places)


def _parse(payload: bytes, common: dict[str, Any], readings: Sequence[Any], system: Mapping[str, Any]) -> RankReply:
    """A rank's own account, with the device's and the system's readings where it says that they belong.

    Raises:
        codec.CodecError: it is not what `worker.py` would have sent.
    """
    parts = codec.split(payload)
    if len(parts) != 2:
        raise codec.CodecError(f"{len(parts)} parts")
    fields = codec.load_json(parts[0])
    if not isinstance(fields, dict) or fields.get("kind") not in KINDS:
        raise codec.CodecError("no known kind")
    texts = {name: fields.get(name) for name in _OPTIONAL_TEXTS}
    if not all(value is None or isinstance(value, str) for value in texts.values()):
        raise codec.CodecError("a text is none")
    dtypes = fields.get("dtypes", {})
    if not isinstance(dtypes, dict) or not all(isinstance(value, str) for value in dtypes.values()):
        raise codec.CodecError("dtypes is not a mapping of texts")
    tensors = codec.load_tensors(parts[1])
    if set(dtypes) != set(tensors):
        raise codec.CodecError("dtypes and tensors disagree")
    places = fields.get("readings", {})
    if not isinstance(places, dict) or not all(
        type(number) is int and 0 <= number < len(readings) for number in places.values()
    ):
        raise codec.CodecError("a reading that nobody has made")
    of_system = fields.get("system", {})
    if not isinstance(of_system, dict) or not all(name in system for name in of_system.values()):
        raise codec.CodecError("a reading of the system that nobody has made")
    known = {path: readings[number] for path, number in places.items()}
    known |= {path: system[name] for path, name in of_system.items()}
    return RankReply(
        kind=fields["kind"],
        value=codec.put_back(fields.get("value"), known),
        tensors=codec.as_they_were(tensors, dtypes),
        dtypes=dtypes,
        error=texts["error"],
        message=texts["message"] or "",
        where=texts["where"],
        line=texts["line"],
        traceback=texts["traceback"] or "",
        **common,
    )


def _notes(lines: str) -> Iterator[Note]:
    """Notes of the audit hook; a line that is none was not written by it, and is passed over."""
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            if isinstance(fields, dict) and all(
                isinstance(fields.get(key), str) for key in ("kind", "detail", "where")
            ):
                yield Note(fields["kind"][:40], fields["detail"][:400], fields["where"][:200])
