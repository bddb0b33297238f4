"""The commands of a RUN and their words, as far as a shell's line can be read without a shell."""

from __future__ import annotations

import contextlib
import json
import re
import shlex

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)")
_RUN_OPTION = re.compile(r"^(?:\s*--(?:mount|network|security)=\S+)+")
_SHELL_LINE = re.compile(r"(?:\S*/)?(?:ba|da|a)?sh -[el]*c")
_TAKE_A_WORD = {"-u", "--uid", "-g", "--gid", "--group", "-o", "--owner", "-m", "--mode", "-s", "--shell"}
"""Options of mkdir, install, useradd and groupadd whose value may be the next word."""
_SWITCHES = {"useradd": {"-m"}, "adduser": {"-m"}}
"""What is a switch there, and takes a word elsewhere."""
_BEFORE = {"sudo", "exec", "env", "nice", "time"}
_KEYWORDS = {"if", "then", "else", "elif", "do", "while", "until", "{", "(", "!"}
_PART = re.compile(r"(&&|\|\||[;|\n]+)")
_COMMENT = re.compile(r"#[^\n]*")
_SUCCEEDS, _FAILS = {"true", ":", "echo", "printf"}, {"false"}
_ASKS = {"test", "[", "[[", "id", "getent", "command", "which", "type", "hash", "grep", "stat", "ls", "dpkg"}
"""What fails without anything being wrong. A step that fails otherwise ends a build, and is not counted on."""


def commands(text: str) -> list[list[str]]:
    """The words of each command that a RUN joins with `&&`, `||`, `;` or a pipe, quotes taken off."""
    text = _RUN_OPTION.sub("", text)
    with contextlib.suppress(ValueError):
        if isinstance(listed := json.loads(text), list):
            return [[str(word) for word in listed]]
    word_lists = _reached(text)
    # `bash -c "pip install ..."` is what it says.
    return [
        words[2].split() if _SHELL_LINE.fullmatch(" ".join(words[:2])) and words[2:] else words for words in word_lists
    ]


def _reached(text: str) -> list[list[str]]:
    """The words of each command, without those that no run comes to: behind `true ||`, `false &&` or `exit`."""
    parts = _parts(text)
    lists: list[list[str]] = []
    ended: bool | None = None
    """Whether what came before has succeeded; None: nobody knows."""
    has_asked = False
    for joint, part in zip(["", *parts[1::2]], parts[::2], strict=True):
        words = _words(part)
        stops = {"&&": False, "||": True}.get(joint)
        if not words or (stops is not None and ended is stops):
            continue
        lists.append(words)
        name = (program(words) or [""])[0]
        has_asked = name in _ASKS or (has_asked and stops is not None)
        is_sure = stops is None or ended is not None or (joint == "&&" and name in _SUCCEEDS and not has_asked)
        if name == "exit" and is_sure:
            break
        own = True if name in _SUCCEEDS else False if name in _FAILS else None
        # `unknown && false` fails, and `unknown || true` succeeds.
        ended = own if is_sure or own is stops else None
    return lists


def _parts(text: str) -> list[str]:
    """The commands of a line, and between them what joins them: not what stands in quotes, nor in a comment."""
    parts, quote, place = [""], "", 0
    while place < len(text):
        joint = None if quote else _PART.match(text, place)
        if joint is not None:
            parts += [joint[0], ""]
            place = joint.end()
            continue
        if not quote and _COMMENT.match(text, place) and (not parts[-1] or parts[-1][-1].isspace()):
            place = _COMMENT.match(text, place).end()  # type: ignore[union-attr]
            continue
        taken = text[place : place + 2] if text[place] == "\\" and quote != "'" else text[place]
        if taken in ("'", '"'):
            quote = "" if quote == taken else quote or taken
        parts[-1] += taken
        place += len(taken)
    return [""] if quote else parts  # no shell runs a line whose quotes do not end


def _words(text: str) -> list[str]:
    """A command's words, without a comment behind them."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return words[: next((place for place, word in enumerate(words) if word.startswith("#")), None)]


def shell_variables(words: list[str]) -> dict[str, str]:
    """What a command that only assigns, or `export`, gives to the commands after it."""
    words = words[1:] if words[:1] == ["export"] else words
    matches = [_ASSIGNMENT.fullmatch(word) for word in words]
    return {match["name"]: match["value"] for match in matches if match} if all(matches) else {}


def assigned(words: list[str]) -> dict[str, str]:
    """The variables that stand before a program, or that `export` sets."""
    variables = {}
    for word in words[1:] if words[:1] == ["export"] else words:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            break
        variables[match["name"]] = match["value"]
    return variables


def program(words: list[str]) -> list[str]:
    """The command without the variables before it, and without `sudo` and its kin."""
    rest = list(words)
    while rest and (_ASSIGNMENT.fullmatch(rest[0]) or rest[0] in _BEFORE):
        rest.pop(0)
    return rest


def started(words: list[str]) -> list[str]:
    """The command without a shell's keywords, variables and `sudo` before it."""
    rest = list(words)
    while rest and (rest[0] in _KEYWORDS or program(rest) != rest):
        rest = rest[1:] if rest[0] in _KEYWORDS else program(rest)
    return rest


def options(words: list[str], of: str = "") -> tuple[dict[str, str], list[str]]:
    """The options with their values, empty for a switch, and the words that are none."""
    values: dict[str, str] = {}
    plain: list[str] = []
    waiting = ""
    for word in words:
        if waiting:
            values[waiting], waiting = word, ""
        elif word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            values[name] = value
        elif word.startswith("-") and len(word) > 1:
            values[word] = ""
            # Of letters behind one dash the last may take a word: `mkdir -pm 777`.
            last = word if word.startswith("--") or of == "chmod" else "-" + word[-1]
            waiting = last if last in _TAKE_A_WORD - _SWITCHES.get(of, set()) else ""
        else:
            plain.append(word)
    return values, plain
