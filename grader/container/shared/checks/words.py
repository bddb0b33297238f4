"""The commands of a RUN and their words, as far as a shell's line can be read without a shell."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from dataclasses import dataclass, replace

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)")
_RUN_OPTION = re.compile(r"^(?:\s*--(?:mount|network|security)=\S+)+")
_SHELL_LINE = re.compile(r"(?:\S*/)?(?:ba|da|a)?sh -[el]*c")
_TAKE_A_WORD = {"-u", "--uid", "-g", "--gid", "--group", "-o", "--owner", "-m", "--mode", "-s", "--shell"}
"""Options of mkdir, install, useradd and groupadd whose value may be the next word."""
_SWITCHES = {"useradd": {"-m"}, "adduser": {"-m"}}
"""What is a switch there, and takes a word elsewhere."""
_BEFORE = {"sudo", "exec", "env", "nice", "time"}
_KEYWORDS = {"if", "then", "else", "elif", "do", "while", "until", "{", "(", "!"}
_CLOSING = {"fi", "done", "}", ")", "esac"}
_FUNCTION = re.compile(r"(?:function )?(?P<name>[\w-]+) ?\(\) ?\{?(?P<rest>.*)")
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
    """The words of each command, without those that no run comes to: behind `true ||`, `false &&` or `exit`, in a
    function that nobody calls, and where a condition is known to be false."""
    parts = _parts(text)
    pairs = _called([(joint, _words(part)) for joint, part in zip(["", *parts[1::2]], parts[::2], strict=True)])
    lists: list[list[str]] = []
    ended: bool | None = None
    """Whether what came before has succeeded; None: nobody knows."""
    has_asked = False
    blocks: list[_Block] = []
    for joint, words in pairs:
        stops = {"&&": False, "||": True}.get(joint)
        keywords, own_words = _keywords(words)
        for keyword in keywords:
            blocks = _entered(blocks, keyword, words, ended)
        if not words or (stops is not None and ended is stops) or any(block.is_dead for block in blocks):
            continue
        lists.append(words)
        name = (program(own_words) or [""])[0]
        has_asked = name in _ASKS or (has_asked and stops is not None)
        is_sure = stops is None or ended is not None or (joint == "&&" and name in _SUCCEEDS and not has_asked)
        is_sure = is_sure and all(block.runs for block in blocks)
        if is_sure and _ends_the_shell(own_words):
            break
        own = True if name in _SUCCEEDS else False if name in _FAILS else None
        own = own if own is None or "!" not in keywords else not own
        # `unknown && false` fails, and `unknown || true` succeeds.
        ended = own if is_sure or own is stops else None
    return lists


@dataclass(frozen=True)
class _Block:
    """An `if` or a loop, and whether what stands at this place of it runs; None: nobody knows."""

    kind: str
    runs: bool | None = None
    was_taken: bool | None = False
    """Whether an earlier branch of an `if` was."""

    @property
    def is_dead(self) -> bool:
        return self.runs is False


def _entered(blocks: list[_Block], keyword: str, words: list[str], ended: bool | None) -> list[_Block]:
    """The blocks that are open once a keyword has been read; `ended` is how the condition before it has."""
    above, own = blocks[:-1], blocks[-1] if blocks else _Block("")
    if keyword in ("if", "while", "until"):
        return [*blocks, _Block(keyword, True)]
    if keyword == "for":
        return [*blocks, _Block("for", "in" in words[:-1])]
    if keyword in ("fi", "done"):
        return above
    if keyword in ("elif", "else"):
        return [*above, replace(own, runs=_opposite(own.was_taken))]
    if keyword == "then":
        taken = ended if own.runs else own.runs
        return [*above, replace(own, runs=taken, was_taken=own.was_taken or taken)]
    if keyword == "do" and own.kind in ("while", "until"):
        return [*above, replace(own, runs=ended if own.kind == "while" else _opposite(ended))]
    return blocks


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def _keywords(words: list[str]) -> tuple[list[str], list[str]]:
    """The shell's keywords with which a command begins, and the rest."""
    place = 0
    while place < len(words) and (words[place] in _KEYWORDS or words[place] in _CLOSING):
        place += 1
    return (["for"], []) if words[:1] == ["for"] else (words[:place], words[place:])


def _ends_the_shell(words: list[str]) -> bool:
    """Whether nothing behind this command runs: `exit`, another program in the shell's place, or `set -n`."""
    if words[:1] == ["exec"]:
        return len(words) > 1 and not re.match(r"\d*[<>]", words[1])
    return words[:1] == ["exit"] or (
        words[:1] == ["set"] and any(word == "noexec" or re.fullmatch(r"-[a-z]*n[a-z]*", word) for word in words)
    )


def _called(pairs: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """All commands but those of a function that is not called behind it."""
    kept: list[tuple[str, list[str]]] = []
    place = 0
    while place < len(pairs):
        joint, words = pairs[place]
        if (match := _FUNCTION.match(" ".join(words))) is None:
            kept.append((joint, words))
            place += 1
            continue
        end = next(
            (at for at, (_, own) in enumerate(pairs[place:], place) if own[-1:] == ["}"] or own[:1] == ["}"]),
            len(pairs),
        )
        name = match["name"]
        if any(name in own for _, own in pairs[end + 1 :]):
            body = match["rest"].split()
            kept += [(joint, body)] * bool(body) + pairs[place + 1 : end]
        place = end + 1
    return kept


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
