"""Faults on request, to show that the test finds and names them. A run with one can never pass.

Not for anybody's cluster at work: `--inject` is for tests and for a look at what a failure looks like.
"""

import os
import signal
from dataclasses import dataclass

FAULTS = {
    "wrong-result": "one element of a matrix product is wrong",
    "bad-memory": "one bit of the GPU's memory flips",
    "wrong-gradient": "one element of a gradient is wrong before the all-reduce",
    "slow-backward": "the backward pass needs four times as long",
    "throttles": "the GPU slows down for heat in the second half of --thorough",
    "skips": "the process leaves one collective out",
    "nan": "the loss is no number",
    "slow-pair": "sends and receives between two ranks need four times as long",
    "wrong-collective": "one element of a collective's result is wrong",
    "diverged": "one parameter differs after training",
    "slow": "the GPU needs four times as long for everything it computes",
    "unsteady": "every third product takes four times as long",
    "dead": "the process is killed before a collective",
    "hung": "the process stands still before a collective",
    "hot": "the GPU is above its limit after the run",
    "lost": "the driver has lost the GPU after the run",
    "oom": "the training runs out of memory",
}
SLOW_FACTOR = 4


@dataclass(frozen=True)
class Fault:
    """One fault of one rank."""

    kind: str
    rank: int

    def __str__(self) -> str:
        return f"{self.kind} at rank {self.rank}"


def parse_fault(text: str) -> Fault:
    """Argument type: "slow:1" is the fault "slow" at rank 1; without a number it is at rank 0."""
    kind, _, rank = text.partition(":")
    if kind not in FAULTS or (rank and not rank.isdecimal()):
        raise ValueError(f"{text!r} is not FAULT or FAULT:RANK with a fault of {', '.join(FAULTS)}")
    return Fault(kind, int(rank or 0))


def die() -> None:
    """End this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def stand_still() -> None:
    """Wait for ever, by a clock that nobody can simulate."""
    while True:
        signal.pause()
