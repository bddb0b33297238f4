"""Sandboxes over the fake submission, in each way a machine can isolate.

They live as long as the test run: starting one means importing torch.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.resource_tracker import _resource_tracker

import pytest

from gradebox.sandbox import Sandbox, SandboxError, starting
from tests.proc import AVAILABLE
from tests.sandbox.sandbox_runs import (
    ENVIRONMENT,
    LIMITS,
    PRELOAD,
    PROBES,
    SUBMISSION,
    Runner,
    UserSandbox,
    children_of,
    command_of,
)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """After the last sandbox of the run has closed, no process that it started is there, not even as a zombie."""
    if not AVAILABLE:
        yield
        return
    before = children_of(os.getpid())
    yield
    starting.end_unused()  # kept for the next test that opens a sandbox
    # Other tests of the same run may keep a process of theirs (a loader's worker ends when nobody holds the loader any
    # more), and Python keeps one for shared memory.
    theirs = {below for child in before for below in children_of(child)} | {getattr(_resource_tracker, "_pid", None)}
    theirs |= {child.pid for child in multiprocessing.active_children()}
    left = children_of(os.getpid()) - before - theirs
    assert not left, [command_of(pid) for pid in left]


@pytest.fixture(scope="session")
def namespaces() -> Iterator[Sandbox]:
    """The fake submission with full isolation, as whoever runs the tests."""
    with Sandbox(
        SUBMISSION, ENVIRONMENT, isolation="namespaces", preload=PRELOAD, probe_paths=[PROBES], limits=LIMITS
    ) as sandbox:
        try:
            assert sandbox.isolation.mode == "namespaces"
        except SandboxError as error:
            pytest.skip(str(error))
        yield sandbox


@pytest.fixture(scope="session")
def process_limits() -> Iterator[Sandbox]:
    """The fake submission with process limits only."""
    with Sandbox(
        SUBMISSION, ENVIRONMENT, isolation="limits", preload=PRELOAD, probe_paths=[PROBES], limits=LIMITS
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[UserSandbox]:
    """The fake submission with full isolation, run by a user without privileges."""
    if os.geteuid() != 0:
        pytest.skip("the tests themselves run as an ordinary user, so the other namespace tests show this already")
    sandbox = UserSandbox()
    if sandbox.isolation["mode"] != "namespaces":
        pytest.skip(f"an ordinary user cannot use namespaces here: {sandbox.isolation['reason']}")
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="session", params=["namespaces", "ordinary_user"])
def isolated(request: pytest.FixtureRequest) -> Runner:
    """Full isolation, as root (or whoever runs the tests) and as an ordinary user."""
    runner: Runner = request.getfixturevalue(request.param)
    return runner


@pytest.fixture(scope="session", params=["namespaces", "process_limits"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Both modes, for what must hold in either."""
    box: Sandbox = request.getfixturevalue(request.param)
    return box
