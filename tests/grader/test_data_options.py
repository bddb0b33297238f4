"""`--data` and `--data-dir`: the same in every program that has them, and Lab 3 trains on what they name."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.acceptance import options
from cluster.job import settings
from labkit import data
from tests.labkit.test_labkit_data import FILES, TRAIN, idx

ROOT = Path(__file__).parents[2]
LABS = ("lab1_gpu_basics", "lab2_mixed_precision", "lab3_distributed", "lab4_memory", "lab5_production")
WITHOUT_OWN_OPTIONS = [ROOT / name for name in ("cluster", "labkit", *(f"solutions/{lab}" for lab in LABS))]
PROGRAMS = [
    f"solutions.{lab}.{path.stem}"
    for lab in LABS
    for path in sorted((ROOT / "solutions" / lab).glob("*.py"))
    if "." not in path.stem and "\ndef main(" in path.read_text(encoding="utf-8")
]
KNOWN = {
    "solutions.lab2_mixed_precision.amp_training",
    "solutions.lab2_mixed_precision.precision_comparison",
    "solutions.lab3_distributed.ddp_training",
    "solutions.lab3_distributed.ddp_debugging",
    "solutions.lab5_production.train",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_takes_a_data_set_names_them_all(
    program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(program).main(["--help"])
    shown = capsys.readouterr().out
    takes_data = re.search(r"^ +--data NAME +(.*)", shown, re.MULTILINE)
    assert (takes_data is not None) == (program in KNOWN)
    if takes_data is not None:
        assert data.NAMES_IN_WORDS in takes_data[1]
        assert data.DATA_VARIABLE in shown


@pytest.mark.parametrize("read", [options.parse, settings.read])
def test_the_programs_for_clusters_name_them_all(
    read: Callable[[list[str]], object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit, match="0"):
        read(["--help"])
    assert data.NAMES_IN_WORDS in capsys.readouterr().out


def test_nobody_describes_the_option_again() -> None:
    own = [
        path.relative_to(ROOT).as_posix()
        for folder in WITHOUT_OWN_OPTIONS
        for path in folder.rglob("*.py")
        if re.search(r'add_argument\(\s*"--data(-dir)?"', path.read_text(encoding="utf-8"))
    ]
    assert own == ["labkit/data.py"]


def test_every_name_is_accepted_and_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    data.add_options(parser, also="auto: the best that is there")
    assert vars(parser.parse_args([])) == {"data": "digits", "data_dir": None}
    for name in ("auto", *data.NAMES):
        assert parser.parse_args(["--data", name, "--data-dir", "here"]).data == name
        assert name in data.NAMES_IN_WORDS or name == "auto"
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--data", "imagenet"])
    assert "cifar10" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a few images in MNIST's format."""
    raw = tmp_path / "data" / data.SOURCES["mnist"].folder
    raw.mkdir(parents=True)
    for name, count in FILES.items():
        (raw / name).write_bytes(idx(name, count))
    return tmp_path / "data"


@pytest.mark.night
@pytest.mark.parametrize(("program", "result"), [("ddp_training", "training"), ("ddp_debugging", "debugging")])
def test_lab_3_trains_on_another_data_set(program: str, result: str, folder: Path, tmp_path: Path) -> None:
    main = importlib.import_module(f"solutions.lab3_distributed.{program}").main
    place = ["--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(["--data", "mnist", "--data-dir", str(folder), *place]) == 0
    results = json.loads((tmp_path / "out" / f"{result}.json").read_text(encoding="utf-8"))["results"]
    (training,) = results
    assert training["world_size"] == 2
    # Half of the six images are one batch: so many steps show that these images were the data, and not digits.
    assert training["batch_size"] >= TRAIN
    assert training["optimizer_steps"] == training["epochs"]
    assert (training["accuracy"] is not None) == (program == "ddp_training")


@pytest.mark.parametrize("program", ["ddp_training", "ddp_debugging"])
def test_lab_3_reports_a_missing_data_set_before_it_starts_ranks(program: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"solutions.lab3_distributed.{program}")
    with pytest.raises(data.DatasetError, match="gpulabs data download cifar10"):
        module.main(["--data", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path)])
