"""How jobs, timelines and settings are drawn, and the dimensions in which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradebox.run.input_generator import InputGenerator
from grader.lab5.profiling.cases import (
    Attribute,
    Bottlenecks,
    Chosen,
    JobCase,
    MakerCase,
    NewFolder,
    OnCpu,
    Planted,
    PlantedReference,
    Record,
    SettingsCase,
    Span,
    TimelineCase,
    Tuned,
    TunedReference,
)
from grader.shared.cases import full_rows
from grader.shared.dimensions import Dimension, Space, drawable

UNRECORDED = 3
"""WAIT + WARMUP, which are handed out."""
NAMES = ("compute", "communication", "data", "transfer", "sync", "launch")
"""The parts of a step, as `DeviceTime` has them."""
GRID_SECONDS = 1e-6
"""Edges of what runs on the device fall on every other moment of the grid, those of waits between them: none touch."""
_LENGTH = 4000

SUFFIXES = (".json", ".json.gz")
_RECORDED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "suffix": {suffix: (suffix,) for suffix in SUFFIXES},
    "pinned": {"pinned": (True,), "pageable": (False,)},
    "steps": {"one": ("one",), "several": ("several",)},
}


def recorded(generator: InputGenerator, suffix: str) -> Record:
    """A job whose parts sleep for known times."""
    rows = full_rows(generator.shared("lab5.recorded"), drawable(_RECORDED), 2)
    (row,) = [row for row in rows if row["suffix"] == suffix]
    generator, pinned = generator.shared(f"lab5.recorded.{suffix}"), row["pinned"]
    steps = 1 if row["steps"] == "one" else generator.integer(3, 6)
    parts = ("data", "forward", "backward", "optimizer", "after_step")
    seconds = {name: generator.uniform(0.01, 0.03) for name in parts}
    seconds["clear"] = generator.uniform(0.04, 0.05)
    samples = generator.integer(300, 400) * 128 if pinned else 32
    return Record(steps=steps, seconds=seconds, suffix=suffix, samples=samples, pinned=pinned)


FAULTS = ("data", "sync", "launch", "transfer", "compute")
"""What is wrong with planted jobs; "compute": nothing."""


def planted_job(generator: InputGenerator, fault: str) -> JobCase:
    """A job in which one thing is wrong; each loses at least 40 % of its step to that, and 20 % to nothing else."""
    if fault == "data":
        return JobCase(samples=512, width=256, layers=6, load_seconds=generator.uniform(4e-3, 8e-3))
    if fault == "sync":
        # Kernels as long as their launches, so that it is the looking that keeps the device waiting.
        return JobCase(samples=256, width=384, layers=generator.integer(10, 14), load_seconds=1e-5, look=True)
    if fault == "launch":
        return JobCase(samples=generator.integer(1, 4), width=96, layers=generator.integer(16, 24), load_seconds=1e-5)
    if fault == "transfer":
        return JobCase(samples=128 * generator.integer(24, 32), width=1024, layers=1, load_seconds=1e-5)
    # Loading hides behind computing, unless somebody waits for the device first.
    slow = [0.05] * UNRECORDED  # only in steps that are not recorded
    width = 64 * generator.integer(18, 24)
    return JobCase(samples=4096, width=width, layers=14, load_seconds=0.035, slow=slow)


def planted(generator: InputGenerator, fault: str) -> Planted:
    """Such a job, and how many steps are recorded."""
    return Planted(job=planted_job(generator.shared(f"lab5.planted.{fault}"), fault), steps=4)


def timeline(generator: InputGenerator) -> TimelineCase:
    """Intervals of all kinds in a window, unsorted, overlapping, some of them reaching beyond the window."""
    offset = 2 * generator.integer(10_000, 90_000)

    def spans(count: int, shortest: int, longest: int, odd: int = 0) -> list[Span]:
        starts = [2 * generator.integer(-200, _LENGTH // 2) + odd for _ in range(count)]
        lengths = [2 * generator.integer(shortest, longest) for _ in range(count)]
        return [
            ((offset + start) * GRID_SECONDS, (offset + start + length) * GRID_SECONDS)
            for start, length in zip(starts, lengths, strict=True)
        ]

    return TimelineCase(
        start=offset * GRID_SECONDS,
        stop=(offset + _LENGTH) * GRID_SECONDS,
        steps=generator.integer(2, 7),
        kernels=spans(12, 10, 60),
        collectives=spans(3, 40, 100),
        copies_in=spans(4, 20, 60),
        copies_out=spans(2, 5, 10, odd=1),
        waits=spans(4, 2, 20, odd=1),
        regions={"data": spans(3, 30, 120), "transfer": spans(3, 20, 50), "forward": spans(3, 50, 300)},
    )


def wait_inside(generator: InputGenerator, region: str) -> TimelineCase:
    """One gap between two kernels, longer than a region in it, and a wait in the middle of that region.

    The wait is the region's, and the rest of the gap nobody's: random intervals seldom show that apart.
    """
    edges = [0, 2 * generator.integer(50, 200)]
    for _ in range(4):
        edges.append(edges[-1] + 2 * generator.integer(50, 200))
    offset = 2 * generator.integer(10_000, 90_000)
    marks = [(offset + edge) * GRID_SECONDS for edge in edges]
    wait = marks[2] + 9 * GRID_SECONDS, marks[2] + 2 * generator.integer(10, 40) * GRID_SECONDS
    return TimelineCase(
        start=marks[0],
        stop=marks[5],
        steps=generator.integer(2, 7),
        kernels=[(marks[0], marks[1]), (marks[4], marks[5])],
        copies_in=[],
        copies_out=[],
        waits=[wait],
        regions={"data": [], "transfer": [], region: [(marks[2], marks[3])]},
    )


def nothing_ran(generator: InputGenerator, *, waited: bool) -> TimelineCase:
    """One gap from start to stop, in which the host waits for a moment, or never."""
    case = wait_inside(generator, "data")
    begin = case.start + 9 * GRID_SECONDS
    waits = [(begin, begin + 6 * GRID_SECONDS)] if waited else []
    return replace(case, kernels=[], waits=waits, regions={"data": [], "transfer": []})


def timelines(generator: InputGenerator) -> Attribute:
    """Many drawn timelines, and those in which one thing alone decides."""
    cases = [
        *(timeline(generator) for _ in range(16)),
        *(wait_inside(generator, name) for name in ("data", "transfer")),
    ]
    cases += [nothing_ran(generator, waited=True), nothing_ran(generator, waited=False)]
    return Attribute(timelines=cases)


def tuned(generator: InputGenerator) -> Tuned:
    """A pipeline with a slow data set, and settings for it, two of which do not fit in memory."""
    generator = generator.shared("lab5.tuning")
    rows = [(16, 0, False), (512, 0, False), (1 << 14, 0, False), (512, 2, True), (1 << 15, 0, False), (64, 1, True)]
    settings: list[SettingsCase] = [
        {"batch_size": batch, "num_workers": workers, "pin_memory": pinned, "log_every": 1}
        for batch, workers, pinned in rows
    ]
    # When it begins, the workers' first batches are waiting; then they come as they are made.
    # Not 6, which the exploit `ten_steps_after_six` takes for the check's: it would pass by chance.
    warmup, steps = generator.shuffled([4, 5, 7, 8])[0], generator.integer(7, 12)
    maker = MakerCase(
        width=512,  # kernels that outlast their launches, so that the device lags behind
        layers=generator.integer(4, 6),
        decode_seconds=generator.uniform(2e-6, 3e-6),
        too_large=1 << 14,
        late_batch=rows[0][0],
        # The last of those that are not timed, and the first of those that are: who warms up for another number of
        # steps, as for that of the timed ones, times both or neither.
        late_steps=[warmup - 1, warmup],
        late_seconds=generator.uniform(0.15, 0.17),
        slow_batch=rows[0][0],
        slow_seconds=generator.uniform(0.06, 0.07),
    )
    return Tuned(maker=maker, settings=settings, steps=steps, warmup=warmup)


def reference_of(inputs: Tuned) -> TunedReference:
    """The same without the settings that do not fit."""
    fits = [settings for settings in inputs.settings if settings["batch_size"] < inputs.maker.too_large]
    return TunedReference(maker=inputs.maker, settings=fits, steps=inputs.steps, warmup=inputs.warmup)


TOLERANCES: Mapping[str, float | None] = {"None": None, "0.12": 0.12, "0.002": 0.002, "0.0": 0.0}
"""What points are chosen with, by name; None: the default."""

SPACES = (
    Space(
        probes=(Record.probe,),
        cases=lambda request: [request.params],
        dimensions=(
            Dimension("suffix", tuple(_RECORDED["suffix"]), lambda case: str(case["suffix"])),
            Dimension("memory", tuple(_RECORDED["pinned"]), lambda case: "pinned" if case["pinned"] else "pageable"),
            Dimension("steps", tuple(_RECORDED["steps"]), lambda case: "one" if case["steps"] == 1 else "several"),
        ),
    ),
    Space(
        probes=(Chosen.probe,),
        cases=lambda request: [{"tolerance": tolerance} for tolerance in request.params["tolerances"]],
        dimensions=(Dimension("tolerance", tuple(TOLERANCES), lambda case: str(case["tolerance"])),),
    ),
)
_REFERENCE = "our own reference, without the submission"
WITHOUT = {
    Attribute.probe: "many drawn timelines, and those in which one thing alone decides",
    NewFolder.probe: "one job, which is always the same",
    OnCpu.probe: "one job, which is always the same",
    Planted.probe: "five faults, all of them in every grading",
    PlantedReference.probe: _REFERENCE,
    Bottlenecks.probe: "each loss as the largest, small ones, equal ones, limits: all in every grading",
    Tuned.probe: "five settings, all of them in every grading: each starts a loader",
    TunedReference.probe: _REFERENCE,
}
