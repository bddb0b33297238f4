"""Judges the alerts of Lab 5's monitor, snapshot by snapshot, and what a monitor reports of them. For monitoring.py."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

from gradebox.run.assertions import require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.monitoring.cases import AlertReport, Evaluate
from grader.lab5.monitoring.cases import drawn as cases
from grader.lab5.monitoring.checks.exports import length, records
from grader.lab5.monitoring.reference import SEVERITIES, ExpectedAlert, expected_alerts

EXACT = 1e-9
"""Of values that are compared with thresholds."""


def judge_at_once(submission: Submission, generator: InputGenerator) -> None:
    """Feed engines whose rules do not wait, and compare the alerts at every snapshot."""
    _judge_alerts(submission, cases.snapshots_at_once(generator.shared("lab5.alerts.True")))


def judge_over_time(submission: Submission, generator: InputGenerator) -> None:
    """The same for rules that wait."""
    _judge_alerts(submission, cases.snapshots_over_time(generator.shared("lab5.alerts.False")))


def _judge_alerts(submission: Submission, inputs_of_engines: Iterable[Evaluate]) -> None:
    for inputs in inputs_of_engines:
        rules, snapshots = inputs.rules, inputs.snapshots
        reply = submission.probe(inputs, device="cpu")
        require(bool(reply.refused), "AlertEngine.evaluate() with a rule of an unknown name raised no ValueError")
        for place, (snapshot, alerts, expected) in enumerate(
            zip(snapshots, reply.alerts, expected_alerts(rules, snapshots), strict=True)
        ):
            keys, expected_keys = [[alert.rule, alert.gpu] for alert in alerts], [each.key for each in expected]
            shown = {key: value for key, value in snapshot.items() if key != "gpus" or value}
            what = f"alerts (rule, GPU) at snapshot {place} of {len(snapshots)}"
            changed = f"; rules with other thresholds: {json.dumps(rules)}" if rules else ""
            same = sorted(keys, key=str) == sorted(expected_keys, key=str)
            require_equal(
                keys, expected_keys, what=f"order of the {what}" if same else what,
                hint="strictly above or below; absent breaks no rule; an unbroken row of snapshots. The snapshot: "
                f"{json.dumps(shown)}{changed}",
            )  # fmt: skip
            for alert in alerts:
                _judge_alert(alert, next(each for each in expected if each.key == [alert.rule, alert.gpu]), what)


def _judge_alert(alert: AlertReport, expected: ExpectedAlert, what: str) -> None:
    """What an alert says besides its rule and its GPU, which are the expected ones."""
    rule, gpu = expected.rule, expected.gpu
    require_equal(alert.since, expected.since, what=f"since of {rule}, {what}")
    if math.isfinite(expected.value):
        require_close(alert.value, expected.value, relative=EXACT, what=f"value of {rule}, {what}")
    else:
        require_equal(alert.value, str(expected.value), what=f"value of {rule}, {what}")
    require_equal(alert.severity, SEVERITIES[rule], what=f"severity of {rule}")
    rest = alert.message.removeprefix(rule)
    require(
        rest != alert.message
        and "\n" not in rest
        and (gpu is None or re.search(rf"(?<!\d)(?<!\d\.){gpu}(?!\d|\.\d)", rest) is not None),
        f"the message of {rule} on GPU {gpu} is {alert.message!r}",
        "one line that begins with the rule's name, and names the GPU if it is about one",
    )


def judge_reported(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless a monitor reports each alert once, of each GPU and of the training."""
    (first, second, lost), inputs = cases.raised(generator)
    reply = submission.probe(inputs, device="cpu")
    received = [[alert.rule, alert.gpu] for alert in reply.received]
    numbers = [step for step, on in enumerate(lost) if on]
    what = f"alerts given to on_alert while GPUs have {inputs.celsius} degrees, and the loss is NaN at steps {numbers}"
    states: list[tuple[list[object], list[bool]]] = [
        (["GpuHot", 0], first),
        (["GpuHot", 1], second),
        (["LossNotFinite", None], lost),
    ]
    expected: list[list[object]] = []
    for step in range(len(lost)):  # the GPUs are looked at before the loss is logged
        expected += [alert for alert, on in states if on[step] and not (step and on[step - 1])]
    hint = "once when it begins, and again only after it had stopped; each GPU has alerts of its own"
    require_equal(received, expected, what=what, hint=hint)
    firing = [alert for alert, on in states if on[-1]]
    require_equal(reply.firing, firing, what=f"{what}: alerts in the last snapshot")
    require_equal(
        [length(record["alerts"]) for record in records(reply.jsonl)],
        [sum(each) for each in zip(first, second, lost, strict=True)],
        what="alerts in each line of metrics.jsonl",
    )  # fmt: skip
