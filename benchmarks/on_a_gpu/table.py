"""The table of docs/on-a-gpu.md: what is known of which card, by groups of jobs. Generated from the results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.on_a_gpu import results
from benchmarks.on_a_gpu.job import ROOT, Job
from benchmarks.on_a_gpu.jobs import JOBS
from benchmarks.on_a_gpu.results import Results

PAGE = ROOT / "docs" / "on-a-gpu.md"
BEGIN, END = "<!-- results: gpu -->", "<!-- end of results -->"
GROUPS = {
    "a": "The reference",
    "b": "The four checks that were rewritten, five seeds",
    "c": "The acceptance test",
    "d": "Right solutions in other styles",
    "e": "One planted bug for each check of the device",
    "f": "The reference, ten more seeds",
    "g": "Conformance programs",
    "h": "Measurements",
    "i": "A class of five, one of them hostile",
}

_SINGLE = 3
"""Of so many results of a group each has its own words in the table."""


def write(page: Path = PAGE, folder: Path = results.FOLDER) -> Path:
    """Put the table into the page, between its two marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{render(folder)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return page


def render(folder: Path = results.FOLDER) -> str:
    """The table as Markdown, and below it what did not come out well."""
    known = [Results(folder, card) for card in results.cards(folder)]
    if not known:
        return "No GPU has been measured with this queue yet."
    head = ["jobs", *(card.card for card in known)]
    rows = [head, ["---"] * len(head), *_rows(known)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([table, *filter(None, ("\n".join(_open(card)) for card in known))])


def _rows(known: Sequence[Results]) -> Iterator[list[str]]:
    for letter, jobs in itertools.groupby(JOBS, key=lambda job: job.group):
        group = list(jobs)
        yield [f"{letter}. {GROUPS[letter]}", *(_cell(card, group) for card in known)]


def _cell(card: Results, jobs: Sequence[Job]) -> str:
    """What became of a group's jobs on a card."""
    there = [card.jobs[job.name] for job in jobs if job.name in card.jobs]
    if not there:
        return "not run"
    date = max(entry["date"] for entry in there)[:10]
    if len(there) <= _SINGLE:
        each = "; ".join(f"{entry['title']}: {_cell_text(entry['summary'])}" for entry in there)
        return f"{each} ({date})"
    passed = sum(entry["outcome"] == "passed" for entry in there)
    return f"{passed} of {len(there)} passed, {len(jobs) - len(there)} not run ({date})"


def _open(card: Results) -> Iterator[str]:
    """What did not pass, one line each."""
    bad = {
        job.name: card.jobs[job.name]
        for job in JOBS
        if card.jobs.get(job.name, {}).get("outcome", "passed") != "passed"
    }
    if bad:
        yield f"On {card.card}, not passed:\n"
    for name, entry in bad.items():
        yield f"- `{name}`: {entry['outcome']}: {_cell_text(entry['summary'])}"


def _cell_text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
