"""Messages of alerts: each names its own GPU, and a value in one may be another GPU's number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradebox.run.assertions import CheckFailed
from grader.lab5.monitoring.cases import AlertReport
from grader.lab5.monitoring.checks.alerts import _require_own_gpu_named


def _alerts(*messages: tuple[int, str]) -> Sequence[AlertReport]:
    return [
        AlertReport(rule="GpuErrors", gpu=gpu, severity="critical", since=0.0, value=1.0, message=message)
        for gpu, message in messages
    ]


def test_a_value_may_be_the_number_of_another_gpu() -> None:
    _require_own_gpu_named(_alerts((3, "GPU 3 (1)"), (3, "GPU 3 (2)"), (2, "GPU 2 (3)")))


def test_messages_that_name_all_gpus_name_none() -> None:
    with pytest.raises(CheckFailed, match="GPUs 3, 2 name all of them"):
        _require_own_gpu_named(_alerts((3, "GPU 3 or 2 (1)"), (3, "GPU 3 or 2 (5)"), (2, "GPU 3 or 2 (1)")))
