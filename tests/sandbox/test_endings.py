"""However a submission ends, the reply says how, in time, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradebox.sandbox import Limits, Reply, Request, Sandbox, processes
from tests.proc import proc
from tests.sandbox.sandbox_runs import Runner, call, place

MIB = 2**20

SOON = 40.0
"""Seconds, even on a machine that does much else at the time; well below the 60 s after which everything ends."""


def ending(sandbox: Runner, function: str, **limits: float) -> Reply:
    """How `endings.FUNCTION` ended under the given limits."""
    settings = {"wall_seconds": 60.0, "memory_bytes": 2**30, "tmp_bytes": 32 * MIB, "processes": 64, **limits}
    return call(sandbox, "endings", function, limits=Limits(**settings))  # type: ignore[arg-type]


def test_os_exit_is_a_crash_that_says_so(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "exit_hard")
    assert reply.kind == "crashed"
    assert "os._exit" in reply.message


def test_sys_exit_is_an_error_with_its_line(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "exit_softly")
    assert (reply.kind, reply.error, reply.where) == (
        "error",
        "SystemExit",
        place("endings", "sys.exit(3)", "exit_softly"),
    )
    assert "status 3" in reply.message


def test_a_segfault_is_a_crash_with_its_line(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "crash")
    assert (reply.kind, reply.where) == ("crashed", place("endings", "_sigsegv()", "crash"))
    assert "SIGSEGV" in reply.message


def test_killing_oneself_is_a_crash(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "kill_myself")
    assert (reply.kind, reply.message) == ("crashed", "the process was ended by SIGKILL")


@pytest.mark.parametrize("function", ["spin", "swallow_everything", "long_c_call"])
def test_what_does_not_return_times_out_with_its_line(sandbox: Sandbox, function: str) -> None:
    started = time.monotonic()
    reply = ending(sandbox, function, wall_seconds=0.5)
    assert reply.kind == "timeout"
    assert reply.where is not None
    assert reply.where.startswith("endings.py:")
    assert reply.where.endswith(f" in {function}")
    assert time.monotonic() - started < SOON


def test_code_that_waits_by_itself_lacks_no_processor(sandbox: Sandbox) -> None:
    (rank,) = ending(sandbox, "wait_for_nobody", wall_seconds=2.0).ranks
    assert rank.kind == "timeout"
    assert rank.cpu_seconds < 1.0
    if rank.starved_seconds is not None:  # a kernel may be built without schedstat
        assert rank.starved_seconds < 1.0


@pytest.mark.night
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it")
def test_code_that_shares_a_processor_with_others_lacks_it_half_of_the_time() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    try:
        time.sleep(1.0)
        for spinner in spinners:
            before = processes.starved_seconds(spinner.pid)
            time.sleep(1.0)
            after = processes.starved_seconds(spinner.pid)
            assert before is not None
            assert after is not None
            assert after - before > 0.25  # of three, each waits for two thirds of the time
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def test_ignoring_sigterm_does_not_help(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "ignore_sigterm", wall_seconds=0.5)
    assert reply.kind == "timeout"
    assert reply.seconds < SOON


def test_cpu_time_has_its_own_limit(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "spin", cpu_seconds=0.5)
    assert reply.kind == "timeout"
    assert "CPU" in reply.message
    assert reply.seconds < SOON


def test_a_memory_bomb_ends_at_the_limit(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "eat_memory", memory_bytes=512 * MIB)
    assert reply.kind == "memory"
    assert "512 MiB" in reply.message


def test_memory_of_programs_it_starts_counts(sandbox: Sandbox) -> None:
    assert ending(sandbox, "eat_memory_in_programs", memory_bytes=512 * MIB).kind == "memory"


def test_memory_shared_by_forks_counts_once(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "share_memory_with_forks", memory_bytes=512 * MIB)
    assert reply.value == {"returned": [0] * 6}, reply.first


def test_an_impossible_allocation_is_a_memory_reply_with_its_line(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "ask_for_too_much")
    assert (reply.kind, reply.where) == ("memory", place("endings", "2**45", "ask_for_too_much"))


def test_endless_printing_ends_at_the_limit_and_keeps_the_beginning(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "print_forever", output_bytes=MIB)
    assert reply.kind == "output"
    assert reply.ranks[0].stdout.startswith("xxxx")
    assert len(reply.ranks[0].stdout) < 40_000
    assert reply.message == "printed more than 1 MiB"


def test_printing_a_lot_costs_nothing_and_keeps_the_end(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "print_a_lot")
    assert reply.kind == "ok"
    assert reply.ranks[0].stdout.endswith("the end\n")
    assert "bytes ...]" in reply.ranks[0].stdout


def test_a_result_too_large_is_refused(sandbox: Sandbox) -> None:
    assert ending(sandbox, "return_too_much", result_bytes=MIB).kind == "output"


def test_flooding_every_pipe_ends_at_the_limit_and_voids_the_check(sandbox: Sandbox) -> None:
    """The pipe of the notes is among them: whatever was in it may be lost."""
    reply = ending(sandbox, "write_to_every_descriptor", result_bytes=MIB)
    assert reply.kind == "tampered"
    assert reply.seconds < 20


def test_a_result_nested_too_deeply_is_our_error_not_the_judges(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "deep_result")
    assert reply.kind == "probe_error"
    assert "nested" in reply.message


def test_a_file_may_not_outgrow_its_limit(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "fill_the_disk", file_bytes=4 * MIB)
    assert (reply.kind, reply.error) == ("error", "OSError")
    assert "File too large" in reply.message


def test_all_files_together_may_not_outgrow_theirs(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "fill_the_disk_with_many_files", tmp_bytes=8 * MIB)
    assert reply.kind in ("error", "output")
    assert reply.seconds < SOON


def test_threads_count_as_processes(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "start_threads_without_end", processes=24, wall_seconds=5.0)
    assert reply.kind in ("error", "crashed")


def test_an_exception_without_text_is_still_reported(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "raise_oddly")
    assert (reply.kind, reply.error) == ("error", "Odd")


def test_a_background_thread_does_not_delay_the_reply(sandbox: Sandbox) -> None:
    reply = ending(sandbox, "leave_a_thread")
    assert reply.kind == "ok"
    assert reply.seconds < SOON


def test_a_daemon_is_gone_before_the_reply_and_noted(sandbox: Sandbox) -> None:
    name = f"gl{time.monotonic_ns() % 10**10}"
    reply = call(sandbox, "endings", "leave_a_daemon", name=name)
    assert reply.kind == "ok"
    assert name not in running_names()
    assert "descendants" in {note.kind for note in reply.notes}


def running_names() -> set[str]:
    """Names of all processes of this machine."""
    names = set()
    for path in proc().glob("[0-9]*/comm"):
        try:
            names.add(path.read_text().strip())
        except OSError:
            continue
    return names


def test_forking_without_end_stops_at_the_limit_with_process_limits_only(process_limits: Sandbox) -> None:
    reply = ending(process_limits, "fork_swallowing_errors", processes=24, wall_seconds=3.0)
    assert reply.kind in ("crashed", "timeout")
    assert ending(process_limits, "leave_a_thread").kind == "ok"


def test_ranks_meet_over_gloo(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.all_reduce", ranks=2))
    assert [rank.value for rank in reply.ranks] == [{"total": 3.0}, {"total": 3.0}], reply.first


def test_each_rank_has_its_own_kind(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.one_rank", params={"misbehaving": 1, "function": "exit_hard"}, ranks=3))
    assert [rank.kind for rank in reply.ranks] == ["ok", "crashed", "ok"]
    assert reply.kind == "crashed"
    assert "os._exit" in reply.message


def test_a_dead_rank_does_not_keep_the_others_waiting(sandbox: Sandbox) -> None:
    limits = Limits(wall_seconds=60.0, rank_grace_seconds=0.5)
    params = {"misbehaving": 1, "function": "exit_hard"}
    reply = sandbox.run(Request("drive.wait_for_everyone", params=params, ranks=2, limits=limits))
    assert reply.ranks[1].kind == "crashed"
    # gloo either notices the closed connection or waits until it is told to end.
    assert reply.ranks[0].kind in ("timeout", "probe_error")
    assert reply.seconds < SOON


def test_a_hanging_rank_does_not_spoil_the_others(sandbox: Sandbox) -> None:
    limits = Limits(wall_seconds=0.7)
    request = Request("drive.one_rank", params={"misbehaving": 0, "function": "spin"}, ranks=2, limits=limits)
    assert [rank.kind for rank in sandbox.run(request).ranks] == ["timeout", "ok"]
