"""What the criteria of the exercise do in the same way: ranks on virtual GPUs, what they sent each other, nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import require, require_arrays_close
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.sharding.shared.cases import Collective, RefusalsReply

Reply = TypeVar("Reply")

RANKS = "vgpu:T4"
"""Where ranks run, even if the grading's own device is a real one: few machines have four, and their memory and
messages are counted there."""
MIXED = "vgpu:A100-80GB"
"""A card that computes in bfloat16."""
_SLOW = Limits(wall_seconds=240.0, cpu_seconds=240.0)
"""Ranks wait for each other at every collective: the slowest probe takes 4 s on a quiet machine, 40 on a busy one."""


def on_ranks(submission: Submission, inputs: ProbeInputs[Reply], ranks: int, *, device: str = RANKS) -> list[Reply]:
    """What a probe of this exercise observed on each rank of a virtual machine."""
    return submission.rank_probe(inputs, ranks, device=device, limits=_SLOW)


def reference(submission: Submission, inputs: ProbeInputs[Reply]) -> Reply:
    """What one virtual GPU makes of the same without sharding and without the submission."""
    return submission.probe(inputs, device=RANKS, student=False, limits=_SLOW)


def require_kept_here(what: str, elsewhere: Sequence[int], copied_bytes: int, most: int) -> None:
    """Fail if a rank keeps something on another rank's GPU, or copies more than `most` bytes to the host."""
    require(
        not any(elsewhere),
        f"{what}: takes {max(elsewhere, default=0):,} bytes on another rank's GPU, expected none",
        "each rank has one GPU, its own",
    )
    require(
        copied_bytes <= most,
        f"{what}: copies {copied_bytes:,} bytes from its GPU to the host, expected {most:,} at most",
        "what is a rank's share stays on its GPU, and what is not is nowhere else on this rank",
    )


def judge_refusals(replies: Sequence[RefusalsReply]) -> None:
    """Fail unless calls that make no sense raise a ValueError on every rank, and none that makes sense does."""
    for rank, reply in enumerate(replies):
        for call, error in reply.calls.items():
            require(
                error == "ValueError",
                f"{call} raised {error or 'nothing'} on rank {rank}, expected a ValueError",
                "see Raises in its docstring",
            )
        for call, error in reply.sensible.items():
            require(
                error == "",
                f"{call} raised {error} on rank {rank} although it makes sense",
                "refuse what the docstring names under Raises, and nothing else",
            )


def require_weights(observed: Array, expected: NDArray[np.float64], *, relative: float, what: str, hint: str) -> None:
    """Fail unless weights are right to within `relative` of the largest of them."""
    atol = relative * float(np.abs(expected).max())
    require_arrays_close(observed, expected, rtol=0, atol=atol, what=what, hint=hint)


def kind_of(collective: Collective) -> str:
    """ "AllReduce", "AllGather", "ReduceScatter" or "Broadcast", by the name of NCCL's kernel."""
    return collective["name"].split("_")[1]


def in_words(collectives: Sequence[Collective]) -> str:
    """What ranks sent each other, for people: "2 x AllGather (1,024 bytes), 1 x Broadcast (64 bytes)"."""
    kinds: dict[str, list[int]] = {}
    for collective in collectives:
        kinds.setdefault(kind_of(collective), []).append(collective["bytes"])
    parts = [f"{len(sizes)} x {kind} ({sum(sizes):,} bytes)" for kind, sizes in kinds.items()]
    return ", ".join(parts) or "nothing"


def total(collectives: Sequence[Collective], *kinds: str) -> int:
    """Bytes of the collectives of these kinds; of all, if none is named."""
    return sum(collective["bytes"] for collective in collectives if not kinds or kind_of(collective) in kinds)
