"""What the criteria of the exercise ask in the same way: that a kernel ran, that it stays inside, races, nonsense."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gradebox.run.assertions import NeedsReview, require
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox import Limits

COUNTING = "vgpu:T4"
"""Where accesses are counted when the grading's own device is a real one."""
_SLOW = Limits(wall_seconds=240.0, cpu_seconds=240.0)
"""Triton's interpreter takes milliseconds for each program; the slowest probe 10 s of processor time."""
SECTOR = 32
"""Bytes that a load or store moves at least; a tensor that begins or ends within one has one more of them."""


def ask(submission: Submission, probe: str, *, counted: bool = False, device: str | None = None, **inputs: Any) -> Seen:
    """What a probe of this exercise saw; on a virtual GPU where accesses are `counted`.

    Raises:
        NeedsReview: Triton is not installed here, or does not work on this card.
    """
    if importlib.util.find_spec("triton") is None:
        raise NeedsReview(
            "this exercise needs Triton, which is not installed here",
            "pip install triton: there are wheels for Linux; on Windows use WSL2, on a Mac a Linux machine or Colab",
        )
    if counted and not submission.device.simulated:
        device = COUNTING
    if device is None and not submission.device.simulated:
        _require_triton_works(submission)
    return submission.probe(f"kernels.{probe}", device=device, limits=_SLOW, **inputs)


def _require_triton_works(submission: Submission) -> None:
    """Raise where a product of our own fails: on an old card, or on a machine without a C compiler."""
    errors = submission.probe("kernels.trial.product", student=False, limits=_SLOW).errors
    for dtype, error in errors.items():
        if error:
            raise NeedsReview(
                f"Triton does not multiply in {dtype} on this machine, whoever asks: {error}",
                "grade this exercise with --device vgpu; Triton needs compute capability 8.0 and a C compiler",
            )


def is_counted(run: Mapping[str, Any], submission: Submission) -> bool:
    """Whether there is a count of what a call did: a real GPU has none."""
    return submission.device.simulated or bool(run["kernels"])


def require_kernel(run: Mapping[str, Any], what: str, submission: Submission) -> None:
    """Fail unless a Triton kernel computed it, where that can be seen."""
    require(
        not is_counted(run, submission) or bool(run["runs"]),
        f"{what} launched no Triton kernel",
        "write a function with @triton.jit, and launch it: kernel[grid](...)",
    )


def require_inside(runs: Iterable[Mapping[str, Any]], what: str) -> None:
    """Fail where a program reached outside of its tensors."""
    for run in runs:
        require(
            not run["strayed"],
            f"{what}: {run['strayed']} accesses of {run['name']} are outside of its tensors",
            "each load and each store needs a mask that is false beyond the end, in each direction that can end",
        )


def require_no_race(runs: Iterable[Mapping[str, Any]], what: str) -> None:
    """Fail where two programs of a launch touch one element, one of them writes, and nothing orders them."""
    for run in runs:
        for race in run["races"][:1]:
            (one, other), (first, second) = race["programs"], race["accesses"]
            require(
                False,
                f"{what}: programs {one} and {other} of {run['name']} race at element {race['element']} of "
                f"{race['argument']}: {_DOES[first]} by one and {_DOES[second]} by the other",
                "programs run in any order, or at once: each writes what no other one touches, or adds atomically",
            )


def hint_for(values: Any, hint: str) -> str:
    """`hint`, or where there is a NaN first what makes one here."""
    if not np.isnan(np.asarray(values, dtype=np.float64)).any():
        return hint
    return f"NaN comes of a masked tl.load without `other=`: where the mask is false it gives anything; or else {hint}"


_DOES = {"read": "read", "written": "written", "atomic": "changed atomically"}


def judge_refusals(submission: Submission, criterion: str) -> None:
    """Fail unless calls that make no sense raise a ValueError, and none that makes sense does."""
    seen = ask(submission, "refusals.ask", criterion=criterion)
    for call, error in seen.calls.items():
        require(
            error == "ValueError",
            f"{call} raised {error or 'nothing'}, expected a ValueError",
            "see Raises in its docstring",
        )
    for call, error in seen.sensible.items():
        require(
            error == "",
            f"{call} raised {error} although it makes sense",
            "refuse what the docstring names under Raises, and nothing else",
        )
