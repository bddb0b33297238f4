"""Task 5.3: find out, inside the training, which rules are broken for long enough to alert somebody.

Not for the rules (`labkit.monitoring.rules`), which Prometheus evaluates in the same way from outside: a program that
hangs or is gone cannot raise an alert.
"""

import math
from collections.abc import Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot


class AlertEngine:
    """Evaluates rules on one snapshot after the other.

    The conditions, by the names of the rules; one per GPU, each GPU on its own, except for the last two:
        - GpuHot: temperature above the threshold;
        - GpuThrottled: at least one of the throttle reasons is in SLOWED_BY; its value is 1.0;
        - GpuMemoryNearlyFull: used / total memory above the threshold;
        - GpuUnderused: utilization_ratio below the threshold;
        - GpuErrors: ecc_errors + xid_errors above 0, where one that is absent counts nothing;
        - GpuLost: `up` is False; its value is 1.0;
        - LossNotFinite: the metric "loss" is infinite or not a number; its value is the loss;
        - TrainingStalled: more seconds than the threshold since the step last changed (`step_time`).
    Above and below are strict. An absent value breaks no rule.

    An alert fires at the first snapshot at which its condition has held for `for_seconds` or more, counted from the
    first of an unbroken row of snapshots at which it held, and it fires until the first snapshot at which the condition
    does not hold. That is how Prometheus does it:
    https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/

    Args:
        rules: the rules, by default labkit's; their thresholds and times may be others than the defaults.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}
        """Given: when the condition of a rule began to hold, by the rule's name and GPU."""

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """The alerts that fire at this snapshot, in the order of the rules, then of the GPUs.

        Args:
            snapshot: `time` never falls from one call to the next; its `alerts` are not looked at.

        Returns:
            For each an `Alert`: its `since` is the time of the first snapshot of the row, its `message` begins with the
            rule's name and names the GPU, if it is about one.

        Raises:
            ValueError: a rule has a name that is not listed above.
        """
        # TODO(task 5.3):
        # 1. Write a function that gives, for one rule, the value of each GPU (or None, for the training) for which the
        #    condition holds.
        # 2. Remember since when each holds; forget the others.
        # 3. Return the ones that have held for long enough.
        raise NotImplementedError(
            "Task 5.3 is open: write AlertEngine.evaluate "
            "in labs/lab5_production/alerts.py (about 48 lines)"
        )
