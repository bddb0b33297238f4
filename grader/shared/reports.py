"""What the written parts of all labs have in common: the claims of a REPORT.md, and the results they are compared with.

The words of the text are counted and nobody reads them, so titles and messages must not praise or blame an explanation.
People may read reports instead (`docs/by-hand-reports.md`). Claims are compared with `results/*.json` as the student
committed them; the programs are not run again for this: a bug in one already costs points in its own criterion.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gradebox.run.assertions import CheckFailed, require, require_equal
from gradebox.run.submission import Submission

MINIMUM_PROSE_WORDS = 60
MINIMUM_DIFFERENT_WORDS = 30
"""Among them. Sixty words of any text have some 45."""

Kinds: TypeAlias = Mapping[str, tuple[type, ...]]
"""The claims a report must make, and the types that each may have."""
Claims: TypeAlias = dict[str, Any]
"""The claims of a report by name, each of one of its types: what they are, each lab's `Kinds` say."""
Document: TypeAlias = dict[str, Any]
"""A results file as a program wrote it, or as somebody changed it: whatever JSON there is below its two keys."""


_NAMES: Mapping[type, str] = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}
_LETTER = re.compile(r"[^\W_\u115f\u1160\u3164\uffa0]")
"""A letter or a digit. Unicode's four letters without ink are none."""
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_LINK_DEFINITION = re.compile(
    r"""^ {0,3}\[[^\]\n]{1,999}\]:[ \t]*\n?[ \t]*\S+"""
    r"""(([ \t]+|[ \t]*\n[ \t]*)("[^"]{0,999}"|'[^']{0,999}'|\([^()]{0,999}\)))?[ \t]*$""",
    re.MULTILINE,
)
_CLAIMS_HINT = (
    "Copy the number from the files in results/, which is what was expected. Copy it "
    "again whenever you have run a program again."
)


def explained(judge: Callable[[Submission], None]) -> Callable[[Submission], None]:
    """A judge of a report whose failures say where the expected numbers come from, unless they say something better."""

    @functools.wraps(judge)
    def wrapper(submission: Submission) -> None:
        try:
            judge(submission)
        except CheckFailed as error:
            raise CheckFailed(error.message, error.hint or _CLAIMS_HINT) from None
        except (ArithmeticError, RecursionError) as error:  # numbers and nesting that only a file made by hand has
            raise CheckFailed(
                f"the results next to the report cannot be computed with ({type(error).__name__})",
                "Run the lab's program again, and leave what it writes as it is.",
            ) from None

    return wrapper


def require_device(claimed: object, provenance: Mapping[str, object]) -> None:
    """Fail unless the device is that of the results, as their file names it or as the program printed it."""
    name = str(claimed).removeprefix("virtual ").removesuffix(" (simulated)")
    require_equal(name, provenance.get("device_name"), what="claim device")


def claims(submission: Submission, lab: str, kinds: Kinds, *, task: str, write: str) -> Claims:
    """The claims of the lab's REPORT.md; fails unless all are made, with the right types, next to enough words.

    Args:
        submission: whose report.
        lab: the lab's folder, "lab1_gpu_basics".
        kinds: the claims that must be there.
        task: the task's number, for the message.
        write: what the text should explain, for the hint.
    """
    text = submission.read_text(f"{lab}/REPORT.md")
    if text is None:
        raise CheckFailed("REPORT.md is missing", "Copy the template back from the course and fill it in.")
    blocks = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    require(len(blocks) == 1, f"REPORT.md has {len(blocks)} ```toml blocks, expected the template's one")
    try:
        made = tomllib.loads(blocks[0]).get("claims", {})
    except tomllib.TOMLDecodeError as error:
        raise CheckFailed(f"the claims in REPORT.md are not valid TOML: {error}") from None
    unfilled = [name for name in kinds if name not in made or made[name] == ""]
    if len(unfilled) == len(kinds):
        raise CheckFailed(
            f"Task {task} is open: fill in the {len(kinds)} claims of {lab}/REPORT.md",
            "Run the lab's programs, then copy their numbers into the [claims] block.",
            answered=False,
        )
    require(
        not unfilled,
        f"{len(unfilled)} of {len(kinds)} claims are still open in REPORT.md, the first is {', '.join(unfilled[:1])}",
        "Run the lab's programs, then copy their numbers into the [claims] block.",
    )
    for name, types in kinds.items():
        value = made[name]
        right = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        require(right, f"claim {name}: saw {value!r}, expected {_called(types)}", _type_hint(value))
    words = _words(_prose(text))
    require(
        len(words) >= MINIMUM_PROSE_WORDS,
        f"REPORT.md has {len(words)} words of text outside headings, comments and code, expected at least "
        f"{MINIMUM_PROSE_WORDS}",
        f"Write {write}. This check counts the words, and does not judge what they say.",
    )
    require(
        len(set(words)) >= MINIMUM_DIFFERENT_WORDS,
        f"REPORT.md has {len(words)} words of text, of which {len(set(words))} are different, expected at least "
        f"{MINIMUM_DIFFERENT_WORDS}",
        f"Write {write}, in sentences of your own.",
    )
    return dict(made)


def _called(types: tuple[type, ...]) -> str:
    return " or ".join(_NAMES[kind] for kind in types if not (kind is int and float in types))


def _type_hint(value: object) -> str:
    if isinstance(value, str):
        return "write numbers, true and false without quotes, as in 30.9; units and percent signs do not belong to them"
    return "the comment behind the claim says what it must be"


def results(submission: Submission, lab: str, name: str) -> Document:
    """A results file as it was committed: `provenance` is an object, `results` a list with something in it."""
    text = submission.read_text(f"{lab}/results/{name}")
    if text is None:
        raise CheckFailed(f"results/{name} is missing", "Run the lab's programs, which write it.")
    try:
        document = json.loads(text)
        rows, provenance = document["results"], document["provenance"]
    except (ValueError, KeyError, TypeError):
        raise CheckFailed(f"results/{name} is damaged", "Run the program that writes it again.") from None
    require(isinstance(provenance, dict) and isinstance(rows, list) and bool(rows), f"results/{name} holds no results")
    return dict(document)


def _words(text: str) -> list[str]:
    """The letters and digits of each word, so that neither marks nor invisible characters make a word."""
    return [word for part in text.casefold().split() if (word := "".join(_LETTER.findall(part)))]


def _prose(text: str) -> str:
    """A Markdown text as a page shows it, without fenced blocks, headings, comments and what links refer to.

    Each character is looked at a few times at most.
    """
    parts = text.split("<!--")
    text = parts[0] + "".join(part.partition("-->")[2] for part in parts[1:])
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence) and not line[opened.end() :].strip():
                fence = ""
        elif opened:
            fence = opened[1]
        elif not line.startswith("#"):
            kept.append(line)
    return _LINK_DEFINITION.sub("", "\n".join(kept))
