"""What a submission tries in order to get out: none of it may reach anything, as root or as an ordinary user."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from gradebox.sandbox import Limits, Sandbox, landlock
from tests.sandbox.sandbox_runs import PROBES, SUBMISSION, Runner, call

REPOSITORY = Path(__file__).parents[2]
OURS = tuple(REPOSITORY / name for name in ("grader/kernels/add", "grader/shared/probes", "gradebox/sandbox"))
"""Folders of ours of which a probe sees something."""
ROOMS = ("grader", "gradebox", "gradebook")


def attempt(runner: Runner, function: str, **arguments: Any) -> Any:
    """What the function of the fake submission reported."""
    reply = call(runner, "escapes", function, **arguments)
    assert reply.kind == "ok", reply.first
    return reply.value["returned"]


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_can_be_unmounted_or_made_writable(isolated: Runner, room: str) -> None:
    assert (REPOSITORY / room).is_dir()
    assert attempt(isolated, "mounts", grader=str(REPOSITORY / room)) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_nested_user_namespace_gives_no_power_over_mounts(isolated: Runner, room: str) -> None:
    assert attempt(isolated, "mounts_from_a_nested_user_namespace", grader=str(REPOSITORY / room)) == []


def test_writing_is_possible_below_tmp_and_dev_shm_only(isolated: Runner) -> None:
    mark = uuid.uuid4().hex
    folders = ["/", "/etc", "/usr/lib", "/submission", "/submission/labs", "/packages", "/dev", "/var/tmp", "/root"]
    assert all(folder.is_dir() for folder in OURS)
    folders += [str(REPOSITORY), str(REPOSITORY / "labkit"), *map(str, OURS), os.path.expanduser("~")]
    allowed = [f"/tmp/{mark}", f"/dev/shm/{mark}", mark]
    written = attempt(isolated, "write_to", paths=[f"{folder}/{mark}" for folder in folders] + allowed)
    assert set(written) >= set(allowed)
    # A checkout below /tmp has private folders of that name around it; nothing else may be writable.
    assert [path for path in written if not path.startswith(("/tmp/", "/dev/shm/")) and path != mark] == []
    assert not any(Path(folder, mark).exists() for folder in ("/tmp", "/dev/shm", "/usr/lib", REPOSITORY))


def test_shared_memory_of_others_is_neither_seen_nor_written(isolated: Runner) -> None:
    name = f"gpulabs-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm", name)
    path.write_text("ours")
    path.chmod(0o666)
    try:
        assert name not in attempt(isolated, "list_folder", path="/dev/shm")
        attempt(isolated, "write_to", paths=[str(path)])
        assert path.read_text() == "ours"
    finally:
        path.unlink()


def test_solutions_checks_and_history_do_not_exist(isolated: Runner) -> None:
    hidden = [
        "solutions",
        "solutions/lab1_gpu_basics/benchmark.py",
        "grader/course.toml",
        "grader/kernels/lab.toml",
        "grader/kernels/add/criterion.toml",
        "grader/kernels/add/checks.py",
        "grader/kernels/add/reference.py",
        "grader/kernels/shared/checks.py",
        "grader/container/shared/checks/recipe.py",
        "grader/lab1/measurements/checks.py",
        "grader/lab1/benchmark/checks/benchmark.py",
        "grader/lab1/shared/reference.py",
        "grader/lab1/lab.toml",
        "grader/shared/devices.py",
        "gradebox/run/grading.py",
        "gradebox/pytest_plugin.py",
        "gradebook/store.py",
        "tests/gradebox",
        "pyproject.toml",
    ]
    assert all((REPOSITORY / name).exists() for name in hidden), "what is hidden here has moved"
    hidden += [".git"] if (REPOSITORY / ".git").exists() else []
    assert attempt(isolated, "read_from", paths=[str(REPOSITORY / name) for name in hidden]) == []


def test_of_the_course_probes_and_their_cases_are_there_and_nothing_else(isolated: Runner) -> None:
    visible = [
        "grader/__init__.py",
        "grader/shared/probes/support.py",
        "grader/kernels/__init__.py",
        "grader/kernels/add/__init__.py",
        "grader/kernels/add/cases.py",
        "grader/kernels/add/probes.py",
        "grader/kernels/shared/probes/watching.py",
    ]
    paths = [str(REPOSITORY / name) for name in visible]
    assert attempt(isolated, "read_from", paths=paths) == paths
    there = attempt(isolated, "list_folder", path=str(REPOSITORY / "grader/kernels/add"))
    assert sorted(there) == ["__init__.py", "cases.py", "probes.py"]


def test_homes_logs_and_other_temporary_files_do_not_exist(isolated: Runner, tmp_path: Path) -> None:
    paths = ["/home", "/var/log", "/etc/shadow", "/root/.bashrc", "/run", str(tmp_path), "/boot", "/sys", "/mnt"]
    paths = [path for path in paths if Path(path) not in REPOSITORY.parents]  # the way to what it may read
    assert attempt(isolated, "read_from", paths=paths) == []


def test_no_connection_leaves_the_sandbox(isolated: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert attempt(isolated, "connect_to", host="127.0.0.1", port=server.getsockname()[1]) != "connected"
    assert attempt(isolated, "connect_to", host="192.0.2.1", port=80) == "OSError"


def test_loopback_inside_works(isolated: Runner) -> None:
    assert attempt(isolated, "inner_loopback") == "connected"


def test_killing_everyone_finds_nobody(isolated: Runner) -> None:
    reply = call(isolated, "escapes", "kill_everyone")
    assert reply.error == "ProcessLookupError", "there is nobody but the attacker and its supervisor"
    assert attempt(isolated, "inner_loopback") == "connected"


def test_the_supervisor_cannot_be_killed(isolated: Runner) -> None:
    reply = call(isolated, "escapes", "kill_the_parent")
    assert reply.kind == "ok" or reply.first.error == "PermissionError"


def test_the_supervisor_cannot_be_traced_or_read(isolated: Runner) -> None:
    assert attempt(isolated, "trace_the_parent") == []


def assert_only_its_own_processes(isolated: Runner) -> None:
    """The supervisor and the rank; which number the rank has depends on those of the processes above it."""
    first, rank = attempt(isolated, "visible_processes")
    assert (first, rank > 1) == (1, True)


def test_only_processes_of_the_run_are_visible(isolated: Runner) -> None:
    assert_only_its_own_processes(isolated)


def test_no_privilege_is_left(isolated: Runner) -> None:
    got = attempt(isolated, "privileges")
    assert {got[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0000000000000000"}
    assert got["NoNewPrivs"] == "1"
    assert "0" not in got["Uid"].split()


def test_no_device_can_be_made(isolated: Runner) -> None:
    assert attempt(isolated, "make_a_device") is False


def test_no_descriptor_but_our_pipes_is_open(isolated: Runner) -> None:
    assert attempt(isolated, "open_descriptors") == ["pipe"] * 3


@pytest.mark.parametrize("function", ["fork_without_end", "fork_swallowing_errors"])
def test_forking_without_end_stops_at_the_limit(isolated: Runner, function: str) -> None:
    limits = Limits(wall_seconds=2.0, processes=24, memory_bytes=4 * 2**30)
    assert call(isolated, "endings", function, limits=limits).kind in ("error", "crashed", "timeout")
    assert_only_its_own_processes(isolated)


def test_secrets_in_the_judges_environment_stay_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COURSE_TOKEN", "s3cr3t")
    with Sandbox(SUBMISSION, preload=("numpy",), probe_paths=[PROBES]) as sandbox:
        assert "s3cr3t" not in attempt(sandbox, "environment")


@pytest.mark.skipif(not landlock.available(), reason="this kernel has no Landlock, which reports say")
def test_with_process_limits_the_grader_and_the_reference_cannot_be_read_in_native_code_either(
    process_limits: Sandbox,
) -> None:
    secret = ["solutions/lab1_gpu_basics/benchmark.py", "grader/lab1/benchmark/criterion.toml", "gradebox/run/grade.py"]
    free = ["pyproject.toml", "labkit/results/__init__.py", "gradebox/sandbox/codec.py"]
    paths = [str(REPOSITORY / path) for path in secret + free]
    assert all(map(os.path.isfile, paths))
    for function in ("opened", "read_in_native_code"):
        assert attempt(process_limits, function, paths=paths) == paths[len(secret) :]
    assert process_limits.isolation.protected
