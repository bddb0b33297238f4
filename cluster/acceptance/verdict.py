"""A check, its four outcomes, and what they add up to. No PyTorch here, and nothing is measured.

- pass: measured, and within its threshold.
- fail: measured, and not; or what should have been measured broke.
- skipped: left out on request, or there is nothing that it could be about (one GPU has no peers).
- unverified: asked for, but this run cannot tell. It never counts as a pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

Status = Literal["pass", "fail", "skipped", "unverified"]
Part = Literal["gpu", "communication", "network", "training", "health", "run"]
PARTS: dict[Part, str] = {
    "run": "Processes",
    "gpu": "GPUs",
    "communication": "Communication",
    "network": "Network ports",
    "training": "Training",
    "health": "Health of the GPUs, before and after",
}
"""In the order of the report, with their titles."""

Relation = Literal["at most", "at least"]
Outcome = Literal["PASS", "FAIL", "INCOMPLETE", "COULD NOT RUN"]
_RANKS: dict[Status, int] = {"skipped": 0, "pass": 0, "unverified": 1, "fail": 2}
MOST_ERRORS = 8
"""Lines of the banner."""
EXIT_CODES: dict[Outcome, int] = {"PASS": 0, "FAIL": 1, "COULD NOT RUN": 2, "INCOMPLETE": 3}
UNUSUAL = "unusual"
"""Name of a check of what stands out; if it passes all bounds, the banner says it."""
MOST_UNUSUAL = 4
"""Subjects of them in the banner."""
MOST_HIDDEN = 0.15
"""Of a rate, that all may have lost alike before the banner says so."""
SLOW_LATENCY = 0.35
"""Of the limit, which is ten times what is usual."""
OF_ITS_KIND = 0.88
"""Of the share of the best that other rates of a kind reach: below it one is named as well."""
NOT_WRITTEN = 4
"""Exit code, whatever the verdict: what was asked for could not be written where it was asked for."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What a measured value is compared with."""

    value: float
    unit: str
    relation: Relation
    source: str
    """Where the value comes from: a document, an option, or "ours" and why."""

    def holds(self, measured: float) -> bool:
        """Whether `measured` is within it; a value that is not a number never is."""
        return measured <= self.value if self.relation == "at most" else measured >= self.value


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question, asked of one GPU, pair, rank or the whole, with its answer."""

    name: str
    """The question, the same for every subject: "product float16: result"."""
    part: Part
    subject: str
    """For people: "GPU 1 (rank 1, node17)", "all ranks"."""
    status: Status
    evidence: str
    """What was seen, in one line."""
    remedy: str
    """What to do when it is not a pass, in one line."""
    rank: int | None = None
    """None where it is not about one rank."""
    measured: float | None = None
    """In the unit of the threshold."""
    threshold: Threshold | None = None
    simulated: bool = False
    published: float | None = None
    """The best that such parts reach, in the threshold's unit: what a pass misses of it, all may have lost alike."""
    nothing_known: bool = False
    """Of what is unverified: a reading, or anything to compare it with, is missing. Else what was seen is doubtful."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the whole run says."""

    outcome: Outcome
    summary: tuple[str, ...]
    """Lines of the banner, without their dashes."""

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 could not run, 3 incomplete."""
        return EXIT_CODES[self.outcome]


def compared(measured: float, threshold: Threshold) -> Status:
    """Pass or fail."""
    return "pass" if threshold.holds(measured) else "fail"


def graded(measured: float | None, fails: Threshold, passes: Threshold) -> tuple[Status, Threshold]:
    """Fail, pass, or between the two unverified: too little for a pass, too much to blame anybody. None is skipped.

    Returns:
        The outcome, and the threshold that decided it.
    """
    if measured is None:
        return "skipped", fails
    if not fails.holds(measured):
        return "fail", fails
    return ("pass" if passes.holds(measured) else "unverified"), passes


def believable(
    outcome: tuple[Status, Threshold], measured: float, most: float, *, unit: str
) -> tuple[Status, Threshold]:
    """The outcome of a rate; no pass if it is more than there can be: then a clock, or the name of a part, is wrong."""
    status, _ = outcome
    limit = Threshold(
        value=most, unit=unit, relation="at most",
        source="these parts cannot do more: is the host's clock right (chronyc tracking), and the board what it says?",
    )  # fmt: skip
    return ("unverified", limit) if status == "pass" and not limit.holds(measured) else outcome


def as_simulated(checks: Iterable[Check]) -> list[Check]:
    """The same checks of a run on virtual GPUs: what passed there is unverified, what failed has failed."""
    return [
        replace(
            check,
            simulated=True,
            nothing_known=check.nothing_known or check.status == "pass",
            status="unverified" if check.status == "pass" and check.part != "run" else check.status,
            remedy=check.remedy if check.status == "fail" else "run it on a machine with NVIDIA GPUs",
            evidence=f"{check.evidence} (simulated{', no real GPU was tested' if check.status == 'pass' else ''})",
        )
        for check in checks
    ]


def at_worst(before: Sequence[Check], after: Sequence[Check]) -> list[Check]:
    """Checks of what was read twice: the first answer, or the second one where that is worse."""
    answers = {check.name: check for check in before}
    for check in after:
        first = answers.get(check.name)
        if first is None or _RANKS[check.status] > _RANKS[first.status]:
            evidence = f"after the run: {check.evidence}" + (f"; before it: {first.evidence}" if first else "")
            answers[check.name] = replace(check, evidence=evidence)
    return list(answers.values())


def part_status(checks: Sequence[Check], part: Part) -> Status:
    """The worst outcome of a part; skipped where nothing was asked."""
    statuses = {check.status for check in checks if check.part == part}
    order: tuple[Status, ...] = ("fail", "unverified", "pass")
    return next((status for status in order if status in statuses), "skipped")


def decide(
    checks: Sequence[Check], *, device: str, simulated: bool, faults: Sequence[str] = (), notes: Sequence[str] = ()
) -> Verdict:
    """Add up the checks.

    Args:
        checks: of the whole run.
        device: what the ranks ran on: "cuda" or "cpu".
        simulated: whether those GPUs are virtual.
        faults: what was injected; a run with faults can fail or be incomplete, never pass.
        notes: lines of the banner on what the verdict is not about.

    Returns:
        FAIL if any check failed; else INCOMPLETE if any is unverified, no GPU was there or a fault was injected; else
        PASS.
    """
    real = device == "cuda" and not simulated
    failed = [check for check in checks if check.status == "fail"]
    open_ones = any(check.status == "unverified" for check in checks)
    outcome: Outcome = "FAIL" if failed else "INCOMPLETE" if open_ones or faults or not real else "PASS"
    available = "NO" if device != "cuda" else "SIMULATED" if simulated else "YES"
    if real and any(check.name.startswith("presence") for check in failed):
        available = "NOT ALL"
    if device == "cuda":
        communication, training = (part_status(checks, part).upper() for part in ("communication", "training"))
    else:
        communication = _without_gpu(checks, "communication", "gloo, on the CPU")
        training = _without_gpu(checks, "training", "on the CPU")
    summary = [
        f"GPU Available: {available}",
        f"GPU Computation: {part_status(checks, 'gpu').upper()}",
        f"NCCL Communication: {communication}",
        f"Training Status: {training}",
        f"GPU Health: {part_status(checks, 'health').upper()}",
    ]
    if simulated:
        summary.append("SIMULATED: virtual GPUs; nothing here is about a real one")
    summary += [f"Injected on purpose: {fault}" for fault in faults]
    summary += notes
    # The first failure of each part and rank: each culprit is named, and none fills the banner alone.
    named = {(check.part, check.subject): check for check in reversed(failed)}
    shown = [check for check in failed if named[check.part, check.subject] is check]
    summary += [f"Error: {check.name}, {check.subject}: {check.evidence}" for check in shown[:MOST_ERRORS]]
    if len(failed) > len(shown[:MOST_ERRORS]):
        summary.append(f"Error: {len(failed)} failures in all, see the report")
    return Verdict(outcome=outcome, summary=tuple(summary))


def not_excluded(checks: Iterable[Check]) -> str:
    """One line on what passed and may still be slower than it should, on all alike; empty if nothing is by much.

    Sound parts differ, so that a bound has to be below the slowest of them. What is between it and the best, no
    comparison with the other GPUs shows.
    """
    losses: dict[str, float] = {}
    slow: dict[str, float] = {}
    for check in checks:
        if check.status == "pass" and check.published and check.measured is not None:
            losses[check.name] = max(losses.get(check.name, 0.0), 1 - check.measured / check.published)
        if check.name.endswith(": latency") and check.status == "pass" and check.threshold and check.measured:
            used = check.measured / check.threshold.value
            if check.threshold.relation == "at most" and used > SLOW_LATENCY:
                slow[check.name] = max(slow.get(check.name, 0.0), used)
    of_kind: dict[str, list[float]] = {}
    for name, loss in losses.items():
        of_kind.setdefault(name.rpartition(":")[2], []).append(1 - loss)
    # Of a kind of rates (bus bandwidth, copies) one alone may be slower than the others are.
    large = sorted(
        ((loss, name) for name, loss in losses.items()
         if loss > MOST_HIDDEN or 1 - loss < OF_ITS_KIND * median(of_kind[name.rpartition(":")[2]])), reverse=True,
    )  # fmt: skip
    words = [f"{name} by up to {loss:.0%}" for loss, name in large[:MOST_ERRORS]]
    words += [f"{name} is at {used:.0%} of its limit" for name, used in slow.items()]
    if not words:
        return ""
    shown = ", ".join(words)
    more = f" and {len(large) - MOST_ERRORS} more" if len(large) > MOST_ERRORS else ""
    return f"Not excluded: all alike may be slower than they should be: {shown}{more}; --baseline or --expect shows it"


def standing_out(checks: Iterable[Check]) -> str:
    """One line on what passed all bounds, and stands out from its siblings or from sound machines."""
    odd = [check for check in checks if check.name == UNUSUAL and check.status == "pass"]
    if not odd:
        return ""
    shown = "; ".join(f"{check.subject}: {check.evidence}" for check in odd[:MOST_UNUSUAL])
    more = f"; and {len(odd) - MOST_UNUSUAL} more (see the report)" if len(odd) > MOST_UNUSUAL else ""
    return f"Not excluded: unusual, though within all bounds: {shown}{more}"


def could_not_run(reason: str) -> Verdict:
    """Nothing could be tested."""
    return Verdict(outcome="COULD NOT RUN", summary=("GPU Available: NO", f"Error: {reason}"))


def _without_gpu(checks: Sequence[Check], part: Part, how: str) -> str:
    """Of a part that a CPU can do as well: what was seen there says nothing about GPUs, unless it failed."""
    status = part_status(checks, part)
    if status == "skipped":
        return "SKIPPED"
    outcome = part_status([check for check in checks if check.status != "unverified"], part)
    return f"FAIL ({how})" if status == "fail" else f"UNVERIFIED ({how}: {outcome.upper()})"


def banner(verdict: Verdict) -> str:
    """The lines that stand above everything else."""
    rule = "=" * 50
    return "\n".join([rule, f"FINAL ACCEPTANCE: {verdict.outcome}", *_shown(verdict.summary), rule])


def _shown(summary: Sequence[str]) -> Iterator[str]:
    """One point for each line, and one for all lines that quote values without a norm."""
    kind = "Not judged: "
    first = next((line for line in summary if line.startswith(kind)), "")
    quoted = [line.removeprefix(kind) for line in summary if line.startswith(kind) and line != first]
    yield from (f"- {line}" for line in summary if line == first or not line.startswith(kind))
    if quoted:
        yield "- Not judged, because nobody has published a norm; look these values over:"
        yield from (f"    {line}" for line in quoted)
