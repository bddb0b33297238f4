"""Has a submission measure products, and fails a check whose products did not run as its call says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradebox.run.assertions import number, require, require_between, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.shared.cases.drawn import (
    Condition,
    crossed_calls,
    first_and_last,
    hiccup_conditions,
)
from grader.lab1.shared.cases.operands import Operands
from grader.lab1.shared.cases.products import Call, Hiccup, Matmul, ProductCount
from grader.lab1.shared.checks.mistakes import DEVICE_AS_TEXT, named_otherwise
from grader.lab1.shared.reference import Interval, Measurement, count_of, expected
from grader.shared.cards import card_of

_PACES = (1.4, 4.0)
"""A virtual GPU takes so many times as long as its data sheet lets expect: far more than any tolerance, and more than
the share of its peak that a product does not reach."""
_PLACES = {"cuda": "GPU", "cpu": "CPU"}

LAUNCHED = {Matmul.probe: "lab1.shared.launches.matmul"}
"""For the picture of what a submission's benchmark launched: the same products, each of them waited for."""


def measure(
    submission: Submission,
    generator: InputGenerator,
    device: str,
    calls: Sequence[Call],
    *,
    hiccups: Sequence[Sequence[Hiccup]] = (),
    warm: bool = False,
    busy_products: int = 0,
) -> list[Measurement]:
    """Run `benchmark_matmul` on `device` once per entry of `calls`; what was observed of each.

    `hiccups` are runs of slow products of each call (virtual GPU only); `warm` and `busy_products`: see `Matmul`.

    Shapes only: times do not depend on values, and a large product costs nothing then. A virtual GPU runs at a pace of
    its own, another one in each request: what a data sheet says is not what can be measured.
    """
    pace = None if device == "cuda" else round(generator.uniform(*_PACES), 3)
    conditions: list[Condition] = []
    if pace is not None:
        conditions = [{"factor": pace}, *hiccup_conditions(calls, hiccups, busy_products)]
    reply = submission.probe(
        Matmul(calls=list(calls), warm=warm, busy_products=busy_products, with_own_seconds=pace is None),
        device=device,
        values=False,
        conditions=conditions,
    )
    return [
        Measurement(call=call, observed=observed, pace=pace) for call, observed in zip(calls, reply.calls, strict=True)
    ]


def crossed(submission: Submission, generator: InputGenerator, *, by_default: bool) -> list[Measurement]:
    """Calls in which whatever a caller of `benchmark_matmul` chooses meets everything else, and what was observed.

    The same for all checks of one grading, so run once. `by_default`: with the arguments of the document alone.
    """
    generator, device = generator.shared("lab1.crossed"), submission.device
    calls, disturbed = crossed_calls(generator, device, card_of(submission), by_default=by_default)
    hiccups = [first_and_last(call) if slow else [] for call, slow in zip(calls, disturbed, strict=True)]
    measurements = measure(submission, generator, device.name, calls, warm=True, hiccups=hiccups)
    return [replace(run, hiccups=slow) for run, slow in zip(measurements, hiccups, strict=True)]


def require_within(interval: Interval, observed: object, what: str, hint: str) -> None:
    """Fail unless `observed` is a number of seconds that an honest measurement can give."""
    require_between(observed, interval.low, interval.high, what=what, show=seconds, hint=hint)


def require_ran(
    call: Call, products: Sequence[ProductCount], hint: str, *, iterations: int | None = None, place: str = "cuda"
) -> None:
    """Fail unless the products whose time was reported have run there: what a clock read is more than a number.

    Args:
        call: what was called.
        products: all that ran.
        hint: where to look.
        iterations: how many products must have run; without it, those that `call` names.
        place: "cuda" or "cpu".
    """
    ran, timed = count_of(call, products, place=place), iterations or call["iterations"]
    require(
        ran >= timed,
        f"{ran} products of {call['size']} in {call.get('dtype', 'float32')} ran on the {_PLACES[place]}, of which "
        f"{timed} were to be timed",
        hint,
    )


def require_any_ran(submission: Submission, generator: InputGenerator, measured: Measurement) -> None:
    """Fail if no product ran on the GPU, nor on the CPU if it is asked for: another check charges for the place."""
    if measured.observed.products:
        return
    operands = Operands(size=generator.odd(31, 63), iterations=measured.iterations)
    ran = submission.probe(operands, device="cpu").products
    require(
        ran >= operands.iterations,
        f"{as_written(measured.call)} ran no product on the GPU, and benchmark_matmul('cpu', {operands.size}, "
        f"iterations={operands.iterations}) ran {ran}",
        "Multiply the two matrices, and report what the products took.",
    )


def as_written(call: Call) -> str:
    """A call as it would be written."""
    arguments = dict(call)
    options = [f"{name}={arguments[name]}" for name in ("iterations", "dtype", "warmup") if name in arguments]
    return f"benchmark_matmul({', '.join([named(call), str(call['size']), *options])})"


def named(call: Call) -> str:
    """The device of a call as it would be written."""
    device = repr(call.get("device", "cuda"))
    return f"torch.device({device})" if call.get("as_object") else device


def seconds_of(measured: Measurement) -> float:
    """The seconds of a call as a number; fails the check for anything else."""
    return number(measured.seconds, "MatmulResult.seconds")


def require_waited_for_by_any_name(device: str, measurements: Sequence[Measurement]) -> None:
    """Fail unless the GPU is waited for by each of NAMES, if it is by the first.

    Each call times one product, so that also a warm-up that nobody has waited for shows. If the first name goes wrong,
    too, that is no question of names: the checks of measurements report it.
    """
    took = [seconds_of(run) for run in measurements]
    honest = [expected(device, run) for run in measurements]
    right = [0.5 * interval.low <= own <= 3 * interval.high for own, interval in zip(took, honest, strict=True)]
    cause = named_otherwise(device, measurements)
    for run, own, good in zip(measurements, took, right, strict=True):
        require(
            good or not right[0],
            f"benchmark_matmul({named(run.call)}, {run.call['size']}, iterations=1): saw {seconds(own)}, but "
            f"{seconds(took[0])} with 'cuda' as a text, which is the same GPU",
            cause or str(DEVICE_AS_TEXT),
        )
