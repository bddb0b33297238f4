"""`python -m vgpu`: running programs, exit status, errors before the run, and what is left behind."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vgpu
from vgpu import __main__ as command_line
from vgpu.runtime.outputs import rank_path

_ROOT = Path(vgpu.__file__).resolve().parents[1]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}


def _command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vgpu", *arguments]
    return subprocess.run(command, cwd=cwd, env=_environment(), capture_output=True, text=True, check=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run programs in, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def _script(folder: Path, text: str, name: str = "script.py") -> str:
    (folder / name).write_text(text)
    return name


def test_a_script_runs_unchanged_under_python_m_vgpu(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, torch\nassert __name__ == '__main__'\n"
        "print(torch.cuda.get_device_name(), sys.argv[1:], (torch.ones(2, device='cuda') + 1).tolist())\nsys.exit(3)\n"
    )
    done = _command("--gpu", "H200", "script.py", "a", "--b", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "NVIDIA H200 ['a', '--b'] [2.0, 2.0]\n"
    assert "simulated NVIDIA H200" in done.stderr


def test_everything_is_left_behind_in_one_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(here, "import torch\nx = torch.ones(256, 256, device='cuda:1')\n(x @ x).sum().item()\n")
    status = command_line.main(
        [
            "--gpu", "A100-80GB", "--gpus", "2", "--interconnect", "pcie4", "--shapes-only", "--summary",
            "--picture", "run.png", "--trace", "run.json.gz", script,
        ]
    )  # fmt: skip
    errors = capsys.readouterr().err
    assert status == 0
    assert "cuda:1 of 2 GPUs" in errors
    assert "aten::mm" in errors
    assert "simulated 2 x NVIDIA A100-SXM4-80GB, shapes only" in errors
    assert (here / "run.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(gzip.decompress((here / "run.json.gz").read_bytes()))["simulated"] is True


def test_an_error_shows_the_programs_frames_only(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # init_process_group leaves one that prefixes "[rank0]"
    script = _script(here, "import torch\ndef add():\n    return torch.ones(3, device='cuda') + torch.ones(4)\nadd()\n")
    assert command_line.main([script]) == 1
    errors = capsys.readouterr().err
    assert "Expected all tensors to be on the same device" in errors
    files = [line for line in errors.splitlines() if line.startswith("  File")]
    assert files
    assert all("script.py" in line for line in files)
    assert errors.rstrip().endswith("modelled, not measured")
    command_line.main(["--full-traceback", script])
    assert "dispatch_mode.py" in capsys.readouterr().err


def test_a_message_given_to_sys_exit_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([_script(here, "import sys\nsys.exit('no data')\n")]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "no data"


def test_a_file_that_nobody_filled_is_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--trace", "run.json", _script(here, "print('no GPU needed')\n")]) == 0
    assert "run.json was not written: this process used no GPU" in capsys.readouterr().err
    assert not (here / "run.json").exists()


@pytest.mark.night
def test_ctrl_c_still_prints_the_line_and_ends_with_130(tmp_path: Path) -> None:
    script = _script(
        tmp_path, "import torch\ntorch.ones(4, device='cuda')\nprint('ready', flush=True)\nwhile True:\n    pass\n"
    )
    command = [sys.executable, "-m", "vgpu", script]
    with subprocess.Popen(
        command, cwd=tmp_path, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in errors
    assert "simulated Tesla T4" in errors


def test_threads_of_the_program_end_before_the_gpu_goes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(
        here,
        "import threading, time, torch\n"
        "def work():\n    time.sleep(0.5)\n    print(torch.ones(2, device='cuda').device)\n"
        "threading.Thread(target=work).start()\n",
    )
    assert command_line.main([script]) == 0
    assert capsys.readouterr().out == "cuda:0\n"


def test_a_module_runs_with_m(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _script(here, "import sys, torch\nprint(torch.cuda.is_available(), sys.argv[1:])\n", "program_of_mine.py")
    assert command_line.main(["-m", "program_of_mine", "--flag"]) == 0
    assert capsys.readouterr().out == "True ['--flag']\n"


# ---- errors before the run, in this process --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpu", "V200", "script.py"], "no GPU named 'V200'"),
        (["--gpu", "A100", "script.py"], "did you mean A100-40GB or A100-80GB?"),
        (["--gpu", "h10", "script.py"], "did you mean H100?"),
        (["--interconnect", "nvlink99", "script.py"], "no interconnect named 'nvlink99'"),
        (["--gpus", "0", "script.py"], "at least one GPU"),
        (["scirpt.py"], "no such file: scirpt.py; did you mean script.py?"),
        (["--picture", "run.gif", "script.py"], "ends in .png, .svg or .pdf"),
        (["--picture", "missing/run.png", "script.py"], "there is no folder missing"),
        (["--trace", ".", "script.py"], "ends in .json or .json.gz"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    arguments: list[str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _script(here, "raise AssertionError('it ran')\n")
    assert command_line.main(arguments) == 2
    errors = capsys.readouterr().err
    assert expected in errors
    assert errors.count("\n") == 1


def test_a_missing_matplotlib_is_told_before_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _script(here, "raise AssertionError('it ran')\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert command_line.main(["--picture", "run.png", "script.py"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_calibrate_without_a_gpu_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a real GPU")
    assert command_line.main(["calibrate"]) == 2
    errors = capsys.readouterr().err
    assert "needs a real NVIDIA GPU" in errors
    assert errors.count("\n") == 1


def test_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        command_line.main(["--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    for option in (
        "--gpu",
        "--gpus",
        "--interconnect",
        "--shapes-only",
        "--summary",
        "--picture",
        "--trace",
        "--record",
    ):
        assert option in shown
    assert "torchrun" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_list_names_gpus_interconnects_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["list", "--sources"]) == 0
    shown = capsys.readouterr().out
    for name in (*vgpu.list_specs(), "pcie4", "nvlink4"):
        assert name in shown
    assert "datasheet" in shown


def test_list_and_price_need_no_torch(tmp_path: Path) -> None:
    begin = time.perf_counter()
    loaded = "import sys, vgpu.tools.price.command; from vgpu.__main__ import main; main(['list'])"
    code = f"{loaded}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - begin < 30


@pytest.mark.parametrize(
    ("name", "expected"), [("a/run.png", "a/run.rank2.png"), ("trace.json.gz", "trace.rank2.json.gz")]
)
def test_each_rank_writes_its_own_file(name: str, expected: str) -> None:
    assert rank_path(Path(name), 2) == Path(expected)
