"""Recognises the mistake that a memory profile shows: a reference that makes it reports the same bytes.

Some mistakes follow from the figures of the right step; for others the course runs the step with the mistake.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradebox.run.assertions import Cause
from gradebox.run.submission import Submission
from grader.lab1.memory.cases import Network, Profile, Stage
from grader.lab1.memory.checks.reference_runs import like, measured
from grader.lab1.memory.reference import TOLERANCE, Reference, Stages
from labkit.results import STAGES

_ALLOCATED = "lab1.memory.allocated_equals_reference"
_RESERVED = "lab1.memory.reserved_told_apart"
_PEAK = "lab1.memory.peak_equals_reference"
_RESET = "lab1.memory.peak_reset_between_stages"
_PRECISIONS = "lab1.memory.precisions_compared"

RUN: Mapping[str, Cause] = {
    "not_cast": Cause(
        "dtype_of_the_profile_ignored",
        "Cast the model and the inputs with `.to(device, dtype)`, in each dtype.",
        _ALLOCATED,
        mistake="The model is profiled in float32 although the caller chose another dtype",
    ),
    "graph_kept": Cause(
        "graph_kept",
        "Call `loss.backward()` without `retain_graph`, and keep nothing that refers to the graph.",
        _ALLOCATED,
        mistake="The graph and its activations are kept after the backward pass",
    ),
    "batch_let_go": Cause(
        "batch_let_go",
        "Give the moved inputs a name (`inputs = inputs.to(device, dtype)`). A batch that is moved within the call of "
        "the model is kept by nobody once the graph is gone.",
        _ALLOCATED,
        mistake="The batch is not kept on the device until the end of the step",
    ),
    "output_let_go": Cause(
        "output_let_go",
        "Keep the output under a name of its own until the end of the step.",
        _ALLOCATED,
        mistake="The output is not kept on the device until the end of the step",
    ),
    "loss_in_float32": Cause(
        "loss_in_float32",
        "Compute the loss of the output as it is, without a cast to float32.",
        _ALLOCATED,
        mistake="The loss is computed from a copy of the output in float32",
    ),
    "gradients_kept": Cause(
        "gradients_kept",
        "Call `optimizer.zero_grad(set_to_none=True)`: gradients that are zero still take their bytes.",
        _ALLOCATED,
        mistake="Gradients are set to zero instead of None in the stage zero_grad",
    ),
    "cache_kept": Cause(
        "cache_kept",
        "Call `torch.cuda.empty_cache()` in the stage baseline.",
        _RESERVED,
        mistake="The cache is not emptied first, so what earlier work has freed counts as reserved",
    ),
    "model_kept": Cause(
        "model_kept",
        "Let nothing refer to the first run's model, batch and optimizer when the second run begins.",
        _PRECISIONS,
        mistake="The model of the float32 run is still on the device while the float16 run is measured",
    ),
}
"""What a step of the course shows that makes the mistake with this name."""
ALONE = tuple(name for name in RUN if name != "model_kept")
"""Mistakes that a step makes by itself."""
CAST_AGAIN = Cause(
    "model_cast_again",
    "Call create_model() for each precision: a model that is on the device already shrinks there when it is cast.",
    _PRECISIONS,
    mistake="compare_precisions() casts the model of the float32 run again for the float16 run",
)
NOT_BYTES = Cause(
    "not_in_bytes",
    "Report what torch.cuda returns, without dividing it: the figures are in bytes.",
    _ALLOCATED,
    mistake="The figures of the memory profile are not in bytes",
)
OTHERS_SUBTRACTED = Cause(
    "others_subtracted",
    "Report what torch.cuda returns: what others hold on the device counts in every stage.",
    _ALLOCATED,
    mistake="What others hold on the device, the baseline, is subtracted from the figures",
)
RESERVED_AS_ALLOCATED = Cause(
    "reserved_as_allocated",
    "Read `torch.cuda.memory_allocated()`: `memory_reserved()` is what the caching allocator keeps.",
    _ALLOCATED,
    mistake="What the allocator has reserved is reported as allocated_bytes",
)
ALLOCATED_AS_RESERVED = Cause(
    "allocated_as_reserved",
    "Read `torch.cuda.memory_reserved()`.",
    _RESERVED,
    mistake="What tensors hold is reported as reserved_bytes",
)
ALLOCATED_AS_PEAK = Cause(
    "allocated_as_peak",
    "Read `torch.cuda.max_memory_allocated()`, which counts what is freed again within a stage.",
    _PEAK,
    mistake="What is allocated at the end of each stage is reported as its peak",
)
RESERVED_AS_PEAK = Cause(
    "reserved_as_peak",
    "Read `torch.cuda.max_memory_allocated()`.",
    _PEAK,
    mistake="What the allocator has reserved is reported as peak_bytes",
)
NEVER_RESET = Cause(
    "peak_never_reset",
    "Call `torch.cuda.reset_peak_memory_stats()` where each stage begins.",
    _RESET,
    mistake="The peak is never reset: every stage shows the largest peak so far",
)
_UNITS = (2**10, 1e6, 2**20, 1e9, 2**30)
_NEAR_UNIT = 0.02


@dataclass(frozen=True)
class Profiled:
    """Profiles of the same steps: the submission's, and the course's."""

    submission: Submission
    runs: Sequence[Network]
    kept: int
    freed: int
    profiles: Sequence[Profile]
    shares: Sequence[float] = ()
    """Of each step's peak, how far figures may be apart; TOLERANCE unless they are named."""

    @property
    def steps(self) -> list[tuple[Network, Reference, Profile, float]]:
        """Each step, its reference, its profile, and its share."""
        shares = self.shares or [TOLERANCE] * len(self.runs)
        return list(zip(self.runs, self.references(), self.profiles, shares, strict=True))

    def references(self, mistake: str = "") -> list[Reference]:
        """The course's steps, with a mistake of `MISTAKES` or without one."""
        return measured(self.submission, self.runs, self.kept, self.freed, mistake)


Change = Callable[[Stages, str, Sequence[float]], list[float]]
"""Figures that a mistake makes of right ones: of the stages, for a field, beside what was observed."""


def _as(source: str) -> Change:
    return lambda stages, _, __: [stages[name][source] for name in STAGES]  # type: ignore[literal-required]


def _less_the_baseline(stages: Stages, field: str, _: Sequence[float]) -> list[float]:
    base = stages["baseline"]
    less = base["reserved_bytes"] if field == "reserved_bytes" else base["allocated_bytes"]
    return [stages[name][field] - less for name in STAGES]  # type: ignore[literal-required]


def _largest_so_far(stages: Stages, field: str, observed: Sequence[float]) -> list[float]:
    peaks = [stages[name]["peak_bytes"] for name in STAGES]
    # What was there before the step nobody knows.
    return list(itertools.accumulate([max(peaks[0], observed[0]), *peaks[1:]], max))


_CHANGES: Mapping[str, Sequence[tuple[Cause, Change]]] = {
    "allocated_bytes": (
        (RESERVED_AS_ALLOCATED, _as("reserved_bytes")),
        (OTHERS_SUBTRACTED, _less_the_baseline),
    ),
    "reserved_bytes": (
        (ALLOCATED_AS_RESERVED, _as("allocated_bytes")),
        (OTHERS_SUBTRACTED, _less_the_baseline),
    ),
    "peak_bytes": (
        (NEVER_RESET, _largest_so_far),
        (ALLOCATED_AS_PEAK, _as("allocated_bytes")),
        (RESERVED_AS_PEAK, _as("reserved_bytes")),
        (OTHERS_SUBTRACTED, _less_the_baseline),
    ),
}


def mistake_of(profiled: Profiled, field: str, names: Sequence[str]) -> Cause | None:
    """The mistake that this field of the profiles shows; None if they are right, or show none.

    Args:
        profiled: the profiles.
        field: one of FIGURES; other ones than allocated bytes count only in steps whose dtype is not given.
        names: mistakes that steps of the course are to make.
    """
    judged = [place for place, run in enumerate(profiled.runs) if field == "allocated_bytes" or "dtype" not in run]
    steps = profiled.steps
    rows: list[_Row] = []
    for place in judged:
        _, reference, profile, share = steps[place]
        figures = _figures(profile, field)
        if figures is None:
            return None
        stages = like(reference, profile)
        rows.append(_Row(figures, stages, share * max(stage["peak_bytes"] for stage in stages.values())))
    if unit_of(profiled, field):
        return NOT_BYTES
    for cause, change in _CHANGES[field]:
        if _explained(field, rows, [change(row.stages, field, row.observed) for row in rows]):
            return cause
    for name in names:
        wrong = profiled.references(name)
        figures_of = [_of(like(wrong[place], profiled.profiles[place]), field) for place in judged]
        if _explained(field, rows, figures_of):
            return RUN[name]
    return _from_some_stage_on(rows) if field == "allocated_bytes" else None


def _from_some_stage_on(rows: Sequence[_Row]) -> Cause | None:
    """The same bytes are there, or missing, from one stage on, or from one stage to another, in some steps.

    In the others nothing is wrong: what is kept may be too small there.
    """
    places: set[tuple[int, int, bool]] = set()
    for row in rows:
        more = [seen - right for seen, right in zip(row.observed, _of(row.stages, "allocated_bytes"), strict=True)]
        wrong = [place for place, size in enumerate(more) if abs(size) > row.slack]
        if not wrong:
            continue
        sizes = more[wrong[0] : wrong[-1] + 1]
        if max(sizes) - min(sizes) > row.slack:
            return None
        places.add((wrong[0], wrong[-1], sizes[0] > 0))
    if len(places) != 1:
        return None
    ((first, last, is_more),) = places
    if is_more:
        return Cause(
            f"kept_from_{STAGES[first]}_to_{STAGES[last]}",
            "Keep batch, output and loss, and nothing else: let nothing refer to other tensors when the stage ends.",
            _ALLOCATED,
            mistake=f"From the stage {STAGES[first]!r} on something is allocated that a training loop does not keep",
        )
    return Cause(
        f"let_go_from_{STAGES[first]}_to_{STAGES[last]}",
        "Keep batch, output and loss under names of their own until the end of the step.",
        _ALLOCATED,
        mistake=f"From the stage {STAGES[first]!r} on something is missing that a training loop keeps",
    )


def unit_of(profiled: Profiled, field: str = "allocated_bytes") -> float | None:
    """The number of bytes by which somebody has divided this field of all stages; None if nobody has."""
    pairs: list[tuple[float, float]] = []
    for _, reference, profile, _ in profiled.steps:
        figures = _figures(profile, field)
        if figures is None:
            return None
        pairs += zip(figures, _of(like(reference, profile), field), strict=True)
    for unit in _UNITS:
        if all(abs(seen * unit - expected) <= _NEAR_UNIT * expected for seen, expected in pairs):
            return unit
    return None


def in_bytes(profiled: Profiled) -> Profiled:
    """The same in bytes, if it is the allocated bytes' check that charges for the unit of all figures."""
    if (unit := unit_of(profiled)) is None:
        return profiled
    return replace(profiled, profiles=[_times(profile, unit) for profile in profiled.profiles])


def _times(profile: Profile, unit: float) -> Profile:
    stages: list[Stage] = []
    for stage in profile["stages"]:
        sizes = [stage["allocated_bytes"], stage["reserved_bytes"], stage["peak_bytes"]]
        allocated, reserved, peak = (size * unit if isinstance(size, (int, float)) else size for size in sizes)
        stages.append(
            {"stage": stage["stage"], "allocated_bytes": allocated, "reserved_bytes": reserved, "peak_bytes": peak}
        )
    return {"device": profile["device"], "dtype": profile["dtype"], "stages": stages}


@dataclass(frozen=True)
class _Row:
    """A field of one profile."""

    observed: list[float]
    stages: Stages
    """As they are right."""
    slack: float


def _explained(field: str, rows: Sequence[_Row], wrong: Sequence[Sequence[float]]) -> bool:
    """Whether some steps are as the mistake makes them, and all others are right."""
    seen = False
    for row, figures in zip(rows, wrong, strict=True):
        is_right = _near(row.observed, _of(row.stages, field), row.slack)
        if not is_right and not _near(row.observed, figures, row.slack):
            return False
        seen = seen or not is_right
    return seen


def _near(row: Sequence[float], other: Sequence[float], slack: float) -> bool:
    return all(abs(a - b) <= slack for a, b in zip(row, other, strict=True))


def _of(stages: Stages, field: str) -> list[float]:
    return [float(stages[name][field]) for name in STAGES]  # type: ignore[literal-required]


def _figures(profile: Profile, field: str) -> list[float] | None:
    """A field of all stages in their order; None if they are not numbers of these stages."""
    sizes = [dict[str, object](stage)[field] for stage in profile["stages"]]
    if [stage["stage"] for stage in profile["stages"]] != list(STAGES):
        return None
    numbers = [float(size) for size in sizes if isinstance(size, (int, float)) and math.isfinite(size)]
    return numbers if len(numbers) == len(sizes) else None
