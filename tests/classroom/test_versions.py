"""What a change of the grader's code means: which criteria have to be graded again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradebook.run import versions
from gradebox import rubric
from gradebox.configuration import ROOT

EVERYTHING = {criterion.id for lab in grader.course().rubric.labs for criterion in lab.criteria if criterion.available}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return versions.digests(grader.course().rubric)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("grader", "labkit", "vgpu"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def changed_by(checkout: Path, before: dict[str, str]) -> set[str]:
    """The criteria that have to be graded again since `before`."""
    after = versions.digests(grader.course().rubric, checkout)
    return {name for name in after if after[name] != before[name]}


def add(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as changed:
        changed.write(text)


@pytest.mark.parametrize(
    ("file", "criteria"),
    [
        ("grader/lab1/checks/memory.py", {"lab1.memory"}),
        # whose checks `lab1.measurements` builds on
        ("grader/lab1/checks/benchmark.py", {"lab1.benchmark", "lab1.measurements"}),
        ("grader/lab1/checks/report.py", {"lab1.analysis"}),
        ("grader/lab1/truth/timing.py", {"lab1.benchmark", "lab1.measurements"}),
        ("grader/lab3/probes/launch.py", {"lab3.setup", "lab3.scaling"}),
        ("grader/lab5/probes/fake_nvml.py", {"lab5.monitoring"}),
        ("grader/shared/probes/support.py", EVERYTHING),
        ("gradebox/pytest_plugin.py", EVERYTHING),
        ("gradebox/assertions.py", EVERYTHING),
        ("gradebox/source.py", EVERYTHING),
        ("gradebox/sandbox/server.py", EVERYTHING),
        ("vgpu/cost.py", EVERYTHING),
        ("vgpu/operations/charges.py", EVERYTHING),
        ("vgpu/calibrate/measure.py", set()),
        ("labkit/results/__init__.py", EVERYTHING),
        ("labkit/monitoring/page.html", EVERYTHING),
        ("grader/hints/__init__.py", set()),
        ("grader/lab1/hints.toml", set()),
        ("gradebox/guide/text.py", set()),
        ("grader/doctor/look.py", set()),
        ("grader/notebooks/export.py", set()),
        ("gradebook/similarity/similarity.py", set()),
        ("grader/integrity/similarity.html.jinja", set()),
        ("grader/container/rubric.toml", set()),
        ("grader/release/leaks.py", set()),
        ("gradebox/report/html.py", set()),
        ("gradebook/exports/canvas.py", set()),
        ("gradebox/overrides.py", set()),
        ("grader/cli/grading.py", set()),
        ("gradebook/run/grade_class.py", set()),
    ],
)
def test_a_changed_file_concerns_the_criteria_that_use_it(
    checkout: Path, before: dict[str, str], file: str, criteria: set[str]
) -> None:
    assert (checkout / file).is_file()
    add(checkout / file, "\nCHANGED = 1\n")
    assert changed_by(checkout, before) == criteria


def test_comments_docstrings_and_layout_concern_nothing(checkout: Path, before: dict[str, str]) -> None:
    files = [file for name in ("grader", "labkit", "vgpu") for file in (checkout / name).rglob("*.py")]
    assert len(files) > 150
    for file in files:
        text = file.read_text()
        text = text.replace('"""', '"""Said better: ', 1) if text.startswith('"""') else text
        file.write_text(f"{text}\n\n# a typo, mended\n")
    add(checkout / "vgpu" / "gpus.toml", "\n# from the data sheet\n")
    assert changed_by(checkout, before) == set()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("vgpu/gpus.toml", "memory_bytes = 15828320256", "memory_bytes = 15828320257"),
        ("labkit/gpus/RTX-3090.toml", " = 2", " = 3"),
        ("gradebox/assertions.py", "_TOLD = 0.005", "_TOLD = 0.05"),
        ("gradebox/assertions.py", "if low <= observed <= high", "if low < observed <= high"),
        ("gradebox/assertions.py", "must be a finite number, but", "should be a finite number, but"),
    ],
)
def test_the_smallest_real_change_concerns_everything(
    checkout: Path, before: dict[str, str], file: str, old: str, new: str
) -> None:
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new, 1))
    assert changed_by(checkout, before) == EVERYTHING


@pytest.mark.parametrize(
    "how",
    [
        "from grader.truth import numbers",
        "from grader.truth.numbers import ANSWER",
        "import grader.truth.numbers",
        "from ..truth import numbers",
        "def late():\n    from grader.truth import numbers",
        'import importlib\nimportlib.import_module("grader.truth.numbers")',
    ],
)
def test_what_a_check_imports_in_whatever_way_counts(checkout: Path, how: str) -> None:
    add(checkout / "grader" / "truth" / "__init__.py", "")
    add(checkout / "grader" / "truth" / "numbers.py", "from grader.truth import deeper\nANSWER = deeper.ANSWER\n")
    add(checkout / "grader" / "truth" / "deeper.py", "ANSWER = 42\n")
    add(checkout / "grader" / "truth" / "table.json", "[42]\n")
    add(checkout / "grader" / "checks" / "test_lab1_memory.py", f"\n{how}\n")
    before = versions.digests(grader.course().rubric, checkout)
    for file in ("deeper.py", "table.json"):
        add(checkout / "grader" / "truth" / file, " \nANSWER = 43\n")
        assert changed_by(checkout, before) == {"lab1.memory"}
        before = versions.digests(grader.course().rubric, checkout)


def test_code_that_reads_docstrings_depends_on_them(checkout: Path) -> None:
    add(checkout / "grader" / "checks" / "lab1_memory.py", '\nprint(truth.__doc__)  # "one"\n')
    before = versions.digests(grader.course().rubric, checkout)
    add(checkout / "grader" / "checks" / "lab1_memory.py", "# two\n")
    assert changed_by(checkout, before) == {"lab1.memory"}


def test_a_text_that_is_no_docstring_counts(checkout: Path) -> None:
    add(checkout / "grader" / "checks" / "lab1_memory.py", '\nTEXT = """a\n\n# b\n"""\n')
    before = versions.digests(grader.course().rubric, checkout)
    file = checkout / "grader" / "checks" / "lab1_memory.py"
    file.write_text(file.read_text().replace("a\n\n# b", "a\n# b"))
    assert changed_by(checkout, before) == {"lab1.memory"}


def test_points_concern_nothing_and_a_new_check_its_criterion(before: dict[str, str]) -> None:
    text = rubric.RUBRIC_FILE.read_text()
    old = "seconds_per_product = 0.5\nall_sizes_compared = 0.5\n"
    assert old in text
    other_points = rubric.parse(text.replace(old, "seconds_per_product = 0.25\nall_sizes_compared = 0.75\n"), Path("x"))
    other_checks = rubric.parse(text.replace(old, "seconds_per_product = 0.5\nnew = 0.5\n"), Path("x"))
    assert versions.digests(other_points) == before
    after = versions.digests(other_checks)
    assert {name for name in after if after[name] != before[name]} == {"lab1.benchmark"}


IMPORTED = """\
import importlib, json, os, sys
import gradebox.pytest_plugin, torch
import grader
from gradebox.sandbox import server, worker
found = {}
for name in sys.argv[1:]:
    there, here = os.pipe()
    if os.fork() == 0:
        importlib.import_module(name)
        ours = [key for key in sys.modules if key.partition(".")[0] in ("grader", "vgpu", "labkit")]
        text = json.dumps([sys.modules[key].__file__ for key in ours if sys.modules[key].__file__])
        with os.fdopen(here, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as file:
        found[name] = json.load(file)
    os.wait()
print(json.dumps(found))
"""
NEVER_DECIDES = ("report", "hints", "extensions", "overrides.py")


def test_no_module_that_is_really_imported_is_forgotten() -> None:
    tree = versions.Tree(ROOT)
    modules = {criterion: f"grader.checks.test_{criterion.replace('.', '_')}" for criterion in EVERYTHING}
    probes = {path.stem: f"grader.probes.{path.stem}" for path in (ROOT / "grader" / "probes").glob("*.py")}
    command = [sys.executable, "-c", IMPORTED, *modules.values(), *probes.values()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name: {Path(file) for file in files} for name, files in json.loads(done.stdout).items()}
    for criterion, module in modules.items():
        known = tree.shared | tree.own_files(criterion)
        asked = [name for stem, name in probes.items() if ROOT / "grader" / "probes" / f"{stem}.py" in known]
        assert asked
        needed = set().union(*(imported[name] for name in (module, *asked)))
        decisive = {file for file in needed if file.relative_to(ROOT).parts[1] not in NEVER_DECIDES}
        assert decisive - known == set()
