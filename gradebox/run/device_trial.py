"""Can this machine grade at all? A probe of our own is asked before any code of a submission runs.

When the sandbox cannot fork, or PyTorch does not compute, every check would fail for that: better no grade than a
bad one that the student has not earned.
"""

from __future__ import annotations

from gradebox.sandbox import CourseFault, Request, Sandbox, SandboxError
from gradebox.sandbox.probe_loader import OWN

_LEFT, _RIGHT = [[1.0, 2.0], [3.0, 4.0]], [[0.5, -1.0], [2.0, 0.25]]
_PRODUCT = [[4.5, -0.5], [9.5, -2.0]]


def problem(sandbox: Sandbox, probe: str, device: str, fix: str = "") -> str:
    """Why nothing can be graded on `device`, in one sentence, and what fixes it; empty when all is well.

    Asked is `probe`, the course's, or one of the engine's own where that is empty: it multiplies two matrices. A
    sandbox that has passed on a device is not asked again: in a class it serves many submissions. `fix` is what the
    course says of machines that cannot grade.
    """
    if device in sandbox.tried:
        return ""
    then = f"; {fix}" if fix else ""
    try:
        reply = sandbox.run(
            Request(probe or OWN, params={"left": _LEFT, "right": _RIGHT}, device=device, student=False)
        )
    except CourseFault as error:
        return f"the course cannot be graded with: {error}"
    except SandboxError as error:
        return f"this machine cannot run checks: {error}{then}"
    if reply.kind != "ok":
        why = ": ".join(part for part in (reply.error or reply.kind, reply.message) if part)
        return f"a trial on {device} failed before any code of the submission ran: {why}{then}"
    if reply.value != {"product": _PRODUCT}:
        return f"a product of two small matrices is wrong on {device}: {reply.value}{then}"
    sandbox.tried.add(device)
    return ""


def forget(sandbox: Sandbox) -> None:
    """Ask again the next time: something has failed since."""
    sandbox.tried.clear()
