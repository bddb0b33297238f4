"""Puts a report on a disk: where it was asked for, else somewhere else, since a full disk may be what is wrong."""

import html
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cluster.acceptance.beginning import JSON_NAME, PAGE_NAME, remove_reports
from cluster.acceptance.page import page
from labkit.files import atomic_write


def write(folder: Path, document: dict[str, Any]) -> bool:
    """Write both reports and say where they are; whether they are where they were asked for."""
    for place in (folder, *_elsewhere()):
        try:
            _write(place, document)
        except OSError as error:
            print(f"could not write the report to {place}: {error}", file=sys.stderr)
            _remove(place)
            continue
        for name in (JSON_NAME, PAGE_NAME):
            print(f"wrote {place / name}")
        return place == folder
    return False


def _elsewhere() -> list[Path]:
    """Other places, the last one in memory."""
    name = f"cluster-acceptance-{os.getpid()}"
    return [Path(tempfile.gettempdir()) / name, Path.home() / name, Path("/dev/shm") / name]


def _remove(place: Path) -> None:
    """Half of a report is none."""
    try:
        remove_reports(place)
    except OSError as error:
        print(f"an older report may still be in {place}: {error}", file=sys.stderr)


def _write(folder: Path, document: dict[str, Any]) -> None:
    with atomic_write(folder / JSON_NAME) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with atomic_write(folder / PAGE_NAME) as temporary:
        temporary.write_text(_page(document), encoding="utf-8")


def _page(document: dict[str, Any]) -> str:
    """The page, or a plain one with the banner if it cannot be made: the JSON report has all the same."""
    try:
        return page(document)
    except Exception as error:
        print(f"could not make the page, the JSON report has all of it: {error!r}", file=sys.stderr)
        acceptance = document["acceptance"]
        lines = [f"FINAL ACCEPTANCE: {acceptance['status']}", *acceptance["summary"], f"The page broke: {error!r}"]
        text = html.escape("\n".join(lines))
        return f"<!doctype html><meta charset=utf-8><title>acceptance</title><pre>{text}</pre>"
