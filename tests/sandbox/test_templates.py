"""What is ready before the fork: every request finds the same fresh machine, and one that was lost is made again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gradebox.sandbox import Request, Sandbox, SandboxError
from tests.sandbox.sandbox_runs import Runner, call, children_of, devices_of, is_alive, server_of, templates_of


@pytest.fixture(params=["namespaces", "ordinary_user", "process_limits"])
def anywhere(request: pytest.FixtureRequest) -> Runner:
    """Every way to isolate."""
    runner: Runner = request.getfixturevalue(request.param)
    return runner


def machine(runner: Runner, device: str = "vgpu:T4", *, values: bool = True, ranks: int = 1) -> Any:
    """What a request sees of its machine, which it then spoils."""
    reply = runner.run(Request("drive.machine", device=device, values=values, ranks=ranks))
    assert reply.kind == "ok", reply.first.traceback or reply.message
    return reply.value


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` became true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_every_request_begins_with_the_same_fresh_machine(anywhere: Runner) -> None:
    states = [machine(anywhere) for _ in range(3)]
    for state in states:
        del state["wall"]
    assert states[0] == states[1] == states[2]
    assert states[0]["virtual seconds"] == 0.0
    assert states[0]["readings"][0] < 1001.0, "1000 s and a little: no request's time is added to another's"
    assert states[0]["seeds"] == [0, 67280421310721]
    assert states[0]["memory"]["allocation.all.allocated"] == 3, "its own: ones, their sum, and random numbers"
    assert states[0]["changes of memory"] == 6


def test_the_wall_clock_of_a_request_starts_when_it_does(namespaces: Sandbox) -> None:
    machine(namespaces)
    first = int(time.time())
    while int(time.time()) == first:  # a clock that started with the template would be a second late
        call(namespaces, "honest", "double", x=1)
    before = int(time.time())
    assert before <= machine(namespaces)["wall"] <= time.time() + 2.0


@pytest.mark.night
def test_a_model_its_values_and_its_ranks_each_have_their_own(namespaces: Sandbox) -> None:
    for _ in range(2):
        assert machine(namespaces)["model"] == "Tesla T4"
        assert machine(namespaces, "vgpu:H100")["model"] != "Tesla T4"
        assert machine(namespaces)["values"] == [2.0, 2.0]
        assert machine(namespaces, values=False)["values"] == [0.0, 0.0]
        assert machine(namespaces)["gpus"] == 1
        assert machine(namespaces, ranks=2)["gpus"] == 2
        about = namespaces.run(Request("drive.about")).value
        assert (about["device"], about["gpu"]) == ("cpu", False)


@pytest.mark.night
def test_one_is_ready_for_every_virtual_gpu(namespaces: Sandbox) -> None:
    machine(namespaces)
    kept = templates_of(namespaces)
    for model in ("A100-80GB", "H100"):
        for values in (True, False):
            assert machine(namespaces, f"vgpu:{model}", values=values, ranks=2)["gpus"] == 2
    assert templates_of(namespaces) == kept
    assert namespaces.run(Request("drive.about")).value["gpu"] is False
    assert len(templates_of(namespaces)) == 2, "the other one is for all that asks for none"


def test_one_that_was_killed_is_made_anew(sandbox: Sandbox) -> None:
    before = machine(sandbox)
    killed = templates_of(sandbox)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(is_alive(pid) for pid in killed))
    server = server_of(sandbox)
    reply = sandbox.run(Request("drive.machine", device="vgpu:T4"))
    assert reply.value | {"wall": 0} == before | {"wall": 0}
    assert reply.notes == ()
    assert server_of(sandbox) == server
    assert templates_of(sandbox).isdisjoint(killed)


def test_a_device_that_was_killed_is_made_anew(namespaces: Sandbox) -> None:
    before, kept = machine(namespaces), templates_of(namespaces)
    killed = devices_of(namespaces)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(is_alive(pid) for pid in killed))
    assert machine(namespaces) | {"wall": 0} == before | {"wall": 0}
    assert templates_of(namespaces) == kept
    assert devices_of(namespaces) - killed


def test_one_device_serves_one_request_after_the_other(namespaces: Sandbox) -> None:
    machine(namespaces)
    devices = devices_of(namespaces)
    machine(namespaces)
    assert devices_of(namespaces) == devices != set()


def test_one_that_is_killed_takes_its_run_along_and_the_next_request_works(sandbox: Sandbox) -> None:
    assert call(sandbox, "honest", "double", x=1).kind == "ok"
    server, resting = server_of(sandbox), templates_of(sandbox)
    below: set[int] = set()

    def kill_the_busy_one() -> None:
        children_by_pid: dict[int, set[int]] = {}  # each looked at once: who looks again may meet another moment

        def look() -> bool:
            children_by_pid.update((pid, children_of(pid)) for pid in resting)
            return any(len(children) >= 2 for children in children_by_pid.values())

        if wait_until(look):
            busy = max(children_by_pid, key=lambda pid: len(children_by_pid[pid]))
            below.update(children_by_pid[busy])
            os.kill(busy, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_busy_one)
    killer.start()
    with pytest.raises(SandboxError, match="the supervisor ended without a reply"):
        call(sandbox, "endings", "swallow_everything")
    killer.join()
    assert below
    assert not any(is_alive(pid) for pid in below)
    assert call(sandbox, "honest", "double", x=1).value == {"returned": 2}
    assert server_of(sandbox) == server


def test_no_frame_holds_an_earlier_request(anywhere: Runner) -> None:
    word = "shibboleth"
    for _ in range(2):
        assert anywhere.run(Request("drive.secret", params={"word": word}, device="vgpu:A100-80GB")).kind == "ok"
        reply = anywhere.run(Request("drive.above", params={"halves": ["shibbo", "leth"]}, device="vgpu:A100-80GB"))
        assert reply.kind == "ok", reply.first.traceback
        assert reply.value["depth"] > 8, "down to the server's first function"
        assert not reply.value["found"]


def test_a_gpu_that_does_not_exist_is_named_and_harms_nobody(sandbox: Sandbox) -> None:
    for _ in range(2):
        reply = sandbox.run(Request("drive.about", device="vgpu:GTX-1"))
        assert reply.kind == "probe_error"
        assert "no GPU named 'GTX-1'" in reply.message
    assert machine(sandbox)["model"] == "Tesla T4"
