"""No process of a run has the number of one above it, and what its libraries know of forks stays true."""

from __future__ import annotations

import itertools
import os

import pytest

from gradebox.sandbox import Request, linux
from tests.sandbox.sandbox_runs import Runner


@pytest.fixture(params=["namespaces", "ordinary_user", "process_limits"])
def anywhere(request: pytest.FixtureRequest) -> Runner:
    """Every way to isolate: as root (or whoever runs the tests), as an ordinary user, and with limits only."""
    runner: Runner = request.getfixturevalue(request.param)
    return runner


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_library_that_compares_process_ids_notices_every_fork(anywhere: Runner, ranks: int) -> None:
    """From the process that imported it down to what a rank forks; an audit hook forbids unsafe forks."""
    reply = anywhere.run(Request("drive.forks", ranks=ranks))
    assert reply.kind == "ok", reply.first.traceback or reply.message
    for rank in reply.ranks:
        numbers = rank.value["numbers"]
        # The fork server, the guard, with namespaces init, the server, its template, the supervisor, the rank, what it
        # forked. Init and supervisor are both process 1, each of a pid namespace; init asks no library for anything.
        others = numbers[:2] + numbers[3:] if numbers[2] == 1 else numbers
        assert len(others) == 7, numbers
        assert others[-2] == rank.value["own"]
        assert len(set(others)) == 7, numbers
        assert all(above != below for above, below in itertools.pairwise(numbers)), numbers


@pytest.mark.skipif(not linux.AVAILABLE, reason="process ids are skipped on Linux only")
def test_numbers_are_skipped_without_calling_at_fork_handlers() -> None:
    called: list[int] = []
    os.register_at_fork(before=lambda: called.append(os.getpid()))
    linux.skip_pids(3)
    assert called == []
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert called == [os.getpid()]
