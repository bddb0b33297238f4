"""Between nodes: ports by sysfs, pairs that name a node, a rank or a link, bars of bandwidth and latency."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.acceptance import sysfs
from cluster.acceptance.checks import thresholds
from cluster.acceptance.checks.pairs import MOST_ROUNDS, schedule
from cluster.acceptance.records import Record
from tests.cluster import sound


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def tree(root: Path) -> None:
    """A node with InfiniBand, RoCE on an Ethernet interface, an ordinary interface, and a virtual one."""
    port = {
        "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "counters/symbol_error": "0",
        "counters/link_downed": "2", "hw_counters/out_of_sequence": "7",
    }  # fmt: skip
    write(root, {f"class/infiniband/mlx5_0/ports/1/{name}": text for name, text in port.items()})
    roce = {"state": "1: DOWN", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Ethernet"}
    write(root, {f"class/infiniband/mlx5_1/ports/1/{name}": text for name, text in roce.items()})
    write(root, {"class/net/ens1/device/infiniband/mlx5_1/dev": "", "class/net/ens1/carrier_down_count": "3"})
    write(root, {"class/net/ens1/mtu": "9000", "class/infiniband/mlx5_1/fw_ver": "28.39.1002"})
    write(root, {"class/net/ens1/speed": "100000", "class/net/ens1/operstate": "up"})
    write(root, {"class/net/eno1/device/vendor": "0x8086", "class/net/eno1/speed": "25000"})
    write(root, {"class/net/eno1/operstate": "up", "class/net/eno1/carrier_down_count": "1"})
    write(root, {"class/net/eno2/device/vendor": "0x8086", "class/net/eno2/speed": "-1"})
    write(root, {"class/net/docker0/speed": "10000", "class/net/docker0/operstate": "up"})
    write(root, {"module/nvidia_peermem/refcnt": "0"})


def test_ports_are_read_from_sysfs(tmp_path: Path) -> None:
    tree(tmp_path)
    ports = {port.pop("name"): port for port in sysfs.ports(tmp_path)}
    assert list(ports) == ["mlx5_0/1", "mlx5_1/1", "eno1", "eno2"]
    counters = {"symbol_error": 0, "link_downed": 2, "out_of_sequence": 7}
    assert ports["mlx5_0/1"] == {
        "kind": "InfiniBand", "rdma": True, "up": True, "rate_gigabits": 400.0, "counters": counters
    }  # fmt: skip
    assert (ports["mlx5_1/1"]["kind"], ports["mlx5_1/1"]["up"]) == ("Ethernet", False)
    assert ports["mlx5_1/1"]["counters"] == {"carrier_down_count": 3}, "RoCE's interface is the same port"
    assert (ports["mlx5_1/1"]["firmware"], ports["mlx5_1/1"]["mtu"]) == ("28.39.1002", 9000)
    assert (ports["eno1"]["rate_gigabits"], ports["eno2"]["rate_gigabits"]) == (25.0, None)
    assert sysfs.peer_memory(tmp_path)


def test_a_machine_without_a_network_has_no_ports(tmp_path: Path) -> None:
    assert sysfs.ports(tmp_path) == []
    assert not sysfs.peer_memory(tmp_path)


def test_two_sound_nodes_pass() -> None:
    report = sound.report(sound.nodes(2))
    assert sound.outcomes(report, "unverified") == []
    assert report["acceptance"]["status"] == "PASS"


def change(records: list[Record], node: str, stage: str, ports: list[dict[str, Any]], **more: Any) -> None:
    (leader,) = [record for record in records if record.node == node and record.local_rank == 0]
    leader.results[stage] = {"ports": ports, "peer_memory": True, **more}


@pytest.mark.parametrize(
    ("ports", "name"),
    [
        (sound.ports(up=False), "network: port mlx5_0/1"),
        (sound.ports()[1:], "network: port mlx5_0/1"),
        (sound.ports(rate_gigabits=200.0), "network: port mlx5_0/1"),
    ],
)
def test_a_port_that_is_not_as_on_the_other_nodes(ports: list[dict[str, Any]], name: str) -> None:
    ranks = sound.nodes(3)
    change(ranks, "node1", "network", ports)
    change(ranks, "node1", "network_after", ports)
    assert sound.failures(sound.report(ranks)) == [(name, "node node1")]


@pytest.mark.parametrize(
    ("grown", "status"),
    [
        ({"link_downed": 2}, "fail"),
        ({"link_error_recovery": 1}, "fail"),
        ({"symbol_error": 50}, "fail"),
        ({"port_rcv_errors": 3}, "unverified"),
        ({}, "pass"),
    ],
)
def test_errors_and_flaps_while_the_test_ran(grown: dict[str, int], status: str) -> None:
    ranks = sound.nodes(2)
    counters = {**sound.ports()[0]["counters"], **grown}
    change(ranks, "node1", "network_after", sound.ports(counters=counters))
    report = sound.report(ranks)
    assert ("network: errors of mlx5_0/1", "node node1") in sound.outcomes(report, status)
    assert report["acceptance"]["status"] == {"fail": "FAIL", "unverified": "INCOMPLETE", "pass": "PASS"}[status]


@pytest.mark.parametrize("first", [True, False])
def test_of_two_nodes_the_slower_port_fails_and_of_up_and_down_nobody_knows(first: bool) -> None:
    node = "node0" if first else "node1"
    ranks = sound.nodes(2)
    for stage in ("network", "network_after"):
        (leader,) = [record for record in ranks if record.node == node and record.local_rank == 0]
        leader.results[stage] = {"ports": sound.ports(rate_gigabits=200.0), "peer_memory": True}
    assert sound.failures(sound.report(ranks)) == [("network: port mlx5_0/1", f"node {node}")]
    for stage in ("network", "network_after"):
        leader.results[stage] = {"ports": sound.ports(up=False), "peer_memory": False}
    report = sound.report(ranks)
    assert sound.failures(report) == []
    undecided = [("network: port mlx5_0/1", f"node {node}"), ("network: GPUDirect", f"node {node}")]
    assert sound.outcomes(report, "unverified") == undecided


def test_a_port_that_goes_while_the_test_runs_fails() -> None:
    ranks = sound.nodes(2)
    change(ranks, "node1", "network_after", sound.ports()[1:])
    assert sound.failures(sound.report(ranks)) == [("network: errors of mlx5_0/1", "node node1")]


def test_a_node_without_gpudirect_among_nodes_with_it_fails() -> None:
    ranks = sound.nodes(3)
    change(ranks, "node2", "network", sound.ports(), peer_memory=False)
    assert sound.failures(sound.report(ranks)) == [("network: GPUDirect", "node node2")]


def test_nodes_whose_ports_nobody_sees_are_no_pass() -> None:
    ranks = sound.nodes(2)
    for node in ("node0", "node1"):
        change(ranks, node, "network", [])
    report = sound.report(ranks)
    assert (report["acceptance"]["status"], sound.failures(report)) == ("INCOMPLETE", [])
    assert ("all_reduce: bus bandwidth", "all ranks") in sound.outcomes(report, "unverified")


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "broadcast", "reduce_scatter", "point_to_point"])
def test_a_tenth_of_a_gigabyte_between_nodes_fails(operation: str) -> None:
    ranks = sound.nodes(2)
    for record in ranks:
        for measured in record.results["collectives"]["measurements"]:
            if measured["operation"] == operation and measured["bytes"] > sound.MIB:
                measured["seconds"] = [measured["bytes"] / 0.1e9] * 20
    assert (f"{operation}: bus bandwidth", "all ranks") in sound.failures(sound.report(ranks))


def test_bars_come_from_what_links_could_be() -> None:
    ranks = sound.records()
    bar = partial(thresholds.bandwidth, ranks, "all_reduce", byte_count=2**34, rate=370.0, expected=None)
    whole = bar()
    ranks[0].results["before"]["reading"] |= {"nvlinks_up": 3, "pcie_width": 4}
    ranks[0].results["after"]["reading"] |= {"nvlinks_up": 3, "pcie_width": 4}
    assert bar() == whole
    assert whole is not None
    assert whole.fails.value == pytest.approx(0.7 * 0.82 * 18 * 25, rel=0.01)
    assert whole.passes.value == pytest.approx(0.88 * 0.82 * 18 * 25, rel=0.01)


def test_latency_is_held_against_the_fabric() -> None:
    def limit(ranks: list[Record]) -> float:
        return thresholds.latency(ranks, "all_reduce", expected=None, option_ms=None).fails.value

    inside, infiniband, ethernet = sound.records(16), sound.nodes(2), sound.nodes(2)
    for node in ("node0", "node1"):
        change(ethernet, node, "network", [])
    assert limit(inside) < limit(infiniband) < limit(ethernet)
    assert limit(sound.nodes(8)) > limit(infiniband), "a ring passes a message on once per rank"
    bar = thresholds.latency(inside, "all_reduce", expected=None, option_ms=None)
    assert bar.passes.value < bar.fails.value / 3
    bar = thresholds.latency(inside, "all_reduce", expected=None, option_ms=0.7)
    assert bar.passes == bar.fails, "who says a limit means it"


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 16, 64])
def test_every_rank_meets_others_and_nobody_twice(ranks: int) -> None:
    rounds = schedule(ranks, seed=4)
    for pairs in rounds:
        players = [rank for pair in pairs for rank in pair]
        assert len(players) == len(set(players)) == ranks - ranks % 2
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))
    if ranks <= MOST_ROUNDS + 1:
        assert len(met) == ranks * (ranks - 1) // 2, "all meet all"
    else:
        assert schedule(ranks, seed=4) == rounds != schedule(ranks, seed=5), "drawn, and the same for all ranks"


def slow(records: list[Record], *pairs: tuple[int, int]) -> None:
    for record in records:
        for met in record.results["pairs"]["met"]:
            if (min(record.rank, met["partner"]), max(record.rank, met["partner"])) in pairs:
                met["seconds"] *= 5


def failed(records: list[Record]) -> list[tuple[str, str]]:
    return [failure for failure in sound.failures(sound.report(records)) if failure[0].startswith("pairs")]


def test_a_link_that_is_slow_is_named_by_its_ends() -> None:
    ranks = sound.records(4)
    slow(ranks, (1, 2))
    assert failed(ranks) == [("pairs: NVLink", f"{ranks[1].subject} and {ranks[2].subject}")]


def test_a_gpu_that_is_slow_with_everybody_is_named_alone() -> None:
    ranks = sound.records(4)
    slow(ranks, (0, 2), (1, 2), (2, 3))
    assert failed(ranks) == [("pairs: NVLink", ranks[2].subject)]


@pytest.mark.parametrize("count", [3, 4])
def test_a_node_that_is_slow_with_every_other_is_named_alone(count: int) -> None:
    ranks = sound.nodes(count, per_node=2)
    slow(ranks, *((a, b) for a in range(2 * count) for b in range(a + 1, 2 * count) if (a // 2 == 1) != (b // 2 == 1)))
    assert failed(ranks) == [("pairs: between nodes", "node node1")]


def test_one_adapter_of_a_node_is_named_by_its_rank() -> None:
    ranks = sound.nodes(3, per_node=2)
    slow(ranks, *((min(3, other), max(3, other)) for other in (0, 1, 4, 5)))
    assert failed(ranks) == [("pairs: between nodes", ranks[3].subject)]


def test_wrong_data_between_two_names_both() -> None:
    ranks = sound.records(4)
    ranks[3].results["pairs"]["met"][1]["wrong"] = 2
    assert failed(ranks) == [("pairs: data", f"rank 1 to {ranks[3].subject}")]


def test_two_links_of_which_one_is_slow_are_too_few_to_say_which() -> None:
    ranks = sound.records(2)
    assert ("pairs: NVLink", "all ranks") in sound.outcomes(sound.report(ranks), "skipped")
