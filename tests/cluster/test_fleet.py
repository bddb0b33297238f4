"""Many nodes over time: the light check on made-up readings, reports merged, metrics as promtool reads them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.acceptance import kernel_log
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.kernel_log import Xid
from cluster.fleet import command, history, quick_check, reports
from cluster.fleet.metrics import HELP, MOST_FAILURES, Metrics
from cluster.fleet.quick_check import Found
from cluster.fleet.state import BOOT_ID, Seen, State, StateError, new_xids
from cluster.fleet.state import read as read_state
from cluster.fleet.state import write as write_state
from tests import exposition
from tests.cluster import sound

NODE = "node17"
FLEET = Path(__file__).parents[2] / "deploy" / "fleet"


def sound_node(gpus: int = 8, boot: str = "one", **changed: Any) -> Seen:
    """A sound node; what is changed is so on its GPU 3."""
    gpus_by_uuid = {
        f"GPU-{index}": {"index": index, "bus": f"0000:{index + 16:02x}:00", **sound.reading(uuid=f"GPU-{index}")}
        for index in range(gpus)
    }
    gpus_by_uuid[f"GPU-{min(3, gpus - 1)}"].update(changed)
    return Seen(boot=boot, gpus=gpus_by_uuid, ports=sound.ports())


def judged(now: Seen, before: Seen | None = None, *xids: Xid, **options: Any) -> Found:
    """What is said of a node that was accepted, and looked at a moment ago, in the state `before`."""
    before = before or sound_node()
    state = State(accepted=before, last=copy.deepcopy(before))
    return quick_check.judge(now, [], list(xids), state=state, node=NODE, **options)


def failed(judgement: Found) -> list[tuple[str, str]]:
    return [(check.name, check.subject) for check in judgement.checks if check.status == "fail"]


def test_a_sound_node_passes() -> None:
    judgement = judged(sound_node())
    assert (judgement.outcome, failed(judgement)) == ("PASS", [])


def test_a_node_without_nvml_is_no_pass() -> None:
    judgement = quick_check.judge(Seen(boot="one"), [], [], state=None, node=NODE)
    assert judgement.outcome == "INCOMPLETE"


@pytest.mark.skipif(not BOOT_ID.is_file(), reason="Linux alone numbers its boots")
def test_a_node_whose_nvml_is_missing_is_not_drained_for_having_too_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise quick_check.pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(quick_check.pynvml, "nvmlInit", no_library)
    current, unread, xids = quick_check.look(Path("/nonexistent"), Path("/dev/null"), NODE)
    current = replace(current, boot="one", ports=sound_node().ports)
    for state in (None, State(accepted=sound_node(), last=sound_node())):
        judgement = quick_check.judge(current, unread, xids, state=state, gpus=8, node=NODE)
        assert (judgement.outcome, failed(judgement)) == ("INCOMPLETE", [])


def test_a_driver_that_was_loaded_again_is_no_fault_of_a_busy_node() -> None:
    before = sound_node(ecc_corrected=900, pcie_replays=40, energy_joules=5e6)
    assert failed(judged(sound_node(ecc_corrected=0, pcie_replays=0, energy_joules=10.0), before)) == []


GPU3 = "GPU 3 (rank 3, node17)"
NODE_WIDE = "node node17"


@pytest.mark.parametrize(
    ("changed", "check", "subject"),
    [
        ({"ecc_errors": 1}, "sound: memory errors before the run", GPU3),
        ({"remapped_rows": [1, 0, 1, 0]}, "sound: row remapping", GPU3),
        ({"pcie_width": 8}, "sound: PCIe width and generation", GPU3),
        ({"nvlinks_up": 17}, "sound: NVLinks", GPU3),
        ({"driver": "550.1"}, "sound: same driver", GPU3),
        ({"temperature_celsius": 95}, "health: temperature", GPU3),
        ({"throttle_reasons": ["thermal_slowdown"]}, "health: throttling", GPU3),
        ({"retired_pages_pending": 1}, "board: retired pages", GPU3),
        ({"inforom_valid": False}, "board: InfoROM", GPU3),
        ({"pcie_replays": 500}, "board: PCIe replays", GPU3),
    ],
)
def test_a_fault_of_a_gpu_is_found_and_named(changed: dict[str, Any], check: str, subject: str) -> None:
    judgement = judged(sound_node(**changed))
    assert judgement.outcome == "FAIL"
    assert (check, subject) in failed(judgement)
    assert {about for _, about in failed(judgement)} == {subject}


def test_a_gpu_that_has_gone_is_missed_without_anybody_saying_how_many_there_are() -> None:
    assert failed(judged(sound_node(7))) == [("node: number of GPUs", NODE_WIDE)]
    assert failed(quick_check.judge(sound_node(7), [], [], state=None, node=NODE, gpus=8)) == [
        ("node: number of GPUs", NODE_WIDE)
    ]


def test_what_a_busy_node_does_is_no_fault() -> None:
    busy = sound_node()
    for reading in busy.gpus.values():
        reading.update(sound.worked(memory_used_bytes=80_900 * sound.MIB, uuid=reading["uuid"]))
    assert judged(busy).outcome == "PASS"


def test_a_port_that_goes_down_or_flaps_is_found() -> None:
    down, flapped = sound_node(), sound_node()
    down.ports[0]["up"] = False
    flapped.ports[0]["counters"]["link_downed"] += 1
    assert failed(judged(down)) == [("node: port mlx5_0/1", NODE_WIDE)], "once"
    assert failed(judged(flapped)) == [("network: errors of mlx5_0/1", NODE_WIDE)]


def test_xids_of_a_broken_board_fail_and_those_of_a_users_program_do_not() -> None:
    broken, users = Xid(7, "0000:13:00", 79), Xid(8, "0000:13:00", 31)
    assert failed(judged(sound_node(), None, broken)) == [("node: XID errors", f"GPU 3, {NODE}")]
    assert judged(sound_node(), None, users).outcome == "PASS"


def test_a_fault_stays_until_the_node_is_accepted_again() -> None:
    """The second look finds nothing new, and nobody has mended anything."""
    before, now = sound_node(), sound_node()
    xid = Xid(7, "0000:13:00", 79)
    last = copy.deepcopy(now)
    last.last_record = 7
    again = quick_check.judge(now, [], [xid], state=State(accepted=before, last=last), node=NODE)
    assert again.outcome == "FAIL"
    accepted = quick_check.judge(now, [], [xid], state=State(accepted=last, last=last), node=NODE)
    assert accepted.outcome == "PASS"


def test_after_another_boot_counters_begin_anew_and_the_log_as_well() -> None:
    before = sound_node(ecc_corrected=50_000, boot="one")
    assert judged(sound_node(boot="two", ecc_corrected=0), before).outcome == "PASS"
    assert new_xids([Xid(3, "0000:13:00", 79)], Seen(boot="one", last_record=900), "two")


def test_a_power_limit_that_is_meant_is_no_doubt() -> None:
    capped = sound_node()
    for reading in capped.gpus.values():
        reading["power_limit_watts"] = 500.0
    assert judged(capped, capped).outcome == "INCOMPLETE"
    file = Expectations(Path("cluster.toml"), {"gpu": {"power_limit_watts": 500}, "cluster": {"nodes": 16}})
    assert judged(capped, capped, expectations=file).outcome == "PASS"
    other = Expectations(Path("cluster.toml"), {"gpu": {"power_limit_watts": 400}})
    assert judged(capped, capped, expectations=other).outcome == "FAIL"


LOG = """\
6,1200,5000000,-;nvidia: loading out-of-tree module taints kernel.
4,1300,9000000,-;NVRM: Xid (PCI:0000:13:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
 SUBSYSTEM=pci
4,1301,9000001,c;NVRM: Xid (PCI:0000:1A:00): 31, pid=77, name=python, Ch 00000008, MMU Fault
"""


def test_xids_are_read_from_the_kernels_log(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    assert kernel_log.read(tmp_path / "kmsg") == [Xid(1300, "0000:13:00", 79), Xid(1301, "0000:1a:00", 31)]


def test_a_state_survives_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "node.json"
    assert read_state(path) is None
    write_state(path, State(accepted=sound_node(), last=sound_node()))
    assert read_state(path) == State(accepted=sound_node(), last=sound_node())
    path.write_text(path.read_text()[:100])
    with pytest.raises(StateError, match=r"node\.json is damaged"):
        read_state(path)


# Reports of a fleet.


def report(node: str, day: int, **tflops: float) -> dict[str, Any]:
    """Of one node with two GPUs; `tflops`: of its GPUs' bfloat16 products, by name gpu0, gpu1."""
    records = sound.records()
    for record in records:
        record.node = node
        record.results["presence"]["uuid"] = f"{node}-{record.rank}"
        for stage in ("before", "after"):
            record.results[stage]["reading"]["uuid"] = f"GPU-{node}-{record.rank}"
        rate = tflops.get(f"gpu{record.rank}", 690.0)
        record.results["compute"]["products"]["bfloat16"] = sound.product(seconds=sound.WORK / rate, tflops=rate)
    document = sound.report(records)
    document["test_timestamp"] = f"2026-11-{day:02d} 10:00:00"
    return document


def files(folder: Path, *documents: dict[str, Any]) -> list[str]:
    paths = [folder / f"report{number}.json" for number in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return [str(path) for path in paths]


def test_a_slow_gpu_stands_out_that_its_own_node_could_not_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both GPUs of node3 are a tenth slow, so neither is slower than its peer."""
    fleet = [report(f"node{number}", 1, gpu0=690 + number, gpu1=688 - number) for number in range(1, 7)]
    fleet[2] = report("node3", 1, gpu0=620, gpu1=621)
    assert fleet[2]["acceptance"]["status"] == "PASS"
    code = command.main(["merge", *files(tmp_path, *fleet), "--json", str(tmp_path / "fleet.json")])
    assert code == 1
    outliers = json.loads((tmp_path / "fleet.json").read_text())["outliers"]
    assert [(outlier["node"], outlier["gpu"], outlier["against"]) for outlier in outliers] == [
        ("node3", "node3-0", "fleet"),
        ("node3", "node3-1", "fleet"),
    ]
    assert "OUTLIER       node3 node3-0: product bfloat16 (TFLOP/s) 620, 90% of the fleet's median" in (
        capsys.readouterr().out
    )


def test_gpus_that_differ_as_gpus_do_are_no_outliers(tmp_path: Path) -> None:
    fleet = [report(f"node{number}", 1, gpu0=690 + number, gpu1=685 - number) for number in range(1, 7)]
    assert command.main(["merge", *files(tmp_path, *fleet)]) == 0


def test_what_gets_slower_is_seen_in_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(tmp_path / "history.jsonl")
    for day, rate in enumerate((690, 691, 689, 600), start=1):
        code = command.main(["merge", *files(tmp_path, report("node1", day, gpu1=rate)), "--history", log])
        assert code == (1 if day == 4 else 0)
    assert "SLOWER        node1 node1-1: product bfloat16 (TFLOP/s) 600, 87% of its own earlier runs" in (
        capsys.readouterr().out
    )
    # The same report again is the same run.
    command.main(["merge", *files(tmp_path, report("node1", 4, gpu1=600)), "--history", log])
    assert len(history.read(Path(log))) == 4


def test_of_several_nodes_only_the_one_that_failed_has_failed() -> None:
    records = sound.nodes(4, 2)
    records[2].results["compute"]["products"]["bfloat16"]["wrong_rows"] = [5]
    document = sound.report(records)
    entry = reports._entry(document)
    assert dict(entry.verdicts) == {
        "node0": "INCOMPLETE",
        "node1": "FAIL",
        "node2": "INCOMPLETE",
        "node3": "INCOMPLETE",
    }


def test_what_is_no_report_of_real_gpus_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = sound.report(sound.records(), simulated=True)
    paths = files(tmp_path, report("node1", 1), simulated, {"acceptance": {}})
    assert command.main(["merge", *paths, str(tmp_path / "missing.json")]) == 2
    message = capsys.readouterr().err
    assert "report1.json: simulated" in message
    assert "report2.json: not a report of cluster.acceptance" in message
    assert "missing.json" in message


def test_a_damaged_history_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "history.jsonl"
    command.main(["merge", *files(tmp_path, report("node1", 1)), "--history", str(log)])
    log.write_text(log.read_text() + '{"time": "20')
    assert command.main(["merge", "--history", str(log)]) == 2
    assert "line 2" in capsys.readouterr().err


# As Prometheus reads it.


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not on this machine: apt install prometheus brings it")
    return path


def run(*command_: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_, input=text, capture_output=True, text=True, timeout=60, check=False)


def textfile(tmp_path: Path) -> str:
    fleet = [report(f"node{number}", day, gpu0=690 + number) for number in range(1, 5) for day in range(1, 6)]
    fleet[4]["validation"]["checks"][0] |= {"status": "fail", "subject": 'a "name"\\with\nall'}
    fleet[4]["test_timestamp"] = "2026-11-09 10:00:00"
    path = tmp_path / "fleet.prom"
    command.main(["merge", *files(tmp_path, *fleet), "--textfile", str(path)])
    metrics = Metrics()
    metrics.verdict("node1", "light", "FAIL", 1.0)
    metrics.counts("node1", "light", {"pass": 3})
    metrics.failures("node1", "light", [("x", f'a "name"\\{number}\n') for number in range(1000)])
    metrics.set("duration_seconds", 0.5, node="node1", kind="light")
    assert len(metrics.samples["failed"]) == MOST_FAILURES
    metrics.write(tmp_path / "node.prom")
    assert (tmp_path / "node.prom").stat().st_mode & 0o777 == 0o644
    return path.read_text() + "\n".join(
        line for line in (tmp_path / "node.prom").read_text().splitlines() if "duration" in line or "checks" in line
    )


def test_promtool_finds_nothing_to_mend_in_the_metrics(promtool: str, tmp_path: Path) -> None:
    for name in ("fleet.prom", "node.prom"):
        textfile(tmp_path)
        done = run(promtool, "check", "metrics", text=(tmp_path / name).read_text())
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_accepts_the_rules_and_they_say_what_is_meant(promtool: str, tmp_path: Path) -> None:
    rules = FLEET / "alerts.rules.yml"
    done = run(promtool, "check", "rules", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr
    labels = '{node="node1",kind="light"'
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f'gpu_acceptance_verdict{labels},verdict="fail"}}', "values": "0x4 1x100"},
                    {"series": f'gpu_acceptance_verdict{labels},verdict="incomplete"}}', "values": "1x4 0x100"},
                    {"series": f"gpu_acceptance_time_seconds{labels}}}", "values": "0x100"},
                ],
                "alert_rule_test": [
                    {"eval_time": "2m", "alertname": "GpuNodeFailed", "exp_alerts": []},
                    {
                        "eval_time": "6m",
                        "alertname": "GpuNodeFailed",
                        "exp_alerts": [
                            {
                                "exp_labels": {
                                    "severity": "critical",
                                    "node": "node1",
                                    "kind": "light",
                                    "verdict": "fail",
                                },
                                "exp_annotations": {
                                    "summary": "node1: the light check failed",
                                    "description": 'gpu_acceptance_failed{node="node1"} says which checks; drain the '
                                    "node, fix it, run cluster.acceptance.",
                                },
                            }
                        ],
                    },
                    {"eval_time": "30m", "alertname": "GpuNodeNotChecked", "exp_alerts": []},
                    {
                        "eval_time": "40m",
                        "alertname": "GpuNodeNotChecked",
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "warning", "node": "node1", "kind": "light"},
                                "exp_annotations": {
                                    "summary": "node1: not looked at for 40m 0s",
                                    "description": "What was good half an hour ago need not be; look at the health "
                                    "check's log on that node.",
                                },
                            }
                        ],
                    },
                ],
            }
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(document))
    done = run(promtool, "test", "rules", str(tmp_path / "test.json"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_and_the_rules_ask_only_for_what_is_written(promtool: str, tmp_path: Path) -> None:
    dashboard = json.loads((FLEET / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    written = exposition.names(textfile(tmp_path))
    queried = set(re.findall(r"gpu_acceptance_\w+", " ".join(queries) + (FLEET / "alerts.rules.yml").read_text()))
    assert queried <= written
    assert {f"gpu_acceptance_{name}" for name in HELP} - queried == {
        "gpu_acceptance_checks",
        "gpu_acceptance_duration_seconds",
    }
    rules = [{"record": f"a:b:{number}", "expr": query.replace("$node", ".*")} for number, query in enumerate(queries)]
    (tmp_path / "queries.json").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    done = run(promtool, "check", "rules", str(tmp_path / "queries.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places, panel["title"]
        places |= cells
