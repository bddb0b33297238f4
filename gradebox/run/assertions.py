"""What a check says: numeric comparisons with the reference value, and the ways a check can end.

Used by the checks of a course. Works on what a probe reported, with NumPy only; it never sees the submission's objects.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradebox.run.array_reference import in_place
from gradebox.run.pictures import Picture, curve

_OF_WRONG_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises if a value is not what the code expects."""
_TOLD = 0.005
"""A tolerance from which on it is worth telling; smaller ones mean "equal, except for rounding"."""
_MAX_SHOWN = 80
"""Characters of a value in a message that wants a number."""
_MAX_COMPARED = 600
"""Characters of each of two values that are compared."""
_MAX_MESSAGE = 2000
"""Characters of a message: it names values that a submission made, and they may be of any length."""


class Cause(str):
    """A hint that names the mistake it is about: give it where what was seen shows that mistake, and no other.

    Of the checks of a lab that fail for the same cause, one is charged; the others follow from it (`deductions.py`).
    """

    name: str
    check: str
    mistake: str

    def __new__(cls, name: str, hint: str, check: str = "", *, mistake: str = "") -> Self:
        """A hint, and the mistake that it is about.

        Args:
            name: the same in all checks that recognise the mistake.
            hint: what to do, in one or two sentences.
            check: the mistake is charged there if that check failed too, and else in the check that is worth most.
            mistake: what is wrong, in one sentence without a full stop, with which a report begins: "Gradients are
                never cleared".
        """
        cause = super().__new__(cls, hint)
        cause.name, cause.check, cause.mistake = name, check, mistake
        return cause


@contextlib.contextmanager
def recognising(cause: Callable[[], Cause | None]) -> Iterator[None]:
    """If a check fails in here without saying why, let `cause` look for the mistake, and say that.

    The value that `cause` looks at comes from the submission. It may be wrong in any other way as well, such as a text
    instead of a number. If `cause` cannot make anything of it, nothing is recognised, and the check fails for what it
    has seen.
    """
    try:
        yield
    except CheckFailed as error:
        mistake = None
        if error.cause is None:
            with contextlib.suppress(CheckFailed, NeedsReview, *_OF_WRONG_VALUES):
                mistake = cause()
        if mistake is None:
            raise
        raise CheckFailed(
            error.message, mistake, answered=error.answered, picture=error.picture, evidence=error.evidence
        ) from None


@contextlib.contextmanager
def picturing(picture: Callable[[], Picture | None]) -> Iterator[None]:
    """Where a check fails in here, `picture` is shown next to its words."""
    try:
        yield
    except CheckFailed as error:
        if error.picture is None:
            error.picture = picture()
        raise


class CheckFailed(AssertionError):
    """The submission does something wrong: says what was seen, what was expected, and where to look."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        answered: bool = True,
        picture: Picture | None = None,
        evidence: str = "",
    ) -> None:
        """What is wrong, and where to look.

        Args:
            message: what was seen and what was expected.
            hint: what to do.
            answered: the submission's code came to its end, and what it gave was judged.
            picture: for the page.
            evidence: how and at which line the submission's code ended, in words that a report can begin with. Checks
                with the same evidence show the same mistake (`deductions.py`).
        """
        message = _cut(message, _MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.hint = str(hint)
        self.answered = answered
        self.picture = picture
        self.evidence = _cut(evidence, _MAX_COMPARED)
        self.cause = hint if isinstance(hint, Cause) else None


class NeedsReview(Exception):
    """We could not decide. Scores as failed for now, and asks a person to look."""

    def __init__(self, message: str, hint: str = "") -> None:
        message = _cut(message, _MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.hint = hint


def shown(value: Any, most: int = _MAX_COMPARED) -> str:
    """`value` as Python would write it, in at most so many characters."""
    if isinstance(value, str) and len(value) > most:  # not first made longer by quoting all of it
        value = value[: most + 1]
    try:
        return _cut(repr(value), most)
    except (RecursionError, ValueError):  # an integer of very many digits, or lists in lists without end
        return f"{type(value).__name__} too large to show"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def require(condition: bool, message: str, hint: str = "") -> None:
    """Fail the check with `message` unless `condition` holds."""
    if not condition:
        raise CheckFailed(message, hint)


def number(value: Any, what: str, hint: str = "") -> float:
    """`value` as a finite float; fails the check, naming `what`, for anything else."""
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iuf":
        value = value.item()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer larger than any float
            if math.isfinite(as_float := float(value)):
                return as_float
    raise CheckFailed(f"{what} must be a finite number, but it is {_described(value)}", hint)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size != 1:
        return f"an array of {value.dtype} with shape {value.shape}"
    return shown(value, _MAX_SHOWN)


def positive(value: Any, what: str, hint: str = "") -> float:
    """`value` as a finite float above 0, by which one may divide; fails the check, naming `what`, for anything else."""
    size = number(value, what, hint)
    require(size > 0, f"{what} must be above 0, but it is {size:g}", hint)
    return size


def numbers(values: Any, count: int, what: str, hint: str = "") -> list[float]:
    """`values` as that many finite floats; fails the check, naming `what`, for anything else."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    require(isinstance(values, list), f"{what} must be a list of numbers, but it is {_described(values)}", hint)
    require_equal(len(values), count, what=f"length of {what}", hint=hint)
    return [number(value, f"{what}[{index}]", hint) for index, value in enumerate(values)]


def require_close(
    observed: object, expected: float, *, relative: float, what: str, show: Callable[[float], str] = str, hint: str = ""
) -> None:
    """Fail unless `observed` lies within `relative` (a ratio) of `expected`; `show` renders a value with its unit."""
    if show is str:
        show = _as_short_as(observed, expected)
    require_between(
        observed,
        expected * (1 - relative),
        expected * (1 + relative),
        what=what,
        show=show,
        expected=show(expected) + (f" within {100 * relative:g} %" if relative >= _TOLD else ""),
        hint=hint,
    )


def _as_short_as(observed: Any, expected: float) -> Callable[[float], str]:
    """How to show two numbers without a unit: whole ones as they are, others in the digits in which they differ."""
    if not isinstance(observed, float) or observed == expected or not math.isfinite(observed):
        return lambda value: _plain(value, 6) if isinstance(value, float) else str(value)
    digits = next((n for n in (6, 9, 12) if _plain(observed, n) != _plain(float(expected), n)), 17)
    return lambda value: _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    """A number in so many significant digits, without an exponent where people can do without."""
    size = abs(float(f"{value:.{digits}g}"))
    if not 1e3 <= size < 1e12:
        return f"{value:.{digits}g}"
    whole = int(math.log10(size)) + 1
    shown = f"{round(value, digits - whole):,.{max(0, digits - whole)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def require_between(
    observed: object,
    low: float,
    high: float,
    *,
    what: str,
    show: Callable[[float], str] = str,
    expected: str | None = None,
    hint: str = "",
) -> None:
    """Fail unless `low <= observed <= high`."""
    observed = number(observed, what, hint)
    if low <= observed <= high:
        return
    if show is str:
        show = _as_short_as(observed, low if observed < low else high)
    bounds = expected or f"between {show(low)} and {show(high)}"
    raise CheckFailed(f"{what}: saw {show(observed)}, expected {bounds}{_factor(observed, low, high)}", hint)


def _factor(observed: float, low: float, high: float) -> str:
    """How far off, where a factor says more than two numbers do."""
    if observed > 0 and low > 0:
        if high < 1.25 * low:  # one value with a tolerance
            low = high = math.sqrt(low * high)
        ratio = observed / high if observed > high else low / observed
        if ratio >= 1.5:
            return f" ({_plain(ratio, 3)} times too {'large' if observed > high else 'small'})"
    return ""


def require_arrays_close(
    observed: object, expected: ArrayLike, *, rtol: float, atol: float = 0.0, what: str, hint: str = ""
) -> None:
    """Fail unless two arrays agree in shape and, element by element, within `atol + rtol * |expected|` in float64.

    Complex numbers agree where complex ones are expected, by the absolute value of the difference. Texts and truth
    values are no numbers.

    Raises:
        ValueError: `expected` has a NaN, with which nothing agrees.
    """
    reference = np.asarray(expected)
    reference = reference.astype(np.complex128 if reference.dtype.kind == "c" else np.float64)
    if np.isnan(reference).any():
        raise ValueError(f"{what}: NaN is expected, with which nothing agrees")
    actual = _numeric(observed, reference, what, hint)
    require(actual.shape == reference.shape, f"{what}: shape {actual.shape}, expected {reference.shape}", hint)
    wrong = ~(np.abs(actual - reference) <= atol + rtol * np.abs(reference))
    if wrong.any():
        first = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise CheckFailed(
            f"{what}: {int(wrong.sum())} of {wrong.size} values differ; the first is at {list(first)}: "
            f"{_apart(actual[first].item(), reference[first].item())}",
            hint,
            picture=curve(what, actual, reference),
        )


def _numeric(observed: Any, reference: NDArray[Any], what: str, hint: str) -> NDArray[Any]:
    """What was seen as numbers of the expected kind; fails the check for anything else."""
    observed = in_place(observed)
    if isinstance(observed, str):  # also for what cannot be sent: "<generator>"
        raise CheckFailed(f"{what}: saw {shown(observed)}, expected {_as_many(reference)}", hint)
    try:
        actual = np.asarray(observed)
    except ValueError as error:  # rows of different lengths
        actual, reason = np.asarray(None), str(error)
    else:
        reason = {"U": "texts", "S": "texts", "b": "truth values"}.get(actual.dtype.kind, "")
        if actual.dtype.kind == "O" and not all(type(item) in (int, float) for item in actual.flat):
            reason = "not all of them"
    if actual.dtype.kind == "c" and reference.dtype.kind != "c":
        reason = "complex numbers, and real ones are expected"
    try:
        if not reason:
            return actual.astype(reference.dtype)
    except (OverflowError, TypeError, ValueError) as error:
        reason = str(error)
    raise CheckFailed(f"{what}: these are not {reference.shape} numbers ({_cut(reason, _MAX_SHOWN)})", hint)


def _as_many(reference: NDArray[Any]) -> str:
    return f"a list of {reference.size} numbers" if reference.ndim == 1 else f"numbers of shape {reference.shape}"


def _apart(actual: complex, reference: complex) -> str:
    """Two numbers in as few digits as show their difference, six at least."""
    digits = next((n for n in (6, 9, 12, 17) if f"{actual:.{n}g}" != f"{reference:.{n}g}"), 6)
    return f"saw {actual:.{digits}g}, expected {reference:.{digits}g}"


def require_equal(observed: Any, expected: Any, *, what: str, hint: str = "") -> None:
    """Fail unless `observed == expected`, of JSON values.

    Raises:
        TypeError: `expected` is of a kind that no probe can report.
    """
    if isinstance(expected, (tuple, set, frozenset)) and not isinstance(observed, type(expected)):
        raise TypeError(
            f"{what}: a {type(expected).__name__} is expected, and nothing that a probe reports is one: tuples become "
            "lists on the way, and sets do not travel"
        )
    require(
        type(observed) is type(expected) and observed == expected,
        f"{what}: saw {shown(observed)}, expected {shown(expected)}",
        hint,
    )


def seconds(value: float) -> str:
    """A duration for people: `3.21 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"


def mebibytes(value: float) -> str:
    """An amount of memory for people: `1,048,576 bytes (1 MiB)`."""
    return f"{value:,.0f} bytes ({value / 2**20:.4g} MiB)"


def median(values: Sequence[float]) -> float:
    return float(np.median(np.asarray(values, dtype=np.float64)))
