"""System calls that no lab needs: refused in the kernel, noted, and of no use to the next student."""

from __future__ import annotations

import os
import uuid
from typing import Any

import pytest

from gradebox.sandbox import Isolation, Reply, Sandbox
from tests.sandbox.sandbox_runs import Runner, call


@pytest.fixture(params=["namespaces", "process_limits", "ordinary_user"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Each way of isolating, as root and as an ordinary user."""
    way: Runner = request.getfixturevalue(request.param)
    return way


def reply_to(runner: Runner, function: str, **arguments: Any) -> Reply:
    reply = call(runner, "kernel_calls", function, **arguments)
    assert reply.kind == "ok", reply.first
    return reply


def refused(reply: Reply) -> set[str]:
    return {note.detail.partition(" was refused")[0] for note in reply.notes if note.kind == "syscall"}


def test_keyrings_bpf_and_the_like_are_refused_and_noted(runner: Runner) -> None:
    reply = reply_to(runner, "errors")
    assert set(reply.value["returned"].values()) == {"EPERM"}, reply.value["returned"]
    assert refused(reply) == set(reply.value["returned"]) - {"io_uring_setup"}  # libraries try that


def test_a_key_of_one_student_is_not_found_by_the_next(runner: Runner) -> None:
    assert reply_to(runner, "leave_key", text=uuid.uuid4().hex).value["returned"] == ["EPERM"] * 4
    assert reply_to(runner, "find_key").value["returned"] == "EPERM"


def test_only_sockets_that_a_lab_can_need_can_be_made(runner: Runner) -> None:
    reply = reply_to(runner, "families")
    families = {tuple(family) for family in reply.value["returned"]}
    refusals = refused(reply)
    assert any(name.startswith("socket(3,") for name in refusals), refusals
    assert len(refusals) < 30
    assert {family for family, _ in families} <= {1, 2, 10, 16}
    assert (16, 15) not in families
    assert {(1, 0), (2, 0), (16, 0)} <= families


def test_no_namespace_comes_from_clone(runner: Runner) -> None:
    reply = reply_to(runner, "new_user_namespace")
    assert (reply.value["returned"], refused(reply)) == ("EPERM", {"clone"})


def test_a_filter_of_the_submissions_own_is_refused(runner: Runner) -> None:
    reply = reply_to(runner, "own_filter")
    assert (reply.value["returned"], refused(reply)) == ("EPERM", {"prctl"})


def test_programs_that_a_submission_starts_are_filtered_too(runner: Runner) -> None:
    reply = reply_to(runner, "refused_in_a_program")
    assert (int(reply.value["returned"]), refused(reply)) == (1, {"keyctl"})


def test_refused_calls_are_counted_not_repeated(sandbox: Sandbox) -> None:
    reply = reply_to(sandbox, "many_times", count=200)
    assert reply.value["returned"] is True
    assert [note.detail for note in reply.notes if note.kind == "syscall"] == ["keyctl was refused 200 times"]


def test_calling_without_end_does_not_keep_the_supervisor_busy(sandbox: Sandbox) -> None:
    assert reply_to(sandbox, "without_end").value["returned"] == "the kernel refuses by itself"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give out other ids")
def test_each_request_has_an_id_of_its_own(namespaces: Sandbox) -> None:
    ids = [tuple(reply_to(namespaces, "ids").value["returned"]) for _ in range(3)]
    if 65534 in ids[0]:
        pytest.skip("this user namespace has no range of ids")
    assert len(set(ids)) == 3
    assert all(user == group for user, group in ids)


def test_the_report_says_where_calls_are_not_filtered() -> None:
    missing = Isolation("namespaces", "", "as root", "seccomp: Function not implemented")
    assert "not filtered, because seccomp: Function not implemented" in missing.lines[-1]
    assert all("filtered" not in line for line in Isolation("namespaces", "", "as root").lines)
