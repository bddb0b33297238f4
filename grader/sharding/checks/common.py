"""What the criteria of the exercise ask in the same way: ranks on virtual GPUs, what they told each other, nonsense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import require, require_arrays_close
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox import Limits

RANKS = "vgpu:T4"
"""Where ranks run, also where the grading's own device is a real one: few machines have four, and their memory and
messages are counted there."""
MIXED = "vgpu:A100-80GB"
"""A card that computes in bfloat16."""
_SLOW = Limits(wall_seconds=240.0, cpu_seconds=240.0)
"""Ranks wait for each other at every collective: the slowest probe takes 4 s on a quiet machine, 40 on a busy one."""


def ask(submission: Submission, probe: str, ranks: int, *, device: str = RANKS, **inputs: Any) -> list[Seen]:
    """What a probe of this exercise saw on each rank of a virtual machine."""
    return submission.rank_probe(f"sharding.{probe}", ranks, device=device, limits=_SLOW, **inputs)


def truth(submission: Submission, probe: str, **inputs: Any) -> Seen:
    """What one virtual GPU makes of the same without sharding and without the submission."""
    return submission.probe(f"sharding.whole.{probe}", device=RANKS, student=False, limits=_SLOW, **inputs)


def judge_refusals(everybody: Sequence[Seen]) -> None:
    """Fail unless calls that make no sense raise a ValueError on every rank, and none that makes sense does."""
    for rank, seen in enumerate(everybody):
        for call, error in seen.calls.items():
            require(
                error == "ValueError",
                f"{call} raised {error or 'nothing'} on rank {rank}, expected a ValueError",
                "see Raises in its docstring",
            )
        for call, error in seen.sensible.items():
            require(
                error == "",
                f"{call} raised {error} on rank {rank} although it makes sense",
                "refuse what the docstring names under Raises, and nothing else",
            )


def require_weights(observed: Any, expected: NDArray[Any], *, relative: float, what: str, hint: str) -> None:
    """Fail unless weights are right to within `relative` of the largest of them."""
    atol = relative * float(np.abs(expected).max())
    require_arrays_close(observed, expected, rtol=0, atol=atol, what=what, hint=hint)


def kind_of(collective: Mapping[str, Any]) -> str:
    """ "AllReduce", "AllGather", "ReduceScatter" or "Broadcast", by the name of NCCL's kernel."""
    return str(collective["name"]).split("_")[1]


def told(collectives: Sequence[Mapping[str, Any]]) -> str:
    """What ranks told each other, for people: "2 x AllGather (1,024 bytes), 1 x Broadcast (64 bytes)"."""
    kinds: dict[str, list[int]] = {}
    for one in collectives:
        kinds.setdefault(kind_of(one), []).append(one["bytes"])
    parts = [f"{len(sizes)} x {kind} ({sum(sizes):,} bytes)" for kind, sizes in kinds.items()]
    return ", ".join(parts) or "nothing"


def total(collectives: Sequence[Mapping[str, Any]], *kinds: str) -> int:
    """Bytes of the collectives of these kinds; of all, where none is named."""
    return sum(one["bytes"] for one in collectives if not kinds or kind_of(one) in kinds)
