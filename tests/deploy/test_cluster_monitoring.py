"""The rules for DCGM's metrics, in promtool's hands, and compared with those that the labs' own monitor has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from labkit.monitoring import RULES
from labkit.monitoring.names import GPU_METRICS
from tests.deploy.conftest import KUBERNETES, Render, tool

GPU = '{node="a", UUID="GPU-1", pod="training"}'
# (series, its values by the minute, the alert, from which minute on it fires and until when)
CASES = {
    "hot": (f"DCGM_FI_DEV_GPU_TEMP{GPU}", "60 90x9", "GpuHot", 2, 9),
    "never too hot": (f"DCGM_FI_DEV_GPU_TEMP{GPU}", "85x9", "GpuHot", None, None),
    "thermal slowdown": (f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{GPU}", "0 32x9", "GpuThrottled", 2, 9),
    "hardware slowdown next to another reason": (
        f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{GPU}",
        "0 12x9",
        "GpuThrottled",
        2,
        9,
    ),
    "power cap and boost are ordinary": (
        f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{GPU}",
        "0 20x4 256x5",
        "GpuThrottled",
        None,
        None,
    ),
    "idle in a pod": (f"DCGM_FI_DEV_GPU_UTIL{GPU}", "10x9", "GpuUnderused", 5, 9),
    "idle and free": ('DCGM_FI_DEV_GPU_UTIL{node="a", UUID="GPU-1"}', "10x9", "GpuUnderused", None, None),
    "an XID": (f"DCGM_FI_DEV_XID_ERRORS{GPU}", "0 0 79x7", "GpuErrors", 2, 9),
}


@pytest.fixture(scope="module")
def promtool() -> str:
    return tool("promtool", brings="apt install prometheus")


@pytest.fixture(scope="module")
def rules(render: Render) -> dict[str, Any]:
    (manifest,) = [manifest for manifest in render("monitoring") if manifest["kind"] == "PrometheusRule"]
    return dict(manifest["spec"])


def run_promtool(promtool: str, folder: Path, rules: dict[str, Any], test: dict[str, Any]) -> None:
    (folder / "rules.yml").write_text(json.dumps(rules))
    (folder / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "30s", **test}))
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def firing(rules: dict[str, Any], alert: str, labels: dict[str, str]) -> dict[str, Any]:
    (rule,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    return {"exp_labels": {**rule["labels"], **labels}, "exp_annotations": rule["annotations"]}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_fires_when_it_should_and_not_otherwise(
    promtool: str, rules: dict[str, Any], tmp_path: Path, case: str
) -> None:
    series, values, alert, first, last = CASES[case]
    labels = {"node": "a", "UUID": "GPU-1", "pod": "training"}
    checks = [
        {
            "eval_time": f"{minute}m",
            "alertname": alert,
            "exp_alerts": [firing(rules, alert, labels)] if first is not None and first <= minute <= last else [],
        }
        for minute in range(10)
    ]
    run_promtool(
        promtool,
        tmp_path,
        rules,
        {
            "tests": [
                {"interval": "1m", "input_series": [{"series": series, "values": values}], "alert_rule_test": checks}
            ]
        },
    )


def test_a_gpu_that_vanishes_is_missed_and_one_that_changes_its_pod_is_not(
    promtool: str, rules: dict[str, Any], tmp_path: Path
) -> None:
    series = [
        {"series": 'DCGM_FI_DEV_GPU_TEMP{node="a", UUID="GPU-1"}', "values": "50x20"},
        {"series": 'DCGM_FI_DEV_GPU_TEMP{node="a", UUID="GPU-2"}', "values": "50x9 stale"},
        {"series": 'DCGM_FI_DEV_GPU_TEMP{node="b", UUID="GPU-3", pod="x"}', "values": "50x9 stale"},
        {"series": 'DCGM_FI_DEV_GPU_TEMP{node="b", UUID="GPU-3", pod="y"}', "values": "_x9 50x10"},
    ]
    lost = [firing(rules, "GpuLost", {"node": "a"})]
    checks = [
        {"eval_time": "9m", "alertname": "GpuLost", "exp_alerts": []},
        {"eval_time": "15m", "alertname": "GpuLost", "exp_alerts": lost},
    ]
    run_promtool(
        promtool,
        tmp_path,
        rules,
        {"tests": [{"interval": "1m", "input_series": series, "alert_rule_test": checks}]},
    )


def test_the_labs_rules_for_gpus_all_have_a_counterpart(rules: dict[str, Any]) -> None:
    ours = {rule.name for rule in RULES if rule.name.startswith("Gpu")}
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == ours


def test_every_field_of_the_rules_is_collected_and_so_is_what_the_labs_compare(rules: dict[str, Any]) -> None:
    lines = (KUBERNETES / "monitoring" / "counters.csv").read_text().splitlines()
    rows = [line.split(", ", 2) for line in lines if not line.startswith("#")]
    # The exporter reads it as CSV: a comma in a help text would be a fourth field.
    assert all(len(row) == 3 and "," not in row[2] and row[1] in ("gauge", "counter") for row in rows)
    collected = {row[0] for row in rows}
    words = json.dumps(rules).replace("(", " ").replace("{", " ").replace("[", " ").replace(")", " ").split()
    assert {word.strip('",') for word in words if "DCGM_" in word} <= collected
    assert {metric.dcgm_name for metric in GPU_METRICS if metric.dcgm_name} <= collected
