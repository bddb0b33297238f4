"""Who may write to a folder of the image: what RUN, COPY, WORKDIR and VOLUME do to its owner and mode, in their order.

Reads text, runs nothing. Knows `mkdir`, `install`, `chown`, `chgrp` and `chmod`, and the users that `useradd` and its
kin make; what a script does that the Dockerfile calls it does not see.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace

from grader.container.shared.checks.dockerfile import Dockerfile, Instruction
from grader.container.shared.checks.words import commands, options, program, shell_variables

ROOT = {"root", "0"}
FIRST_UIDS = {"1000", "1001"}
"""What `useradd` without a number gives: 1001 where the base image has a user already, as Ubuntu's since 24.04."""
GIVEN_USERS = {"ubuntu": "1000", "nobody": "65534", "www-data": "33"}
"""That base images bring along."""
_USER_MAKERS = {"useradd", "adduser"}
_OCTAL = re.compile(r"[0-7]{3,4}")


@dataclass
class Folder:
    """A folder of the image as far as the Dockerfile says."""

    path: str
    made: bool = False
    owner: str = "0"
    group: str = "0"
    others_write: bool = False
    group_writes: bool = False
    late: int | None = None
    """The first line that changed it after a VOLUME had closed it: builders may throw that away, as buildah does."""
    refused: int | None = None
    """The first line that would have changed it as an ordinary user, who may not."""
    users: dict[str, str] = field(default_factory=lambda: dict(GIVEN_USERS))
    """Names, and their numbers; empty where the Dockerfile leaves the number to `useradd`."""

    groups: dict[str, str] = field(default_factory=dict)
    """The group that a user was given, where it is not one of its own."""

    def state(self) -> tuple[object, ...]:
        """What can change."""
        return self.made, self.owner, self.group, self.others_write, self.group_writes

    def number(self, name: str) -> str:
        """The number of a user; the name itself where it is not known."""
        return "0" if name in ROOT else self.users.get(name) or name

    def is_of(self, user: str) -> bool:
        """Whether it belongs to the user of this name or number."""
        mine, theirs = self.number(user), self.number(self.owner)
        if mine == theirs:
            return True
        # `useradd trainer`, `chown trainer`, `USER 1000`: nobody wrote the number down, and it is the usual one.
        unwritten = {name for name, uid in self.users.items() if not uid}
        return (theirs in unwritten and mine in FIRST_UIDS) or (mine in unwritten and theirs in FIRST_UIDS)

    def writable_for(self, user: str) -> bool:
        """Whether the user of a USER instruction, `NAME` or `NAME:GROUP`, may write here."""
        name, _, group = user.partition(":")
        if name in ROOT or self.others_write or self.is_of(name):
            return True
        groups = {group} if group else self._groups(name)
        return self.group_writes and bool(groups & {self.group, self.number(self.group)})

    def _groups(self, user: str) -> set[str]:
        """The names and numbers that the user's own group may have."""
        known = {name for name, uid in self.users.items() if user in (name, uid) or (not uid and user in FIRST_UIDS)}
        if not known:  # a number that nobody has runs in root's group, as OpenShift wants it
            return ROOT
        groups = {self.groups[name] for name in known if name in self.groups}
        return groups or {user} | known | {self.number(name) for name in known}


def follow(dockerfile: Dockerfile, path: str) -> Folder:
    """What has become of the folder at the end; after a VOLUME of it, what it was there."""
    folder = Folder(path)
    closed: Folder | None = None
    at, user = "/", "root"
    for instruction in dockerfile.in_image("RUN", "COPY", "ADD", "WORKDIR", "VOLUME", "USER"):
        before = folder.state()
        if instruction.name == "USER":
            user = instruction.arguments.split(":")[0]
        elif instruction.name == "WORKDIR":
            at = posixpath.normpath(posixpath.join(at, instruction.arguments.strip("\"'")))
            folder.made |= at == path
        elif instruction.name == "VOLUME" and path in instruction.words():
            folder.made = True
            closed = closed or replace(folder)
        elif instruction.name == "RUN":
            _run(folder, instruction, user, at)
        elif instruction.name in ("COPY", "ADD"):
            _copy(folder, instruction)
        if closed is not None and instruction.name != "VOLUME" and folder.state() != before:
            closed.late = closed.late or instruction.line
    if closed is None:
        return folder
    closed.users, closed.groups = folder.users, folder.groups
    return closed


def _copy(folder: Folder, copy: Instruction) -> None:
    words = copy.words()
    if len(words) < 2 or words[-1].rstrip("/") != folder.path:
        return
    owner = re.search(r"--chown=(\S+)", copy.arguments)
    if not folder.made and owner:
        folder.owner, _, group = owner[1].partition(":")
        folder.group = group or folder.owner
    folder.made = True


def _run(folder: Folder, run: Instruction, user: str, at: str) -> None:
    variables: dict[str, str] = {}
    for command in commands(run.arguments):
        variables |= shell_variables(command)
        words = program([variables.get(word.strip("${}\"'"), word) if "$" in word else word for word in command])
        if not words:
            continue
        name = words[0].rpartition("/")[2]
        flags, plain = options(words[1:], name)
        if name == "cd" and plain:
            at = posixpath.normpath(posixpath.join(at, plain[0]))
        if name in _USER_MAKERS and plain:
            uid = flags.get("--uid") or flags.get("-u") or ""
            who = next((word for word in reversed(plain) if not word.isdecimal()), plain[-1])
            folder.users[who] = uid
            if group := flags.get("--gid") or flags.get("-g"):
                folder.groups[who] = "0" if group in ROOT else group
        touched = any(_reaches(posixpath.join(at, word), folder.path, flags) for word in plain)
        if not touched or name not in ("mkdir", "install", "chown", "chgrp", "chmod"):
            continue
        if user not in ROOT and not (folder.made and folder.is_of(user)):
            folder.refused = folder.refused or run.line
            continue
        _change(folder, name, flags, plain, user)


def _reaches(word: str, path: str, flags: dict[str, str]) -> bool:
    """Whether a command about `word` is about the folder, also from above where it goes down."""
    target = posixpath.normpath(word.strip("\"'"))
    below = any(option in flags for option in ("-R", "--recursive", "-vR", "-Rv", "-hR", "-Rh"))
    braces = re.fullmatch(r"/\{([\w,-]+)\}", target)
    named = [f"/{part}" for part in braces[1].split(",")] if braces else [target]
    return any(path == place or (below and place != "/" and path.startswith(place + "/")) for place in named)


def _change(folder: Folder, name: str, flags: dict[str, str], plain: list[str], user: str) -> None:
    if name in ("mkdir", "install"):
        if not folder.made:
            folder.owner = folder.group = user if user not in ROOT else "0"
        folder.made = True
        folder.owner = flags.get("--owner") or flags.get("-o") or folder.owner
        folder.group = flags.get("--group") or flags.get("-g") or folder.group
        if mode := flags.get("--mode") or flags.get("-m"):
            _mode(folder, mode)
    elif name == "chown":
        owner, _, group = plain[0].strip("\"'").replace(".", ":").partition(":")
        folder.owner = owner or folder.owner
        folder.group = group or folder.group
    elif name == "chgrp":
        folder.group = plain[0]
    else:
        _mode(folder, plain[0])


def _mode(folder: Folder, mode: str) -> None:
    if _OCTAL.fullmatch(mode):
        folder.group_writes, folder.others_write = bool(int(mode[-2]) & 2), bool(int(mode[-1]) & 2)
        return
    for clause in mode.split(","):
        who, sign, what = re.match(r"([ugoa]*)([+=-]?)(.*)", clause).groups()  # type: ignore[union-attr]
        writes = "w" in what or what == "u"
        for letter, attribute in (("g", "group_writes"), ("o", "others_write")):
            if letter in who or "a" in who:
                if sign == "-" and writes:
                    setattr(folder, attribute, False)
                elif sign in ("+", "=") and (writes or sign == "="):
                    setattr(folder, attribute, writes)
