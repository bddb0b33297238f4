"""Judges the command of an image: who is process 1, which Python that is, and whether it finds train.py."""

from __future__ import annotations

import posixpath
import re
import shlex

from gradebox.run.assertions import CheckFailed, require
from grader.container.checks.dockerfile import Dockerfile, Instruction, assignments
from grader.container.checks.words import commands, options, program

HINT = 'CMD ["python", "train.py"]'
TRAIN_OPTIONS = {"--data-dir", "--model-dir", "--epochs", "--batch-size", "--amp", "--offline"}
"""Of the given train.py; argparse also takes their beginnings."""
_PYTHON = re.compile(r"python3?(?:\.\d+)?")
_PYTHON_SWITCH = re.compile(r"-[uBEIOsSv]+")
_SHELLS = {"sh", "bash", "dash", "ash"}
_INITS = {"tini", "dumb-init", "/nvidia_entrypoint.sh", "/opt/nvidia/nvidia_entrypoint.sh"}
"""They hand signals on, and start what follows."""
_UNHEARD = {"SIGKILL", "KILL", "9"}


def require_command(dockerfile: Dockerfile) -> None:
    """The container's first process is the Python that has the packages, and it gets train.py and signals."""
    words = _first_process(dockerfile)
    while words and posixpath.basename(words[0]) in {posixpath.basename(init) for init in _INITS}:
        words = [word for number, word in enumerate(words[1:]) if number or word != "--"]
    words = _without_shell(words)
    interpreter = words[0] if words else ""
    require(bool(_PYTHON.fullmatch(posixpath.basename(interpreter))), f"the command is {words}", HINT)
    rest = words[1:]
    while rest and _PYTHON_SWITCH.fullmatch(rest[0]):
        rest = rest[1:]
    script = rest[0] if rest else ""
    require(posixpath.basename(script) == "train.py", f"the command is {words}", HINT)
    _require_script(dockerfile, script)
    _require_options(rest[1:])
    _require_interpreter(dockerfile, interpreter)
    for stop in dockerfile.in_image("STOPSIGNAL"):
        heard = stop.arguments.strip().upper() not in _UNHEARD
        require(heard, f"line {stop.line}: nobody hears {stop.arguments}, the training is cut off", "leave it out")


def start_words(dockerfile: Dockerfile) -> list[str]:
    """ENTRYPOINT and CMD as the image's configuration lists them; empty if the Dockerfile has neither."""
    words: list[str] = []
    for instruction in _start_instructions(dockerfile):
        words += instruction.exec_form() or ["/bin/sh", "-c", instruction.arguments]
    return words


def _first_process(dockerfile: Dockerfile) -> list[str]:
    """The words of ENTRYPOINT and CMD as the engine joins them; both need the form that starts no shell."""
    instructions = _start_instructions(dockerfile)
    require(bool(instructions), "the image has no command", HINT)
    words: list[str] = []
    for instruction in instructions:
        listed = instruction.exec_form()
        if listed is None:
            name = instruction.name
            hint = f'{name} ["python", "train.py"]: else a shell is process 1, and hands no signal on'
            raise CheckFailed(f"{name} has the shell form: {instruction.arguments}", hint)
        words += listed
    return words


def _start_instructions(dockerfile: Dockerfile) -> list[Instruction]:
    """The ENTRYPOINT and the CMD that count, in this order."""
    said: dict[str, Instruction] = {}
    for stage in dockerfile.image:
        own = {one.name: one for one in stage.instructions if one.name in ("ENTRYPOINT", "CMD")}
        if "ENTRYPOINT" in own:  # resets the command of the stage below
            said.pop("CMD", None)
        said |= own
    return [said[name] for name in ("ENTRYPOINT", "CMD") if name in said]


def _without_shell(words: list[str]) -> list[str]:
    if not words or posixpath.basename(words[0]) not in _SHELLS:
        return words
    line = words[2] if len(words) > 2 and words[1] == "-c" else ""
    try:
        inner = shlex.split(line)
    except ValueError:
        inner = line.split()
    handed = inner[:1] == ["exec"]
    require(handed, f"the command is {words}: a shell is process 1, and hands no signal on", HINT)
    return inner[1:]


def _require_script(dockerfile: Dockerfile, script: str) -> None:
    """The script stands where a COPY put it, seen from the last WORKDIR."""
    at = "/"
    places = []
    whole = False
    for instruction in dockerfile.in_image("WORKDIR", "COPY", "ADD"):
        words = instruction.words()
        if instruction.name == "WORKDIR":
            at = posixpath.join(at, instruction.arguments.strip("\"'"))
            continue
        target = posixpath.join(at, words[-1]) if words else at
        sources = [posixpath.basename(source.rstrip("/")) for source in words[:-1]]
        whole |= "--from=" in instruction.arguments
        folder = words[-1:] != [] and (words[-1].endswith(("/", ".")) or len(sources) > 1 or posixpath.isabs(target))
        names = [target] if target.endswith("train.py") else [posixpath.join(target, "train.py")] if folder else []
        if any(source in ("train.py", "", ".", "*", "*.py") for source in sources):
            places += [posixpath.normpath(name) for name in names]
    wanted = posixpath.normpath(posixpath.join(at, script))
    # What another stage gathered comes as a folder, whose names this does not follow.
    require(
        wanted in places or whole,
        f"the command starts {wanted}, and train.py lies at {', '.join(places) or 'no place that COPY names'}",
        "COPY it below the WORKDIR in which the command runs, or name its whole path",
    )


def _require_options(words: list[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("-"):
            value = word.replace(".", "").replace("/", "").isalnum()
            require(value and word != "train.py" and "python" not in word, f"train.py gets {word!r}", HINT)
            continue
        evaluates = len(name) > 3 and "--evaluate".startswith(name)
        require(not evaluates, "the command evaluates a saved model and trains none", HINT)
        known = any(option.startswith(name) for option in TRAIN_OPTIONS) and len(name) > 3
        require(known, f"train.py has no option {word!r}", 'each word by itself: "--epochs", "50"')
    positions = [number for number, word in enumerate(words) if not word.startswith("-")]
    for number in positions:
        takes = number > 0 and words[number - 1].startswith("--") and "=" not in words[number - 1]
        require(takes and words[number - 1] not in ("--amp", "--offline"), f"train.py gets {words[number]!r}", HINT)


def _require_interpreter(dockerfile: Dockerfile, interpreter: str) -> None:
    """Where packages lie in a virtual environment, the command's Python is that one's."""
    environments = set()
    for run in dockerfile.anywhere("RUN"):
        for command in commands(run.arguments):
            words = program(command)
            if "venv" in words[1:] and "install" not in words:
                made = options(words[words.index("venv") + 1 :])[1]
                environments |= {made[-1].rstrip("/")} if made else set()
    if not environments:
        return
    path = ""
    for instruction in dockerfile.in_image("ENV"):
        path = assignments(instruction).get("PATH", path)
    chosen = posixpath.dirname(interpreter)
    places = [chosen] if chosen else path.split(":")
    wanted = [f"{environment}/bin" for environment in environments if environment.startswith("/")]
    require(
        not wanted or any(place in wanted for place in places),
        f"{interpreter} is not the Python of {', '.join(sorted(environments))}, which has the packages",
        f"ENV PATH={sorted(environments)[0]}/bin:$PATH, or name that Python in the command",
    )
    if not chosen:
        kept = "$PATH" in path or "${PATH}" in path or {"/usr/bin", "/bin"} & set(places)
        require(bool(kept), f"PATH is {path}: the system's own programs are gone", f"ENV PATH={places[0]}:$PATH")
