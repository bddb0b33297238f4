"""Judges the alerts of Lab 5's monitor, snapshot by snapshot, and what a monitor reports of them. For monitoring.py."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from gradebox.run.assertions import require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.truth.monitor import SEVERITIES, expected_alerts, gpu, records, snapshots, taking_turns

EXACT = 1e-9
"""Of values that are compared with thresholds."""


def judge_alerts(submission: Submission, generator: InputGenerator, *, at_once: bool) -> None:
    """Feed an engine and compare the alerts at every snapshot; `at_once`: no rule waits."""
    for rules, given in snapshots(generator.shared(f"lab5.alerts.{at_once}"), at_once=at_once):
        seen = submission.probe("lab5.monitoring.evaluate", device="cpu", rules=rules, snapshots=given)
        require(bool(seen.refused), "AlertEngine.evaluate() with a rule of an unknown name raised no ValueError")
        for place, (snapshot, alerts, wanted) in enumerate(
            zip(given, seen.alerts, expected_alerts(rules, given), strict=True)
        ):
            keys = [[alert["rule"], alert["gpu"]] for alert in alerts]
            shown = {key: value for key, value in snapshot.items() if key != "gpus" or value}
            what = f"alerts (rule, GPU) at snapshot {place} of {len(given)}"
            changed = f"; rules with other thresholds: {json.dumps(rules)}" if rules else ""
            expected = [[rule, index] for rule, index, _, _ in wanted]
            same = sorted(keys, key=str) == sorted(expected, key=str)
            require_equal(
                keys, expected, what=f"order of the {what}" if same else what,
                hint="strictly above or below; absent breaks no rule; an unbroken row of snapshots. The snapshot: "
                f"{json.dumps(shown)}{changed}",
            )  # fmt: skip
            for alert in alerts:
                (_, _, since, value) = next(row for row in wanted if [row[0], row[1]] == [alert["rule"], alert["gpu"]])
                require_equal(alert["since"], since, what=f"since of {alert['rule']}, {what}")
                if math.isfinite(value):
                    require_close(alert["value"], value, relative=EXACT, what=f"value of {alert['rule']}, {what}")
                else:
                    require_equal(alert["value"], str(value), what=f"value of {alert['rule']}, {what}")
                require_equal(alert["severity"], SEVERITIES[alert["rule"]], what=f"severity of {alert['rule']}")
                rest = alert["message"].removeprefix(alert["rule"])
                require(
                    rest != alert["message"]
                    and "\n" not in rest
                    and (
                        alert["gpu"] is None
                        or re.search(rf"(?<!\d)(?<!\d\.){alert['gpu']}(?!\d|\.\d)", rest) is not None
                    ),
                    f"the message of {alert['rule']} on GPU {alert['gpu']} is {alert['message']!r}",
                    "one line that begins with the rule's name, and names the GPU if it is about one",
                )


def judge_reported(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless a monitor reports each alert once, of each GPU and of the training."""
    draw = generator.shared("lab5.monitoring")
    limit = 85
    first, second, lost = taking_turns(generator)
    celsius = [
        [limit + generator.integer(1, 9) if on else limit - generator.integer(0, 3) for on in hot]
        for hot in zip(first, second, strict=True)
    ]
    gpus = [gpu(draw, index) for index in range(2)]
    seen = submission.probe("lab5.monitoring.raised", device="cpu", gpus=gpus, celsius=celsius, lost=lost)
    received = [[alert["rule"], alert["gpu"]] for alert in seen.received]
    numbers = [step for step, on in enumerate(lost) if on]
    what = f"alerts given to on_alert while GPUs have {celsius} degrees, and the loss is NaN at steps {numbers}"
    wanted: list[list[Any]] = []
    states: list[tuple[list[Any], list[bool]]] = [
        (["GpuHot", 0], first),
        (["GpuHot", 1], second),
        (["LossNotFinite", None], lost),
    ]
    for step in range(len(lost)):  # the GPUs are looked at before the loss is logged
        wanted += [alert for alert, on in states if on[step] and not (step and on[step - 1])]
    hint = "once when it begins, and again only after it had stopped; each GPU has alerts of its own"
    require_equal(received, wanted, what=what, hint=hint)
    firing = [alert for alert, on in states if on[-1]]
    require_equal(seen.firing, firing, what=f"{what}: alerts in the last snapshot")
    counted = [len(record["alerts"]) for record in records(seen.jsonl)]
    require_equal(
        counted, [sum(each) for each in zip(first, second, lost, strict=True)],
        what="alerts in each line of metrics.jsonl",
    )  # fmt: skip
