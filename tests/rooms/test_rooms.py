"""The order of rooms: who may import whom (`[tool.importlinter]` in pyproject.toml), and that the drawings show it."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grimp", reason="import-linter, of the extra dev, is not installed")
from docs.rooms import draw

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("lint-imports")
PACKAGES = ("vgpu", "labkit", "gradebox", "gradebook", "grader", "cluster")
ENGINE = {"gradebox", "gradebook", "grader"}
MAY_IMPORT = {
    "grader": {"grader", "tests", "benchmarks"},
    "gradebook": {"gradebook", "grader", "tests", "benchmarks"},
    "gradebox": {"gradebox", "gradebook", "grader", "tests", "benchmarks", "examples/courses"},
}
"""Who may import each of the engine's packages: folders of this checkout."""


def _linted(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "--no-cache", "--config", str(folder / "pyproject.toml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_no_arrow_runs_back_up() -> None:
    done = _linted(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


_BREACHES = (
    ("vgpu/device/errors.py", "import labkit", "vgpu.device.errors -> labkit", "The house"),
    ("gradebook/results.py", "import labkit.files", "gradebook.results -> labkit.files", "Only the course knows both"),
    (
        "labkit/files.py",
        "import gradebox.common.texts",
        "labkit.files -> gradebox.common.texts",
        "What labs are given knows no engine",
    ),
    (
        "gradebox/common/texts.py",
        "def late() -> None:\n    import torch",
        "gradebox.common.texts -> torch",
        "do without PyTorch",
    ),
    (
        "gradebox/course/rubric.py",
        "from gradebox.course.course import Course",
        "gradebox.course.rubric -> gradebox.course.course",
        "A course, from the ground up",
    ),
    (
        "gradebox/run/assertions.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gradebox.run.submission import Submission",
        "gradebox.run.assertions -> gradebox.run.submission",
        "One grading, from the ground up",
    ),
    (
        "vgpu/runtime/machine.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vgpu.runtime.views import history",
        "vgpu.runtime.machine -> vgpu.runtime.views",
        "The virtual GPU at run time",
    ),
    (
        "gradebox/run/grade.py",
        "import gradebox.report.terminal",
        "gradebox.run.grade -> gradebox.report.terminal",
        "The engine, from the ground up",
    ),
    (
        "vgpu/runtime/gpu.py",
        "import vgpu.tools.run",
        "vgpu.runtime.gpu -> vgpu.tools.run",
        "The virtual GPU, from the ground up",
    ),
    (
        "vgpu/torch_integration/autocast.py",
        "import vgpu.torch_integration.modes",
        "vgpu.torch_integration.autocast -> vgpu.torch_integration.modes",
        "PyTorch's way to the virtual GPU",
    ),
    ("vgpu/device/queue.py", "import numpy", "vgpu.device.queue -> numpy", "The virtual device and its recordings"),
    (
        "gradebox/sandbox/root.py",
        "import gradebox.sandbox.server",
        "root -> gradebox.sandbox.server",
        "The sandbox, from",
    ),
    (
        "gradebook/store.py",
        "import gradebook.intake.collect",
        "gradebook.store -> gradebook.intake.collect",
        "Classes, from the ground up",
    ),
    (
        "gradebook/export/canvas.py",
        "import gradebook.plugins.canvas_push.client",
        "gradebook.export.canvas -> gradebook.plugins.canvas_push.client",
        "Classes, from the ground up",
    ),
    (
        "gradebook/plugins/ray/actors.py",
        "import gradebook.plugins.slurm.scheduler",
        "gradebook.plugins.ray.actors -> gradebook.plugins.slurm.scheduler",
        "A plug-in knows no other one",
    ),
    (
        "grader/lab5/pipeline/probes/resume.py",
        "import grader.lab3.setup.probes.training",
        "grader.lab3.setup.probes.training",
        "The course: labs",
    ),
    (
        "grader/lab1/memory/checks/memory.py",
        "import torch",
        "grader.lab1.memory.checks.memory -> torch",
        "Checks judge what a probe saw",
    ),
    (
        "grader/lab2/shared/probes.py",
        "import gradebox.run.assertions",
        "shared.probes -> gradebox.run.assertions",
        "A probe knows",
    ),
    (
        "grader/kernels/shared/reference.py",
        "from gradebox.run.assertions import require",
        "grader.kernels.shared.reference -> gradebox.run.assertions",
        "A reference computes",
    ),
    (
        "grader/kernels/add/probes.py",
        "from grader.kernels.add.reference import total",
        "grader.kernels.add.probes -> grader.kernels.add.reference",
        "A probe knows",
    ),
    (
        "grader/kernels/add/checks.py",
        "from grader.kernels.add.probes import vector_add",
        "grader.kernels.add.checks -> grader.kernels.add.probes",
        "Checks judge what a probe saw",
    ),
    ("labkit/decode.py", "import labkit.results", "allowed in labkit", "No circles"),
)
"""A file, what is added to it, the arrow that is named, and the rule that forbids it."""


def test_every_rule_notices_who_breaks_it(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=lambda _, names: _but_python(names))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line, _, _ in _BREACHES:
        with (tmp_path / file).open("a") as written:
            written.write(f"\n{line}\n")
    done = _linted(tmp_path)
    assert done.returncode == 1
    rows = [row for row in _rows(done.stdout) if row.endswith("BROKEN")]
    for _, _, arrow, rule in _BREACHES:
        assert arrow in done.stdout
        assert any(rule in row for row in rows), rule
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert len(rows) == len(contracts)


def _but_python(names: list[str]) -> list[str]:
    return [name for name in names if ("." in name and not name.endswith(".py")) or name == "__pycache__"]


def _rows(text: str) -> Iterator[str]:
    """The verdicts, each in one line although the terminal is narrow."""
    yield from " ".join(text.split()).replace(" KEPT ", " KEPT\n").replace(" BROKEN ", " BROKEN\n").splitlines()


def _imported(source: str) -> set[str]:
    """The top packages that a file names in imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def test_nobody_else_imports_the_engine() -> None:
    """Also not what belongs to no package: labs, solutions, notebooks, examples, documents."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in names.splitlines() if not name.startswith("tests/") and (ROOT / name).is_file()]
    assert len(files) > 300
    wrong = [
        f"{name} imports {package}"
        for name in files
        for package in ENGINE & _imported((ROOT / name).read_text(encoding="utf-8"))
        if not any(name.startswith(f"{folder}/") for folder in MAY_IMPORT[package])
    ]
    assert wrong == []


def test_the_engine_names_no_package_that_a_course_may_lack() -> None:
    """Nor in a text, by which `sys.modules` and `import_module` would find it."""
    named = {
        (path.relative_to(ROOT).as_posix(), node.value)
        for package in ("gradebox", "gradebook")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
        if node.value.partition(".")[0] in ("torch", "vgpu", "labkit", "grader")
    }
    assert named == {("gradebook/versions.py", "vgpu.tools.calibrate")}  # a package whose change regrades nothing


@pytest.mark.parametrize("name", ["house.svg", "gradebox.svg", "gradebook.svg"])
def test_the_drawings_are_shown(name: str) -> None:
    pages = [ROOT / "docs" / "contributor.md", *(ROOT / "docs" / "contributor").glob("*.md")]
    assert any(f"rooms/{name}" in page.read_text(encoding="utf-8") for page in pages)


def test_a_room_is_drawn_above_what_it_imports_and_no_arrow_twice() -> None:
    rooms = {"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set(), "aside": {"ground"}}
    text = draw.draw(rooms)
    height = {name: float(text.split(f">{name}<")[0].rpartition('y="')[2].partition('"')[0]) for name in rooms}
    assert height["top"] < height["middle"] == height["aside"] < height["ground"]
    assert text.count("marker-end") == 3  # top to ground follows from the others


def test_a_circle_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"a circle among \['a', 'b'\]"):
        draw.draw({"a": {"b"}, "b": {"a"}, "c": set()})
