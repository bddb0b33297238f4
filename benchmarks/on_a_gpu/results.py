"""What jobs have found on which card: one file of results for each card, and one of the large measurements.

A file is replaced as a whole, so that whoever is stopped while writing leaves the one before.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.on_a_gpu.job import ROOT, Job

FOLDER = ROOT / "benchmarks" / "results" / "gpu"
SCHEMA = 1
MEASURED = "-measured"
"""Ends the name of the file with a card's large measurements: entries by job."""
REHEARSED = "-rehearsed"
"""Ends the name of the card of a rehearsal."""
LARGEST_BYTES = 16 * 2**20
"""Of one file that is brought back from a GPU machine."""
_VERDICTS = ("passed", "failed")
"""Outcomes that say something of the content; a job that was stopped or broke has none."""

Document = dict[str, Any]


class ResultsError(Exception):
    """A file of results cannot be used; the message names it."""


def card_of(label: str) -> str:
    """A card's name as a file's: `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


class Results:
    """Results of one card, in a folder that may hold those of others."""

    def __init__(self, folder: Path, card: str) -> None:
        """Read what is there.

        Raises:
            ResultsError: a file is damaged.
        """
        self.folder, self.card = folder, card
        self.jobs: dict[str, Document] = read(folder / f"{card}.json").get("jobs", {})
        self.measured: dict[str, list[Document]] = read(folder / f"{card}{MEASURED}.json").get("entries", {})

    def is_known(self, job: Job) -> bool:
        """Whether the job has a verdict on this card and this content, and nothing more to do."""
        known = self.jobs.get(job.name)
        if known is None or known["outcome"] not in _VERDICTS:
            return False
        if job.is_elastic:
            return bool(known["complete"])
        return bool(known["digest"] == job.digest)

    def seconds_of(self, job: Job) -> float:
        """How long the job took here; what it says of itself if it never did."""
        known = self.jobs.get(job.name, {})
        return float(known["seconds"]) if known.get("outcome") in _VERDICTS else job.seconds

    def add(self, job: Job, result: Document) -> None:
        """Keep a result. Entries of an elastic job join those of earlier visits."""
        details = dict(result["details"])
        if entries := details.pop("entries", None):
            before = self.measured.get(job.name, [])
            self.measured[job.name] = [*before, *entries]
        self.jobs[job.name] = {"title": job.title, "group": job.group, **result, "details": details}

    def write(self, folder: Path | None = None) -> tuple[Path, ...]:
        """Write both files, into another folder if one is named; their paths.

        Raises:
            ResultsError: a file cannot be written, or is larger than a GPU machine gives back.
        """
        target = folder or self.folder
        try:
            target.mkdir(parents=True, exist_ok=True)
            head = {"schema": SCHEMA, "card": self.card}
            jobs = _replace(target / f"{self.card}.json", {**head, "jobs": self.jobs})
            if not self.measured:
                return (jobs,)
            return jobs, _replace(target / f"{self.card}{MEASURED}.json", {**head, "entries": self.measured})
        except OSError as error:
            raise ResultsError(f"results cannot be written to {target}: {error.strerror or error}") from None


def read(path: Path) -> Document:
    """A file of results; nothing for one that is not there.

    Raises:
        ResultsError: it is not JSON, or of another schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read as results: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ResultsError(f"{path} is no file of results of schema {SCHEMA}")
    return document


def cards(folder: Path = FOLDER) -> Iterator[str]:
    """The cards that there are results of."""
    for path in sorted(folder.glob("*.json")):
        if not path.stem.endswith(MEASURED):
            yield path.stem


def merge(source: Path, folder: Path = FOLDER) -> Mapping[str, int]:
    """Take the results of another folder over into this one; how many came in, by card.

    Of two results of one job the newer counts. Entries join, each once.

    Raises:
        ResultsError: there are none in `source`, they are of a rehearsal, or a file is damaged; then nothing is
            changed.
    """
    if not source.is_dir():
        raise ResultsError(f"there is no folder {source}; name the one that --out was given")
    merged, counts = [], {}
    for card in cards(source):
        if card.endswith(REHEARSED):
            raise ResultsError(f"{source / card}.json is of a rehearsal: no figure in it was measured on a GPU")
        theirs, ours = Results(source, card), Results(folder, card)
        newer = {
            name: result
            for name, result in theirs.jobs.items()
            if name not in ours.jobs or ours.jobs[name]["date"] < result["date"]
        }
        ours.jobs.update(newer)
        more = 0
        for name, entries in theirs.measured.items():
            have = {_identity(entry) for entry in ours.measured.get(name, [])}
            fresh = [entry for entry in entries if _identity(entry) not in have]
            ours.measured.setdefault(name, []).extend(fresh)
            more += len(fresh)
        merged.append(ours)
        counts[card] = len(newer) + more
    if not merged:
        raise ResultsError(f"{source} holds no results; name the folder that --out was given")
    for ours in merged:
        ours.write()
    return counts


def _identity(entry: Document) -> str:
    """Of a measured entry: its case, and when it was measured."""
    return json.dumps([entry.get(name) for name in ("id", "group", "name", "date")])


def _replace(path: Path, document: Document) -> Path:
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if len(text) > LARGEST_BYTES:
        raise ResultsError(f"{path} would have {len(text)} bytes, and no more than {LARGEST_BYTES} come back")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
    return path
