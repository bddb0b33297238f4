"""What it means for a check how a submission's process ended: a message, a hint, and where that was.

Not for running anything (`submission.py`), and not for exceptions of the check itself (`check_reports.py`).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

from gradebox.run import import_advice
from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.sandbox import DEFINED_AS, RankReply, Reply, Request

_BUSY_SECONDS = 0.3
_BUSY_SHARE = 0.6
"""A spinning process that gets less of a core than this is one of many."""
_STARVED_SHARE = 0.25
"""Of a run's time: what had to wait for a processor longer than that might have ended on a quiet machine."""
_WAITING_SHARE = 0.2
"""Of a run's time: code that used the processor less than that was waiting."""

MACHINE_WAS_BUSY = "the machine was busy"
SANDBOX_FAILED = "the sandbox failed"
WORTH_A_SECOND_LOOK = (MACHINE_WAS_BUSY, SANDBOX_FAILED)
"""In the message of a check that needs review for such a reason."""

_BLAME = (
    *("tampered", "stub", "import_error", "wrong_return", "error", "crashed", "memory", "output", "timeout"),
    *("unsupported", "probe_error", "ok"),
)
"""Of several ranks that failed, the most informative kind comes first."""
_LEFT_ALONE = ("onnection closed", "onnection reset", "imed out", "another rank failed", "remote process exited")
"""In the message of a rank that waited for another one."""

_APART_HINT = (
    "every rank must make the same collectives in the same order: look for one under `if rank == 0`, for ranks that "
    "have different numbers of batches, and for a rank that leaves before the others"
)

_IMPORT_HINT = "run the file once with Python {}.{}, which grades it; fix the first error".format(*sys.version_info)
"""An older or newer Python may have nothing against the file."""

_STUB_OF_A_CHILD = re.compile(r"NotImplementedError: (Task [^\n]*)")
"""In a process's message about another one that it has started."""
_LINE = re.compile(r"\S+:\d+")
"""A file and a line, as `RankReply.where` begins with them."""
_RAISED_HINT = "call the function yourself with arguments as its docstring describes them, and read the traceback"
_REFUSED_HINT = (
    "The docstring allows this call. If your code refuses it with `raise`, correct the condition before it. Otherwise "
    "call the function yourself with such arguments, and read the traceback."
)
_PARAMETERS_HINT = "its docstring describes every parameter: add what is missing, with the default that is named there"
_EXIT_HINT = "a function returns; sys.exit() belongs below `if __name__ == '__main__':`"
_INPUT_HINT = "nobody types anything while a submission is graded: input() belongs below `if __name__ == '__main__':`"
_HINTS = {"SystemExit": _EXIT_HINT, "EOFError": _INPUT_HINT, "ValueError": _REFUSED_HINT}
"""By the name of the exception."""
_MEMORY_HINT = "look for lists that grow, or arrays far larger than the docstring's shapes"
_TIMEOUT_HINT = "look for a loop that never ends, or for work far beyond what the docstring asks for"


_READ_ONLY = re.compile(r"\[Errno (?:30|13)\] [\w -]+: '/submission")
_RELATIVE = re.compile(r"No such file or directory: '(?![/~]|[A-Za-z]:)([^']+)'")


def _path_hint(text: str) -> str:
    """What to do about a file that code looked for, or wrote, where it cannot be; empty if it is something else."""
    if _READ_ONLY.search(text):
        return (
            "Your files can only be read while they are graded. Write into the current folder, or into one that "
            "tempfile.mkdtemp() makes."
        )
    match = _RELATIVE.search(text)
    if match is None:
        return ""
    name = match[1].rpartition("/")[2]
    return (
        f"Begin the path at your code: pathlib.Path(__file__).parent / {name!r}. Checks run in another folder, from "
        "which a path without a folder in front counts. Hand the file in next to the code."
    )


class ProbeFailed(NeedsReview):
    """A probe of ours failed without any part of the submission in it: perhaps nothing works on this machine."""


def problem(
    request: Request, reply: Reply, answer: RankReply, device: str, files: Callable[[], Sequence[str]]
) -> Exception:
    """What a check says if a rank of the reply has no result.

    Args:
        request: what was run.
        reply: what came back.
        answer: of the rank that explains the others.
        device: what people call the device.
        files: gives those of the submission, for advice on imports.
    """
    where = f" at {answer.where}" if answer.where else ""
    text = answer.message or ""
    line = _line_of(answer)
    match answer.kind:
        case "stub":
            return _open(text)
        case "error" if child := _STUB_OF_A_CHILD.search(text):
            return _open(child[1])
        case "import_error":
            fallback = _INPUT_HINT if answer.error == "EOFError" else _IMPORT_HINT
            hint = import_advice.hint(text, files()) or _path_hint(text) or fallback
            message = f"the module does not import: {text}{where}"
            return CheckFailed(
                message, hint, answered=False, evidence=f"A module does not import: {text.partition(chr(10))[0]}"
            )
        case "error":
            absent = import_advice.hint(text, files()) if answer.error == "ModuleNotFoundError" else ""
            hint = absent or _path_hint(text) or _HINTS.get(answer.error or "", _RAISED_HINT)
            if DEFINED_AS in text:
                hint = _PARAMETERS_HINT
            message = f"your code raised {answer.error}: {text}{where}"
            return CheckFailed(message, hint, answered=False, evidence=line and f"{answer.error} is raised at {line}")
        case "wrong_return":
            # There is nothing to judge, here and in checks that build on this one.
            hint = "the docstring says what it must return, and what must hold afterwards"
            return CheckFailed(text, hint, answered=False, evidence=text)
        case "crashed":
            return CheckFailed(
                f"the process ended before the check was over: {text}{where}",
                "os._exit, sys.exit and crashes of the interpreter end a check",
                answered=False,
                evidence=line and f"The process ends at {line}",
            )
        case "timeout" if was_starved(reply):
            return NeedsReview(f"no answer in time, and {MACHINE_WAS_BUSY}: {text}", "grade again on a quiet machine")
        case "timeout":
            message = f"no answer in time: {text}{where}; {_pace(reply, answer)}"
            return CheckFailed(
                message, _TIMEOUT_HINT, answered=False, evidence=line and f"The code does not end: it was at {line}"
            )
        case "memory":
            message = f"too much memory: {text}{where}"
            return CheckFailed(
                message, _MEMORY_HINT, answered=False, evidence=line and f"Too much memory is used at {line}"
            )
        case "output":
            return CheckFailed(f"too much output: {text}", "print less inside loops", answered=False)
        case "tampered":
            return CheckFailed(
                f"void: the submission reached into what the grader measures with ({text})",
                "do not patch clocks, torch or the grader, and measure instead of asking the virtual GPU",
                answered=False,
            )
        case "unsupported":
            return NeedsReview(f"the {device} cannot run this: {text}{where}", "grade it on a real GPU, or by hand")
    return ProbeFailed(f"the probe {request.probe} itself failed: {answer.error}: {text}{where}", COURSE_IS_WRONG)


COURSE_IS_WRONG = "a mistake of the course, not of the submission: fix it if the course is yours, else report it"
"""The hint where a check or a probe itself failed."""


def _line_of(answer: RankReply) -> str:
    """The line at which a rank's code ended, without the arguments of the call; empty if it is not known."""
    place = _LINE.search(answer.where or "")
    return place[0] if place else ""


def left_alone(answer: RankReply) -> bool:
    """Whether this rank says no more than that another one did not come."""
    return any(words in answer.message for words in _LEFT_ALONE)


def timed_out(answer: RankReply) -> bool:
    """Whether time ran out: ours, or that of a collective in which this rank waited."""
    return answer.kind == "timeout" or (answer.kind in ("error", "probe_error") and "imed out" in answer.message)


def blame(answer: RankReply) -> tuple[bool, int]:
    """Sorts the rank that failed first before those that failed because of it."""
    return left_alone(answer), _BLAME.index(answer.kind)


def did_not_meet(reply: Reply) -> Exception:
    """Why there is no result although no rank did anything wrong for itself: they waited for each other."""
    ranks, stories = reply.ranks, []
    for rank, answer in enumerate(ranks):
        at = f" at {answer.where}" if answer.where else ""
        if answer.kind == "ok":
            stories.append(f"rank {rank} was done")
        elif timed_out(answer):
            stories.append(f"rank {rank} was still{at or ' busy'} when time was up")
        else:
            stories.append(f"rank {rank} lost a connection{at}")
    text = f"the ranks did not meet: {', '.join(stories)}"
    if any(answer.kind == "timeout" for answer in ranks) and was_starved(reply):
        return NeedsReview(f"{text}; and {MACHINE_WAS_BUSY}", "grade again on a quiet machine")
    lines = sorted({line for answer in ranks if (line := _line_of(answer))})
    return CheckFailed(
        text,
        _APART_HINT,
        answered=False,
        evidence=f"The ranks do not meet: they were at {', '.join(lines)}" if lines else "",
    )


def was_starved(reply: Reply) -> bool:
    """Whether what did not end in time lacked a processor for a good part of it, and so says little of the submission.

    Code that waits by itself, for a lock or in `time.sleep`, is not starved, however busy the machine is. Neither is
    code whose own threads take the processors from each other: together they had one for most of the time.
    """
    counted = [rank for rank in reply.ranks if rank.starved_seconds is not None]
    if not counted:
        return _machine_is_busy()
    return any(
        (rank.starved_seconds or 0.0) > _STARVED_SHARE * reply.seconds
        and rank.cpu_seconds < (1 - _STARVED_SHARE) * reply.seconds
        for rank in counted
    )


def _pace(reply: Reply, answer: RankReply) -> str:
    """Whether code that did not end was waiting or computing."""
    doing = "waiting" if answer.cpu_seconds < _WAITING_SHARE * reply.seconds else "computing"
    return f"your code was {doing} (processor time {answer.cpu_seconds:.1f} s of {reply.seconds:.1f} s)"


def _machine_is_busy() -> bool:
    """True when other work takes the core from us, so that a timeout says little about the submission.

    Measured, not read from the load average: that one still remembers what the submission itself had started.
    """
    started, used = time.monotonic(), time.process_time()
    while time.monotonic() - started < _BUSY_SECONDS:
        pass
    return time.process_time() - used < _BUSY_SHARE * (time.monotonic() - started)


def _open(text: str) -> CheckFailed:
    return CheckFailed(
        text or "this task is still open",
        "write what its docstring asks for, step by step where it has TODO steps",
        answered=False,
    )
