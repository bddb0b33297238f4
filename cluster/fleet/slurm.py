"""Takes a node of Slurm out of service, with the reason, and puts back what this program took out.

A node that an operator drained, or drained again for a reason of their own, is left alone.
"""

import re
import subprocess

from cluster.fleet.actions import ActionError

MARK = "acceptance:"
"""How a reason of ours begins."""
MOST_CHARACTERS = 200
"""Of a reason; sinfo -R and the log show one line."""
_SECONDS = 30
_OUT = ("DRAIN", "DOWN", "FAIL")


def drain(node: str, reason: str) -> str:
    """Let running jobs end and start no more; what was done, in a line.

    Raises:
        ActionError: Slurm refused, or does not answer.
    """
    state, reason = _state(node)
    if any(word in state for word in _OUT) and not reason.startswith(MARK):
        return f"{node} is {state} already ({reason or 'no reason given'}): left as it is"
    text = f"{MARK} {reason}"[:MOST_CHARACTERS]
    _scontrol("update", f"nodename={node}", "state=drain", f"reason={text}")
    return f"drained {node}: {text}"


def resume(node: str) -> str:
    """Put a node back that this program drained; what was done, in a line.

    Raises:
        ActionError: as `drain`.
    """
    state, reason = _state(node)
    if "DRAIN" not in state:
        return f"{node} is {state}: nothing to put back"
    if not reason.startswith(MARK):
        return f"{node} was drained by somebody else ({reason or 'no reason given'}): left as it is"
    _scontrol("update", f"nodename={node}", "state=resume")
    return f"resumed {node}"


def _state(node: str) -> tuple[str, str]:
    """State and reason; the reason without the name and time that Slurm adds."""
    shown = _scontrol("show", "node", node)
    state = re.search(r"\bState=(\S+)", shown)
    reason = re.search(r"^\s*Reason=(.*?)(?: \[\S+@\S+\])?$", shown, re.MULTILINE)
    return state[1] if state else "", reason[1] if reason else ""


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ActionError(f"scontrol cannot be run ({error}): is it on the PATH, and does slurmctld answer?") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise ActionError(f"scontrol {arguments[0]}: {said[-1]} (it takes root or SlurmUser, and a slurm.conf)")
    return done.stdout
