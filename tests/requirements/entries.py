"""`grader/labN/requirements.toml`: for each sentence that binds a student the checks that ask for it, or why none does.

    also = ["labkit/results/lab2.py:AmpTraining"]        # docstrings outside of the lab that bind, too

    ["amp_training.train_with_amp"]
    "The step is skipped." = ["lab2.scaling.overflow_skips_the_step"]
    "It was invented in 2018." = "history"

A sentence that has changed is another one: its author looks at its checks again. A new check names the beginning of
its sentence in `criterion.toml` (`requirements = ["The step is skipped"]`), and `make generated` enters it here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import grader
from tests.requirements import sentences

ROOT = Path(__file__).parents[2]
Entries = Mapping[str, Mapping[str, list[str] | str]]


def file_of(lab: str) -> Path:
    """Where the entries of a lab are."""
    return ROOT / "grader" / lab / "requirements.toml"


def load(lab: str) -> tuple[tuple[str, ...], Entries]:
    """What binds besides the lab's own docstrings, and the tables of entries; nothing if there is no file.

    Raises:
        tomllib.TOMLDecodeError: it is no TOML.
    """
    file = file_of(lab)
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return tuple(table.pop("also", ())), table


def problems(lab: str) -> Iterator[str]:
    """What is wrong with a lab's entries, a line each."""
    also, entries = load(lab)
    chosen = grader.course().select(lab, None)[1][0]
    checks = set(grader.course().checks(chosen))
    required = sentences.of_lab(chosen.package, also)
    asking: set[str] = set()
    for where, texts in required.items():
        for text in texts:
            value = entries.get(where, {}).get(text)
            if value is None:
                yield f"[{where}] has no entry: {text}"
            elif isinstance(value, str):
                if len(value) < 3:
                    yield f"[{where}] neither a check nor a reason: {text}"
            else:
                asking |= set(value)
                if not value:
                    yield f"[{where}] asked by no check, and no reason: {text}"
                yield from (f"[{where}] there is no check {name}" for name in value if name not in checks)
    for where, table in entries.items():
        gone = [text for text in table if text not in required.get(where, ())]
        yield from (f"[{where}] nothing says this any more: {text}" for text in gone)
    yield from (f"{name} asks for what no sentence requires" for name in sorted(checks - asking))
    yield from ambiguous(lab)


def ambiguous(lab: str) -> Iterator[str]:
    """The beginnings in `criterion.toml` that are not those of one sentence, a line each."""
    required = sentences.of_lab(grader.course().select(lab, None)[1][0].package, load(lab)[0])
    every = {text for texts in required.values() for text in texts}
    for name, beginnings in _named_by_checks(lab).items():
        for beginning in beginnings:
            matches = [text for text in every if text.startswith(beginning)]
            if len(matches) != 1:
                found = "no sentence begins" if not matches else f"{len(matches)} sentences begin"
                yield f"{name}: {found} with {beginning!r}; requirements must name one sentence by its beginning"


def _named_by_checks(lab: str) -> dict[str, tuple[str, ...]]:
    """By check, the beginnings of sentences that its table in `criterion.toml` names."""
    named: dict[str, tuple[str, ...]] = {}
    for file in sorted((ROOT / "grader" / lab).glob("*/criterion.toml")):
        for name, table in tomllib.loads(file.read_text(encoding="utf-8")).get("checks", {}).items():
            if "requirements" in table:
                named[f"{lab}.{file.parent.name}.{name}"] = tuple(table["requirements"])
    return named


def text_of(lab: str) -> str:
    """The entries as they should be: in the order of the sentences, new ones with "", those that are gone left out.

    A check that names a sentence is entered with it; one that is gone is left out.
    """
    named = _named_by_checks(lab)
    also, entries = load(lab)
    chosen = grader.course().select(lab, None)[1][0]
    checks = set(grader.course().checks(chosen))
    required = sentences.of_lab(chosen.package, also)
    lines = ["# What is required of a student, and the checks that ask for it. `make generated` adds new sentences."]
    lines += ["", f"also = {json.dumps(also, ensure_ascii=False)}"] if also else []
    for where, texts in required.items():
        lines += ["", f"[{_quoted(where)}]"]
        for text in dict.fromkeys(texts):
            value = entries.get(where, {}).get(text, "")
            value = value if isinstance(value, str) else [name for name in value if name in checks]
            new = [name for name, beginnings in named.items() if text.startswith(beginnings) and name not in value]
            value = [*(value or ()), *new] if new and not (value and isinstance(value, str)) else value
            lines.append(f"{_quoted(text)} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML key; literal where that is possible, since it is read by people."""
    return f"'{text}'" if '"' in text and "'" not in text else json.dumps(text, ensure_ascii=False)
