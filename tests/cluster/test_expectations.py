"""What a cluster should be: the file, its mistakes, and what a run that is something else is told."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import cluster.acceptance
from cluster.acceptance import expectations, launch, report
from cluster.acceptance.records import Record
from tests.cluster import sound

SCHEMA = json.loads((Path(cluster.acceptance.__file__).parent / "report.schema.json").read_text())


def held_against(text: str, ranks: list[Record], folder: Path, *words: str) -> dict[str, Any]:
    path = folder / "cluster.toml"
    path.write_text(text)
    standards = report.Standards(expected=expectations.read(path))
    document = sound.report(ranks, *words, standards=standards)
    jsonschema.validate(document, SCHEMA)
    return document


def test_what_a_good_run_wrote_is_what_the_next_one_passes(tmp_path: Path) -> None:
    ranks = sound.records(4)
    expectations.write(tmp_path / "cluster.toml", sound.report(ranks))
    text = (tmp_path / "cluster.toml").read_text()
    expected = tomllib.loads(text)
    assert expected["cluster"] == {"nodes": 1, "gpus_per_node": 4}
    assert expected["gpu"]["model"] == "NVIDIA H100 80GB HBM3"
    assert expected["software"] == {"driver": "580.65.06", "torch": "2.13.0", "cuda": "13.0", "nccl": "2.27.5"}
    assert expected["compute_tflops"] == {"float32": 45.0, "float16": 621.0, "bfloat16": 621.0}
    held = held_against(text, ranks, tmp_path)
    assert held["acceptance"]["status"] == "PASS"
    names = {name for name, _ in sound.outcomes(held, "pass")}
    assert names >= {"expected: nodes", "expected: model", "expected: nvlinks", "expected: driver"}
    assert held["expectations"]["tables"]["cluster"]["nodes"] == 1


@pytest.mark.parametrize(
    ("text", "name", "subject"),
    [
        ("[cluster]\nnodes = 2", "expected: nodes", "all nodes"),
        ("[cluster]\ngpus_per_node = 8", "presence: number of GPUs", "node node17"),
        ('[gpu]\nmodel = "NVIDIA H200"', "expected: model", "GPU 0 (rank 0, node17)"),
        ("[gpu]\nmemory_gib = 141", "expected: memory gib", "GPU 0 (rank 0, node17)"),
        ("[gpu]\npower_limit_watts = 500", "expected: power limit watts", "GPU 0 (rank 0, node17)"),
        ("[gpu]\npcie_generation = 6", "expected: pcie generation", "GPU 0 (rank 0, node17)"),
        ("[gpu]\npcie_width = 32", "expected: pcie width", "GPU 0 (rank 0, node17)"),
        ("[gpu]\nnvlinks = 20", "expected: nvlinks", "GPU 0 (rank 0, node17)"),
        ('[gpu]\nvbios = "97"', "expected: vbios", "GPU 0 (rank 0, node17)"),
        ('[software]\ndriver = "590.1"', "expected: driver", "GPU 0 (rank 0, node17)"),
        ('[software]\nnccl = "2.28.1"', "expected: nccl", "GPU 0 (rank 0, node17)"),
        ("[compute_tflops]\nbfloat16 = 700", "product bfloat16: rate against the data sheet", "GPU 0 (rank 0, node17)"),
        ("[bus_gigabytes_per_second]\nall_reduce = 400", "all_reduce: bus bandwidth", "all ranks"),
        ("[latency_milliseconds]\nbroadcast = 0.01", "broadcast: latency", "all ranks"),
    ],
)
def test_what_is_not_as_expected_fails_and_is_named(tmp_path: Path, text: str, name: str, subject: str) -> None:
    document = held_against(text, sound.records(), tmp_path)
    assert document["acceptance"]["exit_code"] == 1
    assert (name, subject) in sound.failures(document)
    assert {failed for failed, _ in sound.failures(document)} == {name}


@pytest.mark.parametrize(
    "text", ["[compute_tflops]\nfloat16 = 1", "[network]\nports = 8", '[gpu]\nvbios = "96.00.89.00.01"']
)
def test_what_is_expected_and_was_not_measured_is_no_pass(tmp_path: Path, text: str) -> None:
    ranks = sound.records()
    ranks[1].results["before"]["reading"]["vbios"] = None
    ranks[0].results["network"] = {"skipped": "another rank reads them", "asked": True}
    document = held_against(text, ranks, tmp_path)
    assert (document["acceptance"]["status"], sound.failures(document)) == ("INCOMPLETE", [])


def test_a_link_that_a_virtual_machine_hides_has_a_key_that_the_remedy_names(tmp_path: Path) -> None:
    ranks = sound.records(1)
    for stage in ("before", "after"):
        hidden = ("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max")
        ranks[0].results[stage]["reading"] |= dict.fromkeys(hidden)
    document = sound.report(ranks)
    open_ones = [check for check in document["validation"]["checks"] if check["status"] == "unverified"]
    assert {check["name"] for check in open_ones} == {"copy: host to device", "copy: device to host"}
    assert all("[gpu] copy_gigabytes_per_second" in check["remedy"] for check in open_ones)
    text = "[gpu]\ncopy_gigabytes_per_second = {}"
    assert held_against(text.format(50), ranks, tmp_path)["acceptance"]["status"] == "PASS"
    slow = held_against(text.format(60), ranks, tmp_path)
    assert {name for name, _ in sound.failures(slow)} == {"copy: host to device", "copy: device to host"}


def test_a_bar_of_the_file_stands_above_ours(tmp_path: Path) -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["presence"] |= {"peak_tflops": None, "held_ratio": None}
    assert sound.report(ranks)["acceptance"]["status"] == "INCOMPLETE", "an unknown model's rate is judged by nothing"
    text = "[compute_tflops]\nfloat32 = 45\nfloat16 = 621\nbfloat16 = 621"
    assert held_against(text, ranks, tmp_path)["acceptance"]["status"] == "PASS"


def test_options_stand_above_the_file(tmp_path: Path) -> None:
    text = "[cluster]\nnodes = 2\ngpus_per_node = 8\n[latency_milliseconds]\nbroadcast = 0.01"
    words = ("--expect-nodes", "1", "--expect-gpus", "2", "--max-latency-ms", "5")
    assert held_against(text, sound.records(), tmp_path, *words)["acceptance"]["status"] == "PASS"


def test_two_pods_of_one_machine_are_one_node_and_two_machines_of_one_name_are_two(tmp_path: Path) -> None:
    ranks = sound.nodes(2, per_node=2)
    for record in ranks:
        record.node = "worker"
    assert sound.report(ranks, "--expect-nodes", "2")["acceptance"]["status"] == "PASS"
    for record in ranks:
        record.results["presence"]["boot_id"] = "0"
    document = sound.report(ranks, "--expect-nodes", "2")
    (check,) = [check for check in document["validation"]["checks"] if check["name"] == "expected: nodes"]
    assert check["status"] == "fail"
    assert check["evidence"].endswith("2 pods on 1 machines")
    expectations.write(tmp_path / "cluster.toml", document)
    assert tomllib.loads((tmp_path / "cluster.toml").read_text())["cluster"]["nodes"] == 1


def test_a_node_that_said_nothing_is_missed_by_name() -> None:
    ranks = [*sound.records(2), Record(rank=2, node="node18", ending="lost")]
    document = sound.report(ranks, "--expect-nodes", "2")
    (check,) = [check for check in document["validation"]["checks"] if check["name"] == "expected: nodes"]
    assert (check["status"], check["evidence"]) == ("fail", "1 of 2 took part: node17; no answer from node18")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu]\n# ours\nmemroy_gib = 80", r"cluster.toml, line 3: \[gpu\] has no key 'memroy_gib'.*'memory_gib'"),
        ("[gpu]\ndriver = '1'", r"line 2: \[gpu\] has no key 'driver': it belongs into \[software\]"),
        ("[netwrok]\nports = 8", r"line 1: there is no table 'netwrok': did you mean 'network'"),
        ("nodes = 2", "line 1: there is no key outside a table 'nodes'"),
        ("[cluster]\nnodes = 'two'", r"line 2: \[cluster\] nodes: 'two' should be a whole number"),
        ("[cluster]\nnodes = true", "True should be a whole number"),
        ("[cluster]\nnodes = -1", "-1 should be a whole number"),
        ("[gpu]\nmemory_gib = inf", "inf should be a number above 0"),
        ("[gpu]\nmodel = 100", "100 should be a word"),
        ("[gpu\nmodel = 1", "not a TOML file: .*line 1"),
        ("[gpu]", "expects nothing; --write-expectations makes one"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(expectations.ExpectationsError, match=words):
        expectations.read(path)


def test_what_failed_is_not_written_as_what_to_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = sound.records()
    ranks[1].results["compute"]["products"]["float32"]["wrong_rows"] = [3]
    target = tmp_path / "cluster.toml"
    words = ("--report", str(tmp_path), "--write-expectations", str(target))
    code = report.conclude(sound.options(*words), ranks, simulated=False, standards=report.Standards())
    assert (code, target.exists()) == (1, False)
    assert "the verdict is FAIL" in capsys.readouterr().err
    code = report.conclude(sound.options(*words), sound.records(), simulated=False, standards=report.Standards())
    assert (code, target.exists()) == (0, True)


def test_a_figure_between_its_bars_is_not_made_the_norm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = sound.nodes(1)
    for record in ranks:
        for measured in record.results["collectives"]["measurements"]:
            if measured["bytes"] > sound.MIB:
                measured["seconds"] = [1.25 * seconds for seconds in measured["seconds"]]
    target = tmp_path / "cluster.toml"
    words = ("--report", str(tmp_path), "--write-expectations", str(target))
    code = report.conclude(sound.options(*words), ranks, simulated=False, standards=report.Standards())
    assert (code, target.exists()) == (3, False)
    assert f"no {target}: all_gather: bus bandwidth, all ranks: " in capsys.readouterr().err


def _boards_on_eight_lanes(ranks: list[Record]) -> None:
    for record in ranks:
        record.results["copies"] = {**record.results["copies"], "seconds": {"to_device": 0.01, "to_host": 0.01}}
    for stage in ("before", "after"):
        for record in ranks:
            record.results[stage]["reading"] |= {"pcie_width": 8, "pcie_width_max": 8}


def _below_the_default_power(ranks: list[Record]) -> None:
    for record in ranks:
        record.results["before"]["reading"]["power_limit_watts"] = 650.0


def _without_ecc(ranks: list[Record]) -> None:
    for record in ranks:
        record.results["before"]["reading"]["ecc_mode"] = [0, 0]


def _ended_by_a_signal(ranks: list[Record]) -> None:
    for record in ranks:
        record.ending, record.at = "stopped", "training"
        del record.results["training"]


def _without_word_of_ecc(ranks: list[Record]) -> None:
    for record in ranks:
        record.results["before"]["reading"] |= {
            "ecc_errors": None,
            "untold": {"ecc_errors": "Insufficient Permissions"},
        }


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_boards_on_eight_lanes, "sound: PCIe width and generation, GPU 0"),
        (_below_the_default_power, "sound: power limit, GPU 0"),
        (_without_ecc, "board: ECC mode, GPU 0"),
        (_ended_by_a_signal, "run: process, GPU 0"),
        (_without_word_of_ecc, ""),
    ],
)
def test_what_is_doubtful_is_not_made_the_norm_and_what_is_unknown_hinders_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[list[Record]], None], name: str
) -> None:
    ranks = sound.nodes(1)
    change(ranks)
    target = tmp_path / "cluster.toml"
    words = ("--report", str(tmp_path), "--write-expectations", str(target))
    code = report.conclude(sound.options(*words), ranks, simulated=False, standards=report.Standards())
    assert (code, target.exists()) == (3, not name)
    assert not name or f"no {target}: {name} " in capsys.readouterr().err


def test_torchrun_repeats_the_banner_instead_of_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    words = ("--report", str(tmp_path))
    report.conclude(
        sound.options(*words), sound.records(), simulated=False, standards=report.Standards(),
        hand_on=launch._tell_torchrun,
    )  # fmt: skip
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file=str(file))
    last = ChildFailedError("cluster.acceptance", {0: failure}).format_msg().splitlines()[-3:]
    assert last[-2].strip() == "=" * 50
    assert last[0].strip().startswith("stages: ")
