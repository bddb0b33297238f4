"""What several criteria check alike: that a kernel ran, that it stays inside, races, bytes moved once, nonsense."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gradebox.run.assertions import CheckFailed, NeedsReview, mebibytes, require
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox import Limits
from grader.kernels.shared.cases import Activity, Observed
from grader.shared.readings import Launch, Stored

COUNTING = "vgpu:T4"
"""Where accesses are counted when the grading's own device is a real one."""
_SLOW = Limits(wall_seconds=240.0, cpu_seconds=240.0)
"""Triton's interpreter takes milliseconds for each program; the slowest probe 10 s of processor time."""
_ANSWERED = 64
"""Bytes that the host may read: a few numbers on which something depends, and no operand."""
SECTOR = 32
"""Bytes that a load or store moves at least; a tensor that begins or ends within one has one more of them."""
_ONCE = 1.15
"""Times the least bytes. Programs whose elements begin within a sector share it: up to 64 bytes for each, of 1 KiB and
more; an element that is read a second time costs 1.3 and more."""


def ask(
    submission: Submission,
    probe: str,
    *,
    counted: bool = False,
    device: str | None = None,
    values: bool = True,
    conditions: Sequence[Mapping[str, float]] = (),
    **inputs: Any,
) -> Seen:
    """What a probe of this exercise ("kernels.add.vector_add") saw; on a virtual GPU where accesses are `counted`.

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
    return submission.probe(
        probe, {"device": device, "values": values, "limits": _SLOW, "conditions": list(conditions)}, **inputs
    )


def _require_triton_works(submission: Submission) -> None:
    """Raise where a product of our own fails: on an old card, or on a machine without a C compiler."""
    errors = submission.probe("kernels.shared.trial.product", {"student": False, "limits": _SLOW}).errors
    for dtype, error in errors.items():
        if error:
            raise NeedsReview(
                f"Triton does not multiply in {dtype} on this machine: {error}",
                "grade this exercise with --device vgpu; Triton needs compute capability 8.0 and a C compiler",
            )


def is_counted(run: Activity, submission: Submission) -> bool:
    """Whether there is a count of what a call did: a real GPU has none."""
    return submission.device.simulated or bool(run["kernels"])


def require_launched(run: Activity, what: str, submission: Submission) -> None:
    """Fail unless Triton kernels ran, and no product of a library's, where that can be seen.

    Without a kernel there is nothing to look at: then no check of the criterion that requires this one has an answer.
    """
    if not is_counted(run, submission):
        return
    if not run["runs"]:
        raise CheckFailed(f"{what} launched no Triton kernel", _LAUNCH, answered=False)
    require(
        run["library_flops"] == 0,
        f"{what}: PyTorch computed products of {run['library_flops']:.4g} FLOPs, expected 0",
        "the products belong in your kernels (tl.dot)",
    )
    require(
        run["copied_bytes"] <= _ANSWERED,
        f"{what}: {mebibytes(run['copied_bytes'])} are copied from the GPU to the host, expected nothing",
        "compute where the operands are: the host only launches the kernels",
    )


def require_kernel(run: Observed, what: str, submission: Submission) -> None:
    """Fail unless a Triton kernel computed what was returned, where that can be seen: it stored these very numbers."""
    output = np.asarray(run["output"], dtype=np.float64)
    if not output.size:
        return
    require_launched(run, what, submission)
    if not is_counted(run, submission) or not np.isfinite(output).all():
        return  # what is not finite is judged by its values
    stored = [stored for launch in run["runs"] for stored in launch["stored"]]
    require(
        is_among(output, stored),
        f"{what} returned numbers that no Triton kernel stored: their sum is {output.sum():.6g}, the kernels stored "
        + (", ".join(f"{each['argument']} with a sum of {_shown(each['total'])}" for each in stored) or "nothing"),
        "the kernel itself computes the result and stores it into the tensor that is returned",
    )


def require_no_library(run: Activity, what: str) -> None:
    """Fail if PyTorch computed anything besides the kernels; it may copy and fill."""
    foreign = [name for name in run["kernels"] if "aten" in name and not any(word in name for word in _MOVES)]
    require(
        not foreign,
        f"{what}: PyTorch computed {', '.join(sorted(set(foreign)))} as well",
        "what is computed, your kernel computes; PyTorch may only copy and fill",
    )


def require_loaded(run: Activity, operands: Mapping[str, ArrayLike], what: str) -> None:
    """Fail unless a kernel loaded all elements of each operand."""
    loaded = [loaded for launch in run["runs"] for loaded in launch["loaded"]]
    for name, values in operands.items():
        require(
            is_among(values, loaded),
            f"{what}: no Triton kernel loaded all of {name}, and nothing else with it",
            "the kernel is given the operands themselves, and computes with them",
        )


def is_among(values: ArrayLike, rows: Iterable[Stored]) -> bool:
    """Whether some argument of a kernel held exactly these numbers, by their sum and the sum of their squares."""
    numbers = np.asarray(values, dtype=np.float64)
    total, squares = float(numbers.sum()), float((numbers * numbers).sum())
    slack = _ROUNDED * float(np.abs(numbers).sum())
    return any(
        row["total"] is not None
        and row["squares"] is not None
        and abs(row["total"] - total) <= slack
        and abs(row["squares"] - squares) <= _ROUNDED * squares
        for row in rows
    )


def _shown(value: float | None) -> str:
    return "no finite number" if value is None else f"{value:.6g}"


def require_inside(runs: Iterable[Launch], what: str) -> None:
    """Fail where a program reached outside of its tensors."""
    for run in runs:
        require(
            not run["strayed"],
            f"{what}: {run['strayed']} accesses of {run['name']} are outside of its tensors",
            "each load and each store needs a mask that is false beyond the end, in each direction that can end",
        )


def require_once(run: Activity, what: str, read: int, written: int) -> None:
    """Fail unless one launch did it all, and moved each byte once: `read` and `written` are the least bytes."""
    require(
        len(run["runs"]) == 1 and len(run["kernels"]) == 1,
        f"{what}: the GPU ran {', '.join(run['kernels']) or 'nothing'}, expected one kernel",
        "all of it in one launch: no copies, no fills, no second kernel",
    )
    (launch,) = run["runs"]
    for name, moved, least in (("read", launch["read_bytes"], read), ("written", launch["written_bytes"], written)):
        slack = 2 * SECTOR * min(launch["programs"], least // 1024)
        require(
            least <= moved <= _ONCE * least + slack,
            f"{what}: {mebibytes(moved)} are {name}, expected {mebibytes(least)}",
            "neighbours belong to one program, each element to one only: memory moves in sectors of 32 bytes",
        )


def require_no_race(runs: Iterable[Launch], what: str) -> None:
    """Fail where two programs of a launch touch one element, one of them writes, and nothing orders them."""
    for run in runs:
        for race in run["races"][:1]:
            (left, right), (first, second) = race["programs"], race["accesses"]
            require(
                False,
                f"{what}: programs {left} and {right} of {run['name']} race at element {race['element']} of "
                f"{race['argument']}: {_DOES[first]} by one and {_DOES[second]} by the other",
                "programs run in any order, or at once: each writes what no other one touches, or adds atomically",
            )


def hint_for(values: Any, hint: str) -> str:
    """`hint`, or where there is a NaN first what makes one here."""
    if not np.isnan(np.asarray(values, dtype=np.float64)).any():
        return hint
    return f"NaN comes of a masked tl.load without `other=`: where the mask is false it gives anything; or else {hint}"


_LAUNCH = "write a function with @triton.jit, and launch it: kernel[grid](...)"
_MOVES = ("copy", "fill", "zero", "clone", "empty", "contiguous", "ones", "full", "cat", "pad")
"""In names of operations that compute nothing."""
_ROUNDED = 1e-9
"""Between two orders of a sum in float64."""
_DOES = {"read": "read", "written": "written", "atomic": "changed atomically"}


def judge_refusals(submission: Submission, probe: str) -> None:
    """Fail unless the calls of a probe that make no sense raise a ValueError, and none that makes sense does."""
    actual = ask(submission, probe)
    for call, error in actual.calls.items():
        require(
            error == "ValueError",
            f"{call} raised {error or 'nothing'}, expected a ValueError",
            "see Raises in its docstring",
        )
    for call, error in actual.sensible.items():
        require(
            error == "",
            f"{call} raised {error} although it makes sense",
            "refuse what the docstring names under Raises, and nothing else",
        )
    done: Activity = {
        "runs": actual.runs,
        "library_flops": actual.library_flops,
        "kernels": actual.kernels,
        "copied_bytes": actual.copied_bytes,
        "largest_elements": actual.largest_elements,
    }
    require_launched(done, "calls that make sense", submission)
