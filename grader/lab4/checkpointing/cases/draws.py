"""How the inputs of Lab 4's checkpointing are drawn: models, ways to run them, and made-up measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from grader.lab4.checkpointing.cases.types import (
    Best,
    Choice,
    Equivalence,
    Evaluation,
    Measured,
    Measurement,
    Model,
    Result,
    Saved,
    Sizes,
    Way,
)
from grader.lab4.shared.cases import SEGMENTS, flag, segments
from grader.shared.cases import full_rows
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

ALL_OPTIONS = ("width", "heads", "dropout", "checkpoint_every")


def by_default(generator: InputGenerator) -> Model:
    """A transformer that is made as the document makes it: of so many layers, everything else by default."""
    generator = generator.shared("lab4.checkpointing, by default")
    return Model(
        layers=generator.integer(2, 3),
        width=256,
        heads=8,
        dropout=0.1,
        options=(),
        batch=2,
        length=generator.odd(3, 7),
        seed=generator.integer(1, 10**6),
    )


def small(generator: InputGenerator) -> Model:
    """A small transformer with dropout, the same for all checks of one grading."""
    generator = generator.shared("lab4.checkpointing")
    heads = generator.integer(2, 4)
    return Model(
        layers=3,
        heads=heads,
        width=heads * generator.odd(3, 7),
        dropout=generator.uniform(0.1, 0.3),
        batch=generator.integer(2, 3),
        length=generator.odd(5, 9),
        seed=generator.integer(1, 10**6),
        options=ALL_OPTIONS,
    )


def long(generator: InputGenerator) -> Model:
    """A transformer of many layers and a long input, so that what is kept of it shows."""
    layers = generator.shared("lab4.layers").shuffled([number for number in range(8, 16) if _dividing(number)])[0]
    model = replace(by_default(generator), layers=layers, batch=4, length=generator.odd(61, 81))
    return replace(model, options=("checkpoint_every",))


def _dividing(layers: int) -> list[int]:
    """Intervals that leave three equal segments or more, and by one or less not as many as each has blocks."""
    return [every for every in range(2, layers // 3 + 1) if layers % every == 0 and abs(layers // every - every) > 1]


BY_DEFAULT = [Way(1, True), Way(1, False, 2)]
"""The interval that a model has by default, with both kinds of input; one has two forward passes before backward."""
_INTERVALS = ("None", "1", "2", "3", "4")


def training_ways(generator: InputGenerator) -> list[Way]:
    """Ways to train the small model: some that are always there, and one that is drawn."""
    # 2 does not divide the three blocks, and 4 is more than there are.
    ways = [Way(None, True), Way(1, True), Way(2, False), Way(1, False, 2), Way(4, True)]
    (row,) = generator.shared("lab4.ways").cases(EQUIVALENCE.values({"interval": _INTERVALS}), 1)
    interval = None if row["interval"] == "None" else int(row["interval"])
    return [*ways, Way(interval, row[_INPUT_GRADIENT.name] == "yes", {"one": 1, "two": 2}[row["forward passes"]])]


def kept_ways(generator: InputGenerator, layers: int) -> list[Way]:
    """Ways to run the long model: without checkpointing, and with three intervals.

    One of them leaves a short last segment: one kept as a whole is not taken for a first one kept.
    """
    short = [every for every in range(3, 7) if layers % every]
    intervals = [1, generator.shuffled(_dividing(layers))[0], generator.shuffled(short)[0]]
    needs = generator.shuffled([False, True, generator.integer(0, 1) == 1])
    return [Way(None, False), *(Way(interval, need) for interval, need in zip(intervals, needs, strict=True))]


def measured(generator: InputGenerator, *, large: bool) -> Measured:
    """A measurement of a model, `large` so that a step of a real GPU is long against its launches."""
    intervals = generator.shuffled([None, generator.integer(1, 2)])
    # Two steps and a half are uneven on a simulated device; those of a real one take long.
    steps, warmup = generator.integer(3, 5) if large else generator.integer(5, 7), generator.integer(2, 3)
    sizes: Sizes = {
        "num_layers": 3,
        "width": 4
        * (generator.odd(221, 281) if large else generator.odd(81, 145)),  # not divisible by 8, the usual heads
        "heads": 4,
        "batch": generator.integer(7, 9) if large else generator.integer(3, 5),
        "length": generator.odd(701, 801) if large else generator.odd(301, 401),
    }
    return Measured(intervals=intervals, sizes=sizes, steps=steps, warmup=warmup)


def choices(generator: InputGenerator) -> list[Choice]:
    """Measurements of all kinds, in any order, among them some of which none fits."""
    drawn = [*(_choice(generator) for _ in range(4)), *(_choice(generator, smallest_may_win=False) for _ in range(3))]
    enough = {"fits": "all", "budget": "roomy", "two are equally fast": "no", "without checkpointing": "fits"}
    rows = [enough, *full_rows(generator, BEST.values(), 3, BEST.allows)]
    drawn += [_mixed_choice(generator, row) for row in rows]
    return generator.shuffled([*drawn, replace(_choice(generator), budget=10)])


def _choice(generator: InputGenerator, *, smallest_may_win: bool = True) -> Choice:
    """Measurements whose answer is known: the fastest is too large, two that fit are equally fast.

    The smallest may be one of these two, and then it is the answer, if `smallest_may_win`.
    """
    peaks = sorted(generator.integer(1000, 9000) for _ in range(5))
    budget = peaks[2]
    seconds = [generator.uniform(2.0, 3.0) for _ in range(3)]
    first, second = generator.shuffled(range(3))[:2] if smallest_may_win else (1, 2)
    seconds[first] = seconds[second] = min(seconds)
    *small, large = generator.shuffled((1, 2, 3, 4, 6, 8))[:4]
    rows: list[Measurement] = [*zip(small, seconds, peaks[:3], strict=True)]
    rows += [(large, generator.uniform(1.0, 1.5), peaks[3] + 1), (None, 0.5, peaks[4] + 2)]
    return Choice([rows[index] for index in generator.shuffled(list(range(5)))], budget)


def _mixed_choice(generator: InputGenerator, row: Mapping[str, str]) -> Choice:
    """Five measurements, of which so many fit, and two of these are equally fast or not."""
    peaks = sorted(int(peak) for peak in generator.rng.choice(range(1000, 9000, 10), 5, replace=False))
    fitting = {"none": 0, "one": 1, "some": generator.integer(2, 4), "all": 5}[row["fits"]]
    budget = peaks[fitting - 1] if fitting else peaks[0] - 9
    if fitting and row["budget"] == "roomy":
        budget += 5
    seconds = [generator.uniform(0.001, 0.003) for _ in peaks]  # as steps take, which no rounding may make equal
    plain_fits, equally_fast = row["without checkpointing"] == "fits", row["two are equally fast"] == "yes"
    if equally_fast:
        first, second = generator.shuffled(list(range(fitting)))[:2]
        seconds[first] = seconds[second] = min(seconds) * generator.uniform(0.5, 0.9)
    plain = generator.integer(0, fitting - 1) if plain_fits else generator.integer(fitting, 4)
    if plain_fits and not equally_fast:
        seconds[plain] = 0.9 * min(seconds)
    intervals: list[int | None] = list(generator.shuffled((1, 2, 3, 4, 6, 8))[:5])
    intervals[plain] = None
    return Choice(generator.shuffled([*zip(intervals, seconds, peaks, strict=True)]), budget)


def made_up_results(generator: InputGenerator) -> list[Result]:
    """Results for the plot whose figures are all different, in bytes and seconds that no power of ten or two hides."""
    intervals = [None, *(generator.odd(10 * index + 11, 10 * index + 19) for index in range(3))]
    return [
        {
            "device": "cuda",
            "checkpoint_every": every,
            "step_seconds": generator.uniform(0.004, 0.09),
            "peak_bytes": generator.integer(10**8, 9 * 10**9),
        }
        for every in intervals
    ]


def _ways(request: Request) -> Iterator[Case]:
    layers = request.params["case"]["layers"]
    return ({**way, "layers": layers} for way in request.params["ways"])


def _segments(case: Case) -> str:
    return segments(case["interval"], case["layers"])


_INPUT_GRADIENT = flag("the input needs a gradient", "input_gradient")
EQUIVALENCE = Space(
    probes=(Equivalence.probe,),
    cases=_ways,
    dimensions=(
        Dimension("interval", tuple(each for each in SEGMENTS if each != "equal"), _segments),
        _INPUT_GRADIENT,
        Dimension("forward passes", ("one", "two"), lambda case: "two" if case["passes"] == 2 else "one"),
    ),
)
SAVED = Space(
    probes=(Saved.probe,),
    cases=_ways,
    dimensions=(Dimension("interval", SEGMENTS[:4], _segments), _INPUT_GRADIENT),
    apart={("interval=none", "the input needs a gradient=yes"): "nothing is cut"},
)


def _evaluated(request: Request) -> Iterator[Case]:
    for interval in request.params["intervals"]:
        for how in ("with gradients", "without"):
            yield {"interval": interval, "how": how}


_INTERVAL = Dimension("interval", ("none", "some"), lambda case: "none" if case["interval"] is None else "some")
EVALUATION = Space(
    probes=(Evaluation.probe,),
    cases=_evaluated,
    dimensions=(_INTERVAL, Dimension("how", ("with gradients", "without"), lambda case: str(case["how"]))),
)


def _measured(request: Request) -> Iterator[Case]:
    for place, interval in enumerate(request.params["intervals"]):
        yield {"interval": interval, "place": ("first", "later")[place]}


MEASURED = Space(
    probes=(Measured.probe,),
    cases=_measured,
    dimensions=(_INTERVAL, Dimension("place", ("first", "later"), lambda case: str(case["place"]))),
)


def _choices(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        choice = Choice(case["rows"], case["budget"])
        yield {"choice": choice, "fitting": choice.fitting}


def _fits(case: Case) -> str:
    count = len(case["fitting"])
    return "none" if not count else "one" if count == 1 else "all" if count == len(case["choice"].rows) else "some"


def _equally_fast(case: Case) -> str:
    seconds = sorted(row[1] for row in case["fitting"])
    return "yes" if seconds[:1] == seconds[1:2] and seconds else "no"


def _budget(case: Case) -> str:
    return "exact" if any(row[2] == case["choice"].budget for row in case["choice"].rows) else "roomy"


def _plain(case: Case) -> str:
    return "fits" if any(row[0] is None for row in case["fitting"]) else "does not"


BEST = Space(
    probes=(Best.probe,),
    cases=_choices,
    dimensions=(
        Dimension("fits", ("none", "one", "some", "all"), _fits),
        Dimension("budget", ("exact", "roomy"), _budget),
        Dimension("two are equally fast", ("no", "yes"), _equally_fast),
        Dimension("without checkpointing", ("fits", "does not"), _plain),
    ),
    apart={
        ("fits=none", "budget=exact"): "a peak of exactly the budget fits",
        ("fits=none", "two are equally fast=yes"): "none fits",
        ("fits=none", "without checkpointing=fits"): "none fits",
        ("fits=one", "two are equally fast=yes"): "one has no other",
        ("fits=all", "without checkpointing=does not"): "all fit",
    },
)

SPACES = (EQUIVALENCE, SAVED, EVALUATION, MEASURED, BEST)
