"""What the operating system tells of a run arrives past the submission, in the place that the probe leaves for it."""

from __future__ import annotations

from gradebox.sandbox import Request, Sandbox


def test_each_file_event_is_told_in_its_order_and_what_is_left_with_its_size(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.observed", params={"module": "honest", "function": "saves"}))
    assert reply.kind == "ok", reply
    value = reply.ranks[0].value
    told = [(event["act"], event["path"]) for event in value["file_events"] if event["path"].endswith((".bin", ".tmp"))]
    assert [event for event in told if event[1] == "direct.bin"] == [
        (act, "direct.bin") for act in ("created", "written", "closed", "deleted")
    ]
    # The folder is watched from its making on; what happened in it meanwhile is told by what is found there.
    assert {path for _, path in told if path.startswith("folder/")} >= {"folder/new.bin"}
    assert value["files"]["folder/new.bin"] == 5
    assert "direct.bin" not in value["files"]


def test_messages_between_ranks_are_counted_by_the_network(namespaces: Sandbox) -> None:
    reply = namespaces.run(Request("drive.exchanged", ranks=2))
    assert reply.kind == "ok", reply
    counts = [rank.value["loopback_bytes"] for rank in reply.ranks]
    assert counts[0] == counts[1]
    assert 2 * 2**20 <= counts[0] < 3 * 2**20


def test_without_a_network_of_its_own_nothing_is_counted(process_limits: Sandbox) -> None:
    reply = process_limits.run(Request("drive.exchanged", ranks=2))
    assert [rank.value["loopback_bytes"] for rank in reply.ranks] == [None, None]


def test_who_makes_more_events_than_can_be_kept_voids_the_check(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.observed", params={"module": "honest", "function": "hides"}))
    assert reply.kind == "tampered"
    assert "the record of files: more were made than it holds" in reply.message


def test_folders_in_folders_are_watched_and_are_no_offence(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.observed", params={"module": "honest", "function": "goes_deep"}))
    assert reply.kind == "ok", reply
    paths = {event["path"] for event in reply.ranks[0].value["file_events"]}
    assert {f"results/run{attempt}/seed/model/layer/part/late.bin" for attempt in range(2)} <= paths
