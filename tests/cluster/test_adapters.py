"""Each adapter on its own: a substitute for `ib_write_bw`, nodes that meet, and the part that is named."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.acceptance import perftest, report
from cluster.acceptance.checks import adapters
from cluster.acceptance.records import Record
from cluster.acceptance.store import serve
from cluster.acceptance.unjudged import unjudged
from cluster.acceptance.verdict import Check
from labkit.device import open_device
from tests.cluster import sound
from tests.cluster.faults.machines import alone
from tests.cluster.test_network import write

PROGRAM = """#!{python} -SE
import json, os, socket, sys
words = sys.argv[1:]
option = lambda name: words[words.index(name) + 1]
device, address = option("-d"), words[-1] if "." in words[-1] else None
settings = json.loads(os.environ["FAKE_IB_WRITE_BW"])
if device in settings["broken"]:
    sys.exit("Couldn't allocate MR")
if address is None:
    listening = socket.create_server(("", int(option("-p"))))
    listening.accept()
    sys.exit()
try:
    socket.create_connection((address, int(option("-p")))).close()
except OSError:
    print(f"Couldn't connect to {{address}}:{{option('-p')}}")
    sys.exit(1)
rate = settings["rates"].get(device, 391.8)
print("                    RDMA_Write BW Test")
print(" Number of qps   : 4\\t\\tTransport type : IB")
print("-" * 87)
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
print(f" 131072     40000            {{rate + 0.1}}             {{rate}}\\t\\t     0.37")
print("-" * 87)
"""
"""Prints what perftest 4.5 prints (NVIDIA/nccl-tests issue 191), at rates that a variable says."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install it, with rates by device, and devices on which it breaks."""
    path = tmp_path / "bin" / perftest.PROGRAM
    path.parent.mkdir()
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    def configure(broken: tuple[str, ...] = (), **rates: float) -> None:
        monkeypatch.setenv("FAKE_IB_WRITE_BW", json.dumps({"rates": rates, "broken": broken}))

    configure()
    return configure


def node(root: Path, count: int, down: tuple[int, ...] = ()) -> Path:
    """A node's sysfs: so many adapters of 400 Gbit/s."""
    for number in range(count):
        port = {"state": "1: DOWN" if number in down else "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
        write(root, {f"class/infiniband/mlx5_{number}/ports/1/{name}": text for name, text in port.items()})
        write(root, {f"class/infiniband/mlx5_{number}/device/local_cpulist": "0-1023"})
    return root


def measured(monkeypatch: pytest.MonkeyPatch, roots: list[Path]) -> list[dict[str, Any]]:
    """What the leaders of such nodes measure with each other; each node has a second rank."""
    store = serve()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    results: dict[int, dict[str, Any]] = {}

    def run(rank: int) -> None:
        options = SimpleNamespace(sysfs=roots[rank // 2])
        context: Any = SimpleNamespace(rank=rank, local_rank=rank % 2, world_size=2 * len(roots), options=options)
        results[rank] = adapters.measure(context)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2 * len(roots))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[rank]["asked"] for rank in results if rank % 2)
    return [results[2 * number] for number in range(len(roots))]


def processors() -> set[int]:
    """What this process may run on, where it can be bound."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def test_nodes_measure_their_adapters_to_themselves_and_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[..., None]
) -> None:
    program(mlx5_1=99.5)
    affinity = processors()
    roots = [node(tmp_path / "0", 2), node(tmp_path / "1", 2), node(tmp_path / "2", 2, down=(0,))]
    rows = [[tuple(row.values()) for row in one["measured"]] for one in measured(monkeypatch, roots)]
    assert processors() == affinity
    first, second = ("mlx5_0/1", 391.8), ("mlx5_1/1", 99.5)
    to_itself = [(first[0], None, first[1], None), (second[0], None, second[1], None)]
    assert rows[0] == [*to_itself, (second[0], 4, second[1], None)]
    assert rows[1] == [*to_itself, (first[0], 0, first[1], None), (second[0], 0, second[1], None)]
    assert rows[2] == [to_itself[1], (second[0], 2, second[1], None)]


def test_an_adapter_that_breaks_is_reported_with_the_words_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[..., None]
) -> None:
    program(broken=("mlx5_1",))
    (result,) = measured(monkeypatch, [node(tmp_path / "0", 3)])
    rates = {row["adapter"]: row["gigabits"] for row in result["measured"]}
    assert rates == {"mlx5_0/1": 391.8, "mlx5_1/1": None, "mlx5_2/1": 391.8}
    assert "Couldn't allocate MR" in result["measured"][1]["reason"]


def test_waits_are_real_with_a_virtual_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[..., None]
) -> None:
    store = serve()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    options = SimpleNamespace(sysfs=node(tmp_path / "0", 1))
    context: Any = SimpleNamespace(rank=0, local_rank=0, world_size=1, options=options)
    with open_device("vgpu:T4"):
        result = adapters.measure(context)
    assert [(row["gigabits"], row["reason"]) for row in result["measured"]] == [(391.8, None)]


def test_without_the_program_or_a_port_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (result,) = measured(monkeypatch, [node(tmp_path / "0", 2)])
    assert result == {"skipped": "ib_write_bw is not installed on this node", "asked": True}
    (result,) = measured(monkeypatch, [node(tmp_path / "1", 2, down=(0, 1))])
    assert "no port for RDMA" in result["skipped"]


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ("", ["mlx5_0/1", "mlx5_1/1", "mlx5_1/2", "mlx5_10/1"]),
        ("mlx5_1", ["mlx5_1/1", "mlx5_1/2", "mlx5_10/1"]),
        ("=mlx5_1:2,mlx5_0", ["mlx5_0/1", "mlx5_1/2"]),
        ("^mlx5_1:1", ["mlx5_0/1", "mlx5_1/2"]),
        ("^=mlx5_1", ["mlx5_0/1", "mlx5_10/1"]),
        ("ib", []),
    ],
)
def test_adapters_that_nccl_may_not_use_are_left_out(words: str, used: list[str]) -> None:
    adapters_of_node = ["mlx5_0/1", "mlx5_1/1", "mlx5_1/2", "mlx5_10/1"]
    assert [name for name in adapters_of_node if adapters.selected(name, words)] == used


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64])
def test_neighbours_meet_once_and_nobody_is_in_two_pairs_at_once(count: int) -> None:
    rounds = adapters.rounds(list(range(0, 8 * count, 8)))
    met = [pair for pairs in rounds for pair in pairs]
    assert len(rounds) <= 3
    assert len(met) == len({frozenset(pair) for pair in met}) == {1: 0, 2: 1}.get(count, count)
    for pairs in rounds:
        assert len({end for pair in pairs for end in pair}) == 2 * len(pairs)


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("BW average[Gb/sec] MsgRate[Mpps]\n 65536 1765470 185.37 184.94 0.352743", 184.94),
        ("BW average[MB/sec] MsgRate[Mpps]\n 131072 5000 0.00 11700.5 0.09", 98.15),
    ],
)  # fmt: skip
def test_the_rate_is_read_in_either_unit(line: str, rate: float) -> None:
    output = f"Dual-port : OFF\n #bytes #iterations BW peak[?] {line}\n-----\n"
    assert perftest.gigabits(output) == pytest.approx(rate, rel=1e-3)


def test_an_output_without_a_rate_is_an_error() -> None:
    with pytest.raises(perftest.PerftestError, match="Failed to modify QP"):
        perftest.gigabits("----\n Failed to modify QP to RTR\n----\n")


def machine(nodes: int) -> list[Record]:
    records = sound.nodes(nodes, per_node=2)
    alone(records, 391.0)
    return records


def troubles(records: list[Record]) -> list[Check]:
    checks = report.judge(sound.options(), records, report.Standards())
    return [check for check in checks if check.name.startswith("adapter") and check.status in ("fail", "unverified")]


def change(records: list[Record], adapter: str, rate: float | None, which: Callable[[int, int | None], bool]) -> None:
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            if row["adapter"] == adapter and which(record.rank, row["server"]):
                row |= {"gigabits": rate, "reason": None if rate else "Failed to modify QP to RTR"}


SLOW: dict[str, tuple[float | None, Callable[[int, int | None], bool], str, str]] = {
    "an adapter, by itself and with others": (200.0, lambda rank, server: 2 in (rank, server), "node node1", "fail"),
    "an adapter a fifth slower": (318.0, lambda rank, server: 2 in (rank, server), "node node1", "unverified"),
    "an adapter with others only": (
        180.0, lambda rank, server: 2 in (rank, server) and server is not None, "node node1", "fail",
    ),
    "a cable": (180.0, lambda rank, server: (rank, server) == (2, 0), "node node1 and node node0", "fail"),
    "an adapter on which the program breaks": (None, lambda rank, server: rank == 2, "node node1", "unverified"),
}  # fmt: skip


@pytest.mark.parametrize("what", SLOW)
def test_the_slow_part_is_named(what: str) -> None:
    rate, which, subject, status = SLOW[what]
    records = machine(4)
    assert troubles(records) == []
    change(records, "mlx5_3/1", rate, which)
    found = troubles(records)
    assert {(check.subject, check.status) for check in found} == {(subject, status)}
    assert all("mlx5_3/1" in check.name for check in found)


def test_all_adapters_of_a_cluster_at_half_are_found_by_their_line() -> None:
    records = machine(2)
    alone(records, 200.0)
    assert len({(check.name, check.subject) for check in troubles(records)}) == 16


def test_what_was_not_measured_is_listed_and_no_reason_to_doubt() -> None:
    records = machine(2)
    assert "each adapter on its own" not in unjudged(records)["not_read"]
    for record in records:
        record.results["adapters"] = {"skipped": "ib_write_bw is not installed on this node", "asked": True}
    document = sound.report(records)
    assert document["acceptance"]["status"] == "PASS"
    assert "not installed" in document["unjudged"]["not_read"]["each adapter on its own"]
    assert ("adapter: each on its own", "node node1") in sound.outcomes(document, "skipped")
