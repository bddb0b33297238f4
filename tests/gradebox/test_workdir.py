"""A judge's folder goes with it, or with the next start where the front was killed; nobody's else goes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gradebox.run import workdir

_HOLD = """
import time
from gradebox.run import workdir

with workdir.locked_workdir() as (folder, _):
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def age(folder: Path) -> Path:
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))
    return folder


def test_a_room_is_empty_and_private_and_gone_afterwards(temporary: Path) -> None:
    with workdir.locked_workdir() as (room, _):
        assert os.listdir(room) == []
        assert os.stat(room).st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_what_a_killed_front_left_goes_with_the_next_start_and_what_is_held_stays(temporary: Path) -> None:
    holding = subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True)
    assert holding.stdout is not None
    room = Path(holding.stdout.readline().strip())
    (room / "something").write_text("left")
    age(room)
    with workdir.locked_workdir():
        assert room.is_dir()
    holding.kill()
    holding.wait()
    holding.stdout.close()
    assert room.is_dir()
    with workdir.locked_workdir():
        assert not room.exists()


def test_a_folder_just_made_one_with_other_rights_and_a_link_stay(temporary: Path) -> None:
    young = temporary / f"{workdir.PREFIX}young"
    young.mkdir(mode=0o700)
    open_to_all = temporary / f"{workdir.PREFIX}open"
    open_to_all.mkdir()
    age(open_to_all).chmod(0o755)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "kept").write_text("")
    age(elsewhere)
    (temporary / f"{workdir.PREFIX}link").symlink_to(elsewhere)
    with workdir.locked_workdir():
        assert young.is_dir()
        assert open_to_all.is_dir()
        assert (elsewhere / "kept").is_file()
