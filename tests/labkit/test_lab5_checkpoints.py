"""The checkpoint files that Lab 5 gives: old or new and never half, a few of them, and the random numbers in them."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from solutions.lab5_production.checkpoints import (
    capture_random_state,
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    restore_random_state,
    write_checkpoint,
)

STATE = {"numbers": torch.arange(20_000, dtype=torch.float64)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_newer_checkpoints_are_those_with_more_steps(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        write_checkpoint(checkpoint_path(tmp_path, step), {"step": step})
    (tmp_path / "step-777.pt").write_bytes(b"not one of ours")
    os.utime(checkpoint_path(tmp_path, 5), (4e9, 4e9))  # times of files say nothing
    assert [path.stem for path in list_checkpoints(tmp_path)] == ["step-00000005", "step-99999999", "step-100000000"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100000000.pt"
    assert latest_checkpoint(tmp_path / "no folder") is None


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(checkpoint_path(tmp_path, step), STATE, keep=2)
    assert names(tmp_path) == ["step-00000030.pt", "step-00000040.pt"]


def test_content_reaches_the_disk_before_its_name_and_the_name_before_old_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(checkpoint_path(tmp_path, 1), STATE)
    order: list[str] = []
    sync, replace, unlink = os.fsync, os.replace, Path.unlink

    def fsync(fd: int) -> None:
        order.append("folder" if os.path.samestat(os.fstat(fd), tmp_path.stat()) else "file")
        sync(fd)

    def rename(old: Path, new: Path) -> None:
        order.append("name")
        replace(old, new)

    def remove(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".pt":
            order.append("old one")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(Path, "unlink", remove)
    write_checkpoint(checkpoint_path(tmp_path, 2), STATE, keep=1)
    assert order == ["file", "name", "folder", "old one"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_kill_in_the_middle_loses_nothing_and_its_leftovers_go_with_the_next_write(
    function: str, tmp_path: Path
) -> None:
    write_checkpoint(checkpoint_path(tmp_path, 1), STATE)
    child = os.fork()
    if child == 0:
        setattr(os, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_checkpoint(checkpoint_path(tmp_path, 2), STATE)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 1)
    assert len(names(tmp_path)) == 2, "the killed process left its temporary file"
    write_checkpoint(checkpoint_path(tmp_path, 3), STATE)
    assert names(tmp_path) == ["step-00000001.pt", "step-00000003.pt"]


def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(checkpoint_path(tmp_path, 1), {"step": 1})

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_checkpoint(checkpoint_path(tmp_path, 1), STATE)
    assert names(tmp_path) == ["step-00000001.pt"]
    assert torch.load(checkpoint_path(tmp_path, 1), weights_only=True) == {"step": 1}


def test_damaged_checkpoints_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(checkpoint_path(tmp_path, 1), STATE)
    content = checkpoint_path(tmp_path, 1).read_bytes()
    damaged = (content[:40_000], b"", bytes(len(content)), b"<!DOCTYPE html>" * 40, content[5_000:])
    for step, damage in enumerate(damaged, 2):
        checkpoint_path(tmp_path, step).write_bytes(damage)
    checkpoint_path(tmp_path, 99).mkdir()
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 1)
    assert capsys.readouterr().out.count("cannot be read") == len(damaged) + 1


def test_every_generator_goes_back_to_where_it_was(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(1))]

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)  # type: ignore[operator]
    draw()  # two of them have half of a pair of normal numbers still to give
    write_checkpoint(checkpoint_path(tmp_path, 1), capture_random_state())
    first = draw()
    restore_random_state(torch.load(checkpoint_path(tmp_path, 1), weights_only=True))
    assert draw() == first
