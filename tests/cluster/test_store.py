"""The store moves on when its node is lost, and takes along what each process had to say."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch.distributed as dist

from cluster.acceptance import launch, store
from cluster.acceptance.report import Standards
from cluster.acceptance.store import Host, SurvivingStore, connect, node_name, serve, within
from tests.cluster import sound


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> store.TCPStore:
    """A store at MASTER_ADDR and MASTER_PORT; whoever drops it loses the node."""
    server = serve()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    return server


def met(ranks: int) -> list[SurvivingStore]:
    """As many processes that have met; ranks from 1 on keep a store in reserve."""
    stores = [SurvivingStore(connect(5.0)) for _ in range(ranks)]
    for rank, peer in enumerate(stores):
        peer.meet(rank=rank, world_size=ranks, keeps_reserve=rank > 0, seconds=0.0)
    for rank, peer in enumerate(stores):  # now all are there
        peer.meet(rank=rank, world_size=ranks, keeps_reserve=False, seconds=0.0)
    return stores


def lose(peer: SurvivingStore) -> None:
    """What a node that is gone looks like to a process: no answer is ever right again."""

    class Gone:
        def __getattr__(self, name: str) -> object:
            raise dist.DistNetworkError("Connection reset by peer")

    peer._store = Gone()  # type: ignore[assignment]


def test_all_know_where_the_others_are(meeting: store.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node7")
    first, second, third = met(3)
    assert sorted(first.hosts) == sorted(third.hosts) == [0, 1, 2]
    assert {host.node for host in second.hosts.values()} == {"node7"}
    assert (first.serves, second.serves) == (False, True)


def test_survivors_meet_again_with_all_that_they_had_said(meeting: store.TCPStore) -> None:
    _, second, third = met(3)
    second.set("record/1", "one")
    third.set("record/2", "two")
    lose(second)
    lose(third)
    assert second.check(["record/1"])
    assert second.moved
    assert not second.check(["record/2"]), "the third process has not come yet"
    assert third.get("record/2") == b"two"
    assert second.get("record/2") == b"two"
    assert not second.check(["host/0"]), "nobody has heard of the lost one there"


def test_only_one_of_the_survivors_is_the_first(meeting: store.TCPStore) -> None:
    _, second, third = met(3)
    lose(second)
    lose(third)
    assert [second.first("reporter", "1"), third.first("reporter", "2")] == [True, False]


def test_a_reserve_that_is_gone_as_well_is_passed_over(meeting: store.TCPStore) -> None:
    _, second, third = met(3)
    second._reserve = None  # its process ends
    lose(third)
    third.set("record/2", "two")
    assert third.get("record/2") == b"two"


def test_whoever_is_left_alone_still_has_a_store(meeting: store.TCPStore) -> None:
    alone = SurvivingStore(connect(5.0))
    alone.set("record/0", "zero")
    lose(alone)
    assert alone.get("record/0") == b"zero"
    assert alone.first("reporter", "0")


def test_a_store_that_does_not_answer_is_lost_too(meeting: store.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ANSWER_SECONDS", 0.2)
    alone = SurvivingStore(connect(5.0))

    class Silent:
        def check(self, keys: list[str]) -> bool:
            time.sleep(60)  # in a thread that is left behind
            return True

    alone._store = Silent()  # type: ignore[assignment]
    began = time.monotonic()
    assert not alone.check(["stop"])
    assert alone.moved
    assert time.monotonic() - began < 30


def test_a_node_is_called_what_the_cluster_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gke-pool-1")
    assert node_name() == "gke-pool-1"
    monkeypatch.setenv("SLURMD_NODENAME", "node17")
    assert node_name() == "node17"


def test_a_host_travels_as_json() -> None:
    host = Host(rank=3, node="node1", address="10.0.0.7", port=4711)
    assert Host(**json.loads(json.dumps(asdict(host)))) == host


@pytest.mark.parametrize("reported", [False, True])
def test_a_node_that_finds_nobody_says_where_it_looked(
    reported: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    port, environment = server.port, {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    del server  # nobody is there
    for name, value in {**environment, "MASTER_PORT": str(port), "NODE_NAME": "node1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "STORE_SECONDS", 1.0)
    path = tmp_path / "cluster_test_report.json"
    if reported:
        path.write_text("{}")
    assert launch._one_of_many(sound.options("--report", str(tmp_path)), [], Standards()) == 2
    assert f"node1: nobody answers at 127.0.0.1:{port}" in capsys.readouterr().err
    written = json.loads(path.read_text())
    assert written == {} if reported else written["acceptance"]["status"] == "COULD NOT RUN"


def test_a_part_of_a_store_has_its_own_keys(meeting: store.TCPStore) -> None:
    within(meeting).set("key", "ours")
    assert connect(5.0).check(["key"])
    assert not meeting.check(["key"])
