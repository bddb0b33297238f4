"""What a check may judge by, and who notices evidence that a submission wrote itself: words of `criterion.toml`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

EVIDENCE = {
    "values": "what the submission computed or changed, compared with values that its process does not have",
    "device": "the record of the simulated device, which is a process of its own",
    "system": "what the supervisor and the operating system saw: files, messages, the end of a process",
    "files": "files that were handed in, read by the judge",
    "notes": "what the probe noted in the submission's process",
}
"""Kinds of evidence that a check may judge. Only the last can be written by a submission."""

NOTICED_BY = ("nobody", "person", "check")
"""Who notices forged notes, the most dangerous first. "check": one fails or is void, or the forgery is the task."""


def mistakes(evidence: Collection[str], forgery: str, noticed_by: str) -> Iterator[tuple[str, str]]:
    """The keys of a check's table that are wrong, each with the reason; an empty key means the table."""
    for word in evidence:
        if word not in EVIDENCE:
            yield "evidence", f"evidence is some of {', '.join(EVIDENCE)}, not {word!r}"
    if ("notes" in evidence) != bool(forgery.strip()):
        yield "", 'forgery says how notes could be written by a submission: with evidence "notes", and only then'
    elif forgery.strip() and noticed_by not in NOTICED_BY:
        yield "", f"noticed_by says who notices forged notes: {', '.join(NOTICED_BY)}, not {noticed_by!r}"
    elif noticed_by and not forgery.strip():
        yield "noticed_by", "noticed_by belongs to a forgery"
