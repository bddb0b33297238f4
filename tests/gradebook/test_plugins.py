"""Plug-ins: found without an import, imported when used, and each can be taken out without harm to anything else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradebook import plugins
from tests.gradebook.conftest import SmallClass

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.name for path in (ROOT / "gradebook" / "plugins").glob("*/__init__.py"))
# Gives commands one after the other, with a judge that only pretends to grade; prints what became of each. Of the
# libraries that plug-ins need, markdown-it-py is not looked for: Rich brings it along.
PROGRAM = """
import json, sys
for name in sys.argv[2].split():
    sys.modules[name] = None
from typer.testing import CliRunner
import gradebook.cli.classroom
from grader.cli import app
from tests.gradebook.fakes import fake_engine

gradebook.cli.classroom._local_engine = lambda: fake_engine
done = [CliRunner().invoke(app, command) for command in json.loads(sys.argv[1])]
imported = [name for name in sys.modules if name.startswith("gradebook.plugins.") or sys.modules[name] is not None
            and name in ("ray", "requests", "werkzeug", "nh3")]
print(json.dumps({"done": [[one.exit_code, one.output] for one in done], "imported": sorted(imported)}))
"""


@dataclass
class Ran:
    """What became of commands, in a process of their own."""

    done: list[tuple[int, str]]
    imported: list[str]
    """Plug-ins, and the libraries that only they need."""


def run(commands: list[list[str]], folder: Path = ROOT, hidden: str = "") -> Ran:
    """Give commands to the packages in a folder; `hidden` are libraries that are not there."""
    path = {"PYTHONPATH": os.pathsep.join(dict.fromkeys([str(folder), str(ROOT)]))}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands), hidden],
        cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return Ran(**json.loads(made.stdout.splitlines()[-1]))


def usual(small_class: SmallClass) -> list[list[str]]:
    """What everybody does with a class."""
    small_class.hands_in("ada")
    out = str(small_class.out)
    return [
        ["--help"],
        ["class", str(small_class.submissions), "--out", out, "--lab=1", "--device=vgpu"],
        ["export", "class", out],
        ["review", out],
        ["manual", "requests", out],
    ]


def using(name: str, out: Path) -> list[list[str]]:
    """Every command that a plug-in brings."""
    points = [point for point in plugins._entry_points().values() if point.module.split(".")[2] == name]
    assert points
    return [
        ["class", "no/such/folder", "--on", rest, "--out", str(out)] if kind == "engine" else [kind, rest, "--help"]
        for kind, _, rest in (point.name.partition(".") for point in points)
    ]


def test_every_folder_has_an_entry_point() -> None:
    assert FOLDERS == ["canvas_push", "classroom50", "grading_ui", "kubernetes", "ray", "slurm"]
    assert sorted({point.module.split(".")[2] for point in plugins._entry_points().values()}) == FOLDERS


def test_the_distributions_name_the_same_entry_points() -> None:
    """The engine's wheel has `gradebook` in it; a checkout that is not installed goes by its own `pyproject.toml`."""
    files = (ROOT / "pyproject.toml", ROOT / "packaging" / "gradebox" / "pyproject.toml")
    tables = [tomllib.loads(file.read_text())["project"]["entry-points"][plugins.GROUP] for file in files]
    assert tables[0] == tables[1] == {point.name: point.value for point in plugins._of_checkout()}


def test_nothing_else_names_a_plug_in() -> None:
    paths = [path for package in ("gradebook", "grader") for path in (ROOT / package).rglob("*.py")]
    others = [path for path in paths if not path.is_relative_to(ROOT / "gradebook" / "plugins")]
    assert len(others) > 200
    for path in others:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in FOLDERS if f"plugins.{name}" in text or f"plugins/{name}" in text], path


def test_what_is_not_used_is_not_imported(small_class: SmallClass) -> None:
    ran = run(usual(small_class))
    assert [code for code, _ in ran.done] == [0, 0, 0, 3, 0]
    assert ran.imported == []


@pytest.mark.night
@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_used_is_imported_and_no_other(name: str, tmp_path: Path) -> None:
    ran = run(using(name, tmp_path / "out"))
    assert {module.split(".")[2] for module in ran.imported if module.startswith("gradebook.")} == {name}


@pytest.mark.night
def test_plug_ins_that_are_taken_out_are_missed_by_their_own_commands_only(
    small_class: SmallClass, tmp_path: Path
) -> None:
    _assert_missed_by_its_own_commands_only(FOLDERS, small_class, tmp_path)


@pytest.mark.night
@pytest.mark.parametrize("name", FOLDERS)
def test_a_plug_in_that_is_taken_out_is_not_missed_by_another(
    name: str, small_class: SmallClass, tmp_path: Path
) -> None:
    _assert_missed_by_its_own_commands_only([name], small_class, tmp_path)


def _assert_missed_by_its_own_commands_only(missing: list[str], small_class: SmallClass, tmp_path: Path) -> None:
    course, out = tmp_path / "course", tmp_path / "out"
    shutil.copytree(ROOT / "gradebook", course / "gradebook", ignore=shutil.ignore_patterns("__pycache__"))
    for name in missing:
        shutil.rmtree(course / "gradebook" / "plugins" / name)
        (course / "gradebook" / "plugins" / name / "__pycache__").mkdir(parents=True)  # as git leaves it behind
    others = [
        command for name in FOLDERS if name not in missing for command in using(name, out) if command[0] != "class"
    ]
    own = [(name, command) for name in missing for command in using(name, out)]
    listings = [["export", "--help"], ["manual", "--help"], ["class", "--help"]]
    commands = [*usual(small_class), *listings, *others, *(command for _, command in own)]
    ran = run(commands, course)
    left = ran.done[-len(own) :]
    assert [code for code, _ in ran.done[: -len(left)]] == [0, 0, 0, 3, 0, *[0] * (len(listings) + len(others))]
    for (code, said), (name, command) in zip(left, own, strict=True):
        assert code == 2
        (line,) = said.strip().splitlines()
        assert f"gradebook.plugins.{name}, which is not here" in line, command


@pytest.mark.parametrize(
    ("library", "command", "message"),
    [
        ("ray", ["class", "no/such/folder", "--on=ray"], 'needs Ray: pip install "gpu-computing-labs[ray]"'),
        ("requests", ["export", "canvas", "tests"], 'needs requests: pip install "gpu-computing-labs[canvas]"'),
        ("nh3", ["manual", "grade", "tests"], "needs nh3, which is not installed: pip install"),
    ],
)
def test_a_library_that_is_missing_is_named_with_how_to_get_it(
    library: str, command: list[str], message: str, tmp_path: Path
) -> None:
    out = [f"--out={tmp_path}"] if command[0] == "class" else []
    ((code, said),) = run([[*command, *out]], hidden=library).done
    assert code == 2
    assert message in " ".join(said.split())
    assert len(said.strip().splitlines()) == 1
