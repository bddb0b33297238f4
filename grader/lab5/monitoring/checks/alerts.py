"""Judges the alerts of Lab 5's monitor, snapshot by snapshot, and what a monitor reports of them. For monitoring.py."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from gradebox.run.assertions import Cause, recognising, require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.monitoring.cases import (
    AlertReport,
    Evaluate,
    EvaluateReply,
    Raised,
    ReadingCase,
    RuleChange,
    SnapshotCase,
)
from grader.lab5.monitoring.cases import drawn as cases
from grader.lab5.monitoring.checks.exports import length, records
from grader.lab5.monitoring.reference import (
    CONDITION_MISTAKES,
    REPORT_MISTAKES,
    SEVERITIES,
    WAITING_MISTAKES,
    ExpectedAlert,
    Key,
    expected_alerts,
    expected_reports,
)

EXACT = 1e-9
"""Of values that are compared with thresholds."""


_FIRE, _WAIT = "lab5.monitoring.alerts_fire", "lab5.monitoring.alerts_wait_and_clear"
_LIMIT = Cause(
    "alert_at_the_limit",
    "Compare with > and <, not with >= and <=. A value that equals the threshold breaks no rule.",
    _FIRE,
    mistake="A value that is exactly at the threshold raises an alert",
)
_REASONS = Cause(
    "reasons_that_do_not_count",
    "Compare `throttle_reasons` with SLOWED_BY. At its power cap a GPU is whenever it works hard.",
    _FIRE,
    mistake="A throttle reason that is not in SLOWED_BY, such as the power cap, raises an alert",
)
_CAUSES: Mapping[str, Cause] = {
    "limit_counts": _LIMIT,
    "limit_counts, also of errors": _LIMIT,
    "idle_if_absent": Cause(
        "idle_if_absent",
        "Do not compare a utilisation that is None: an absent value breaks no rule.",
        _FIRE,
        mistake="A GPU that reports no utilisation counts as idle",
    ),
    "power_cap_counts": _REASONS,
    "any_reason_counts": _REASONS,
    "only_nan": Cause(
        "infinite_loss_unnoticed",
        "Use `math.isfinite`. A loss may be infinite as well as not a number.",
        _FIRE,
        mistake="An infinite loss is not noticed, only NaN is",
    ),
    "one_missing_skips_gpu": Cause(
        "one_missing_reading_skips_the_gpu",
        "Ask of each rule only for the reading that it compares. The other readings of that GPU may be absent.",
        _FIRE,
        mistake="A GPU that lacks one reading raises no alert of its other readings",
    ),
    "only_gpu_0": Cause(
        "only_the_first_gpu",
        "Evaluate each rule for every GPU of the snapshot. Each GPU has alerts of its own.",
        _FIRE,
        mistake="Only the first GPU raises alerts",
    ),
    "never_waits": Cause(
        "alert_without_waiting",
        "Fire once the condition has held for `for_seconds`. Count from the first snapshot of the unbroken row.",
        _WAIT,
        mistake="An alert is raised at once, without waiting for `for_seconds`",
    ),
    "row_survives_break": Cause(
        "row_survives_a_break",
        "Forget since when a condition holds as soon as it does not. The next row begins at its own first snapshot.",
        _WAIT,
        mistake="The time before a break counts: a condition that comes again does not wait again",
    ),
    "row_by_rule": Cause(
        "row_of_another_gpu",
        "Remember since when a condition holds by rule and GPU. Each GPU waits from its own first snapshot.",
        _WAIT,
        mistake="A GPU inherits the time for which the condition has held on another GPU",
    ),
    "every_time": Cause(
        "reported_every_time",
        "Call `on_alert` only for alerts that did not fire at the evaluation before.",
        _WAIT,
        mistake="An alert is reported again at every sample",
    ),
    "once_ever": Cause(
        "reported_once_ever",
        "Forget an alert once it has stopped. When it comes again, it is reported again.",
        _WAIT,
        mistake="An alert that stops and comes back is not reported again",
    ),
    "by_rule_alone": Cause(
        "second_gpu_not_reported",
        "Compare alerts by rule and GPU. Each GPU has alerts of its own.",
        _WAIT,
        mistake="An alert of the second GPU is not reported while the first GPU has the same",
    ),
}
"""What to say of each mistake of the reference's."""
_MESSAGE = Cause(
    "alert_message_without_its_gpu",
    "Begin the message with the rule's name, and name the GPU's index if the alert is about one.",
    _FIRE,
    mistake="An alert's message does not say which GPU it is about",
)
REPORTED_EVERY_TIME = _CAUSES["every_time"]
NOT_FINITE_LEFT_OUT = Cause(
    "not_finite_left_out",
    "Keep every metric, NaN and infinite ones included. The exports and the alerts are there to show them.",
    "lab5.monitoring.training_metrics_logged",
    mistake="Metrics that are not finite are left out: a NaN loss is not in the snapshot",
)
DROPPED = Cause(
    "readings_not_in_the_snapshot",
    "Put what the reader returned into the snapshot: `gpus` of the new one.",
    "lab5.monitoring.training_metrics_logged",
    mistake="The readings of the GPUs are dropped: no snapshot has them",
)
_RAISED = ("GpuHot", "LossNotFinite")
"""The rules of the monitor that reports alerts."""
_WITHOUT_WAITING: dict[str, RuleChange] = {name: {"for_seconds": 0.0} for name in SEVERITIES}

Run = tuple[Evaluate, EvaluateReply]


def cause_of_missing_alerts(submission: Submission, received: Sequence[object]) -> Cause | None:
    """Why a monitor raised no alert of one of two rules, if the student's engine raises both: it never saw the one."""
    snapshot: SnapshotCase = {
        "time": 1.0,
        "metrics": {"loss": "nan"},
        "gpus": [{"index": 0, **cases.UNKNOWN, "temperature_celsius": cases.HOT + 5.0}],
    }
    (firing,) = _conditions(submission, Evaluate(rules={}, snapshots=[snapshot]))
    if set(firing) != {("GpuHot", 0), ("LossNotFinite", None)}:
        return None
    if len(received) != 1:
        return None
    return {"GpuHot": NOT_FINITE_LEFT_OUT, "LossNotFinite": DROPPED}.get(str(received[0]))


def judge_at_once(submission: Submission, generator: InputGenerator) -> None:
    """Feed engines whose rules do not wait, and compare the alerts at every snapshot."""
    _judge_alerts(submission, cases.snapshots_at_once(generator.shared("lab5.alerts.True")), own_conditions=False)


def judge_over_time(submission: Submission, generator: InputGenerator, *, own_conditions: bool) -> None:
    """The same for rules that wait; with `own_conditions`, from when on the student's own conditions hold."""
    inputs = cases.snapshots_over_time(generator.shared("lab5.alerts.False"))
    _judge_alerts(submission, inputs, own_conditions=own_conditions)


def _conditions(submission: Submission, inputs: Evaluate) -> list[list[Key]]:
    """For which rules and GPUs the student says that a condition holds, at each snapshot by itself."""
    rules: dict[str, RuleChange] = {name: {**inputs.rules.get(name, {}), "for_seconds": 0.0} for name in SEVERITIES}
    reply = submission.probe(Evaluate(rules=rules, snapshots=inputs.snapshots), device="cpu")
    return [
        [(str(alert.rule), alert.gpu if isinstance(alert.gpu, int) else None) for alert in alerts]
        for alerts in reply.alerts
    ]


def _judge_alerts(submission: Submission, inputs_of_engines: Iterable[Evaluate], *, own_conditions: bool) -> None:
    runs = [(inputs, submission.probe(inputs, device="cpu")) for inputs in inputs_of_engines]
    with recognising(lambda: _cause_of(runs)):
        for inputs, reply in runs:
            holding = _conditions(submission, inputs) if own_conditions else None
            _judge_engine(inputs, reply, holding)
    if not own_conditions:
        _require_own_gpu_named([alert for _, reply in runs for alerts in reply.alerts for alert in alerts])


def _cause_of(runs: Sequence[Run]) -> Cause | None:
    """The mistake with which the reference raises these alerts, in all runs."""

    def explains(mistake: str) -> bool:
        return all(
            _shown_of(reply) == [[(*each.key, each.since) for each in firing] for firing in expected]
            for inputs, reply in runs
            for expected in [expected_alerts(inputs.rules, inputs.snapshots, mistake)]
        )

    if explains(""):
        return None
    mistakes = (*CONDITION_MISTAKES, *WAITING_MISTAKES)
    return next((_CAUSES[mistake] for mistake in mistakes if explains(mistake)), None)


def _shown_of(reply: EvaluateReply) -> list[list[tuple[object, ...]]]:
    return [[(alert.rule, alert.gpu, alert.since) for alert in alerts] for alerts in reply.alerts]


def _judge_engine(inputs: Evaluate, reply: EvaluateReply, holding: Sequence[Sequence[Key]] | None) -> None:
    rules, snapshots = inputs.rules, inputs.snapshots
    require(bool(reply.refused), "AlertEngine.evaluate() with a rule of an unknown name raised no ValueError")
    for place, (snapshot, alerts, expected) in enumerate(
        zip(snapshots, reply.alerts, expected_alerts(rules, snapshots, holding=holding), strict=True)
    ):
        keys, expected_keys = [[alert.rule, alert.gpu] for alert in alerts], [each.key for each in expected]
        shown = {key: value for key, value in snapshot.items() if key != "gpus" or value}
        what = f"alerts (rule, GPU) at snapshot {place} of {len(snapshots)}"
        changed = f"; rules with other thresholds: {json.dumps(rules)}" if rules else ""
        same = sorted(keys, key=str) == sorted(expected_keys, key=str)
        require_equal(
            keys, expected_keys, what=f"order of the {what}" if same else what,
            hint="Compare strictly, let what is absent break no rule, and count an unbroken row. The snapshot: "
            f"{json.dumps(shown)}{changed}",
        )  # fmt: skip
        for alert in alerts:
            expected_one = next(each for each in expected if each.key == [alert.rule, alert.gpu])
            _judge_alert(alert, expected_one, what, about_conditions=holding is None)


def _names(message: str, gpu: int) -> bool:
    return re.search(rf"(?<!\d)(?<!\d\.){gpu}(?!\d|\.\d)", message) is not None


def _require_own_gpu_named(alerts: Sequence[AlertReport]) -> None:
    """Fail if messages of one rule about several GPUs each name all of them.

    Of all messages: in one, the alert's value may be another GPU's number.
    """
    messages: dict[object, dict[int, list[str]]] = {}
    for alert in alerts:
        if isinstance(alert.gpu, int):
            messages.setdefault(alert.rule, {}).setdefault(alert.gpu, []).append(alert.message)
    for rule, by_gpu in messages.items():
        texts = [message for of_gpu in by_gpu.values() for message in of_gpu]
        require(
            len(by_gpu) < 2 or not all(_names(message, gpu) for message in texts for gpu in by_gpu),
            f"the messages of {rule} on GPUs {', '.join(map(str, by_gpu))} name all of them, as {texts[0]!r}",
            _MESSAGE,
        )


def _judge_alert(alert: AlertReport, expected: ExpectedAlert, what: str, *, about_conditions: bool) -> None:
    """What an alert says besides its rule and its GPU, which are the expected ones."""
    rule, gpu = expected.rule, expected.gpu
    require_equal(alert.since, expected.since, what=f"since of {rule}, {what}")
    if not about_conditions:
        return
    if math.isfinite(expected.value):
        require_close(alert.value, expected.value, relative=EXACT, what=f"value of {rule}, {what}")
    else:
        require_equal(alert.value, str(expected.value), what=f"value of {rule}, {what}")
    require_equal(alert.severity, SEVERITIES[rule], what=f"severity of {rule}")
    rest = alert.message.removeprefix(rule)
    begins = rest != alert.message and "\n" not in rest
    require(
        begins and (gpu is None or _names(rest, gpu)),
        f"the message of {rule} on GPU {gpu} is {alert.message!r}",
        _MESSAGE if begins else "Begin the message with the rule's name, and name the GPU if the rule is about one.",
    )


def judge_reported(submission: Submission, generator: InputGenerator, *, own_conditions: bool) -> None:
    """Fail unless a monitor reports each alert once, of each GPU and of the training.

    With `own_conditions`, an alert is expected when the student's own engine raises it.
    """
    (_, _, lost), inputs = cases.raised(generator)
    reply = submission.probe(inputs, device="cpu")
    received = [[alert.rule, alert.gpu] for alert in reply.received]
    numbers = [step for step, on in enumerate(lost) if on]
    what = f"alerts given to on_alert while GPUs have {inputs.celsius} degrees, and the loss is NaN at steps {numbers}"
    evaluated = Evaluate(rules=_WITHOUT_WAITING, snapshots=_evaluated(inputs))
    firing = _own_firing(submission, evaluated) if own_conditions else _firing(evaluated, "")

    def cause() -> Cause | None:
        if _own_firing(submission, evaluated) != _firing(evaluated, ""):
            mistakes = [name for name in CONDITION_MISTAKES if received == expected_reports(_firing(evaluated, name))]
            return _CAUSES[mistakes[0]] if mistakes else None
        for rule in _RAISED:
            if received == expected_reports([[key for key in keys if key[0] == rule] for keys in firing]):
                return cause_of_missing_alerts(submission, [rule])
        return next((_CAUSES[name] for name in REPORT_MISTAKES if received == expected_reports(firing, name)), None)

    hint = "Report an alert once when it begins, and again only after it had stopped. Each GPU has alerts of its own."
    with recognising(cause):
        require_equal(received, expected_reports(firing), what=what, hint=hint)
    require_equal(reply.firing, [list(key) for key in firing[-1]], what=f"{what}: alerts in the last snapshot")
    _judge_history(reply.in_history, firing)
    require_equal(
        [length(record["alerts"]) for record in records(reply.jsonl)],
        [len(keys) for keys in firing[1::2]],
        what="alerts in each line of metrics.jsonl",
    )  # fmt: skip


def _judge_history(history: Sequence[Sequence[object]], firing: Sequence[Sequence[Key]]) -> None:
    """Fail unless the history has, with each sample, the alerts that fire at it."""
    expected = [[list(key) for key in keys] for keys in firing[::2]]
    # A snapshot that was appended too early has the alerts of the snapshot before it.
    earlier = [[], *([list(key) for key in keys] for keys in firing[1:-1:2])]
    hint = "Append each sample to the history once its alerts are evaluated."
    cause = Cause(
        "history_before_the_alerts",
        hint,
        mistake="A sample is added to the history before its alerts are evaluated",
    )
    for number, (actual, keys) in enumerate(zip(history, expected, strict=True), start=1):
        require_equal(
            actual, keys, what=f"rule and GPU of the alerts in GPUMonitor.history[-1] after sample {number}",
            hint=cause if list(history) == earlier else hint,
        )  # fmt: skip


def _evaluated(inputs: Raised) -> list[SnapshotCase]:
    """What a monitor evaluates of these: the GPUs are sampled before the loss of a step is logged."""
    snapshots: list[SnapshotCase] = []
    loss: float | str = 1.0
    for step, celsius in enumerate(inputs.celsius):
        gpus: list[ReadingCase] = [
            {"index": index, **cases.UNKNOWN, "temperature_celsius": value} for index, value in enumerate(celsius)
        ]
        snapshots.append({"time": float(step), "metrics": {"loss": loss}, "gpus": gpus})
        loss = "nan" if inputs.lost[step] else 1.0
        snapshots.append({"time": float(step), "metrics": {"loss": loss}, "gpus": gpus})
    return snapshots


def _own_firing(submission: Submission, inputs: Evaluate) -> list[list[Key]]:
    return [[key for key in keys if key[0] in _RAISED] for keys in _conditions(submission, inputs)]


def _firing(inputs: Evaluate, mistake: str) -> list[list[Key]]:
    return [
        [(alert.rule, alert.gpu) for alert in alerts if alert.rule in _RAISED]
        for alerts in expected_alerts(inputs.rules, inputs.snapshots, mistake)
    ]
