"""Functions that a notebook calls on several ranks: what they return, how they fail, and that nothing stands still."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("IPython", reason="needs the extra `notebooks`")

import torch
import torch.distributed as dist

from labkit.notebook import ranks


@pytest.fixture(scope="module", autouse=True)
def _no_helper_outlives_these_tests() -> Iterator[None]:
    """In a notebook it ends with the kernel; here others look for what is left behind."""
    yield
    for helper in ranks._helper:
        ranks._end(helper)


def add_up(rank: int, world_size: int, init_method: str, *, start: int) -> int:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    total = torch.tensor(start + rank)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total.item()) * 10 + rank


def leave_the_others_alone(rank: int, world_size: int, init_method: str) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    if rank == 1:
        raise KeyError("momentum")
    dist.barrier()


def be_open(rank: int, world_size: int, init_method: str) -> None:
    raise NotImplementedError("Task 3.1 is open: write train in labs/lab3_distributed/ddp_training.py (about 1 line)")


def stand_still(rank: int, world_size: int, init_method: str) -> None:
    time.sleep(600)


@pytest.mark.night
def test_ranks_meet_and_return_in_their_order() -> None:
    assert ranks.run(add_up, 2, machine="cpu", start=5) == [110, 111]


@pytest.mark.night
def test_what_failed_first_is_told() -> None:
    with pytest.raises(ranks.RankError, match="KeyError on a rank: 'momentum'") as error:
        ranks.run(leave_the_others_alone, 2, machine="cpu")
    assert any("in leave_the_others_alone" in frame for frame in error.value.student_frames)


@pytest.mark.night
def test_an_open_task_is_no_failure() -> None:
    with pytest.raises(NotImplementedError, match=r"Task 3\.1 is open"):
        ranks.run(be_open, 2, machine="cpu")


@pytest.mark.night
def test_a_job_that_stands_still_is_ended() -> None:
    with pytest.raises(ranks.RankError, match="waits in a collective"):
        ranks.run(stand_still, 1, machine="cpu", limit_seconds=0.5)


@pytest.mark.night
def test_after_an_interrupt_the_next_job_gets_its_own_answer() -> None:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(stand_still, 1, machine="cpu")
    assert ranks.run(add_up, 1, machine="cpu", start=1) == [10]
