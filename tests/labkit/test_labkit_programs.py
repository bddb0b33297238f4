"""What programs share: quick import, plots without global state, progress, arguments, endings."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labkit import LabError, plotting, program, progress
from labkit.progress import _words, track

ROOT = Path(__file__).parents[2]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_labkit_and_its_result_types_stays_light() -> None:
    loaded = modules_after("import labkit, labkit.results, labkit.device")
    assert not loaded & {"torch", "numpy", "sklearn", "matplotlib", "torchvision", "rich", "vgpu"}


def test_matplotlib_is_imported_by_the_first_figure_and_pyplot_and_torch_by_none() -> None:
    loaded = modules_after("import labkit.plotting")
    assert not loaded & {"matplotlib", "torch"}
    loaded = modules_after("import labkit.plotting; labkit.plotting.new_figure('a')")
    assert "matplotlib.figure" in loaded
    assert not loaded & {"matplotlib.pyplot", "torch"}


def test_a_plot_is_a_png_with_something_on_it(tmp_path: Path) -> None:
    figure, (axis,) = plotting.new_figure("Speedup", x_label="size", y_label="ratio")
    empty = pixels(plotting.save_png(figure, tmp_path / "new" / "empty.png"))
    axis.plot([1, 2, 3], [1, 4, 9], color=plotting.COLORS[0])
    drawn = pixels(plotting.save_png(figure, tmp_path / "drawn.png"))
    assert empty.shape == drawn.shape
    blue = np.array([0x22, 0x66, 0xAA])
    assert (drawn == blue).all(axis=-1).sum() > 100
    assert not (empty == blue).all(axis=-1).any()


def test_a_simulated_plot_says_so_in_its_corner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, _ = plotting.new_figure("Speedup")
    real = pixels(plotting.save_png(figure, tmp_path / "real.png"))
    monkeypatch.setattr(plotting, "is_simulated", lambda: True)
    simulated = pixels(plotting.save_png(figure, tmp_path / "simulated.png"))
    height, width, _ = real.shape
    different = np.argwhere((real != simulated).any(axis=-1))
    assert len(different) > 50
    assert (different[:, 0] < height / 8).all()
    assert (different[:, 1] > width * 0.8).all()


def test_columns_share_their_scale(tmp_path: Path) -> None:
    _, (left, right) = plotting.new_figure("Memory", columns=2)
    left.bar(["a"], [1])
    right.bar(["a"], [100])
    assert left.get_ylim() == right.get_ylim()


def test_a_failed_plot_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plot.png"
    figure, _ = plotting.new_figure("Speedup")
    plotting.save_png(figure, path)
    before = path.read_bytes()

    def interrupted(target: Path, **_: object) -> None:
        target.write_bytes(b"\x89PNG")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plotting.save_png(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_progress_yields_every_item_and_is_silent_without_a_terminal_if_it_is_quick(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(track([3, 1, 2], "sizes")) == [3, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_long_work_without_a_terminal_is_told_in_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = iter([0.0, 4.0, 11.0, 11.0, 19.0, 22.0, 22.0])
    monkeypatch.setattr(progress, "_elapsed_seconds", lambda: next(passed))
    assert list(track([128, 256, 512, 1024], "sizes")) == [128, 256, 512, 1024]
    assert capsys.readouterr() == ("", "sizes: 1 of 4 done, now 256\nsizes: 3 of 4 done, now 1024\n")


def test_progress_is_drawn_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(track([128, 512], "sizes")) == [128, 512]
    drawn = capsys.readouterr().err
    assert "sizes" in drawn
    assert "1/2" in drawn


def test_what_is_going_on_is_said_in_words() -> None:
    assert _words((6.103515625e-05, torch.float16, False)) == "6.104e-05, float16, False"
    assert _words(("bfloat16", 512)) == "bfloat16, 512"


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", ""])
def test_numbers_below_one_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        program.positive_int(text)


def test_sizes_are_read_from_a_list() -> None:
    assert program.positive_ints("64, 128,256") == (64, 128, 256)


def test_an_expected_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise LabError("no GPU here")

    assert program.run(main) == 1
    assert capsys.readouterr().err == "error: no GPU here\n"


def test_an_open_task_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise NotImplementedError("Task 1.2 is open: write it")

    assert program.run(main) == 1
    assert capsys.readouterr().err == "error: Task 1.2 is open: write it\n"


def test_an_interrupted_program_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert program.run(main) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_bug_is_not_hidden() -> None:
    def main() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(main)


def test_a_rank_of_torchrun_ends_without_taking_the_interpreter_down() -> None:
    code = (
        "import atexit, sys, threading, time; from labkit import program\n"
        "def write_late(): time.sleep(0.3); sys.stdout.write('thread ')\n"
        "threading.Thread(target=write_late).start()\n"
        "atexit.register(print, 'registered'); sys.stdout.write('out ')\n"
        "class Late:\n    def __del__(self): print('interpreter taken down')\n"
        "late = Late(); program.run(lambda: 3)"
    )
    run = [sys.executable, "-c", code]
    ended = subprocess.run(run, env={"TORCHELASTIC_RUN_ID": "job"}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "out thread registered\n"), ended.stderr
    alone = subprocess.run(run, env={}, capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stdout) == (0, "out thread registered\ninterpreter taken down\n"), alone.stderr
