"""What a change of the grader's code means: which criteria have to be graded again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import grader
from gradebook import versions
from gradebox.common import layout
from gradebox.common.configuration import ROOT
from gradebox.course import course as courses
from tests.by_day import one_in

COURSE = grader.course()
ROOMS = ("gradebox", "gradebook", "grader", "labkit", "vgpu")
LAB1 = {f"lab1.{name}" for name in ("benchmark", "measurements", "memory", "analysis")}
EVERYTHING = {criterion.id for lab in COURSE.labs for criterion in lab.criteria if criterion.available}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return versions.digests(COURSE)


def copied(folder: Path) -> Path:
    for name in ROOMS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copied(tmp_path)


@pytest.fixture(scope="module")
def shared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that put back what they change: a copy has 1,500 files."""
    return copied(tmp_path_factory.mktemp("checkout"))


def changed_by(checkout: Path, before: dict[str, str]) -> set[str]:
    """The criteria that have to be graded again since `before`."""
    after = versions.digests(COURSE, checkout)
    return {name for name in after if after[name] != before[name]}


MEMORY = Path("grader", "lab1", "memory", "checks", "memory.py")


def add(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as changed:
        changed.write(text)


@pytest.mark.parametrize(
    ("file", "criteria"),
    one_in(
        4,
        [
            ("grader/lab1/memory/checks/memory.py", {"lab1.memory"}),
            # whose checks `lab1.measurements` builds on
            ("grader/lab3/shared/probes/launch.py", {"lab3.setup", "lab3.scaling"}),
            ("grader/lab1/benchmark/checks/benchmark.py", {"lab1.benchmark", "lab1.measurements"}),
            ("grader/lab1/analysis/checks/report.py", {"lab1.analysis"}),
            ("grader/lab1/shared/reference.py", {"lab1.benchmark", "lab1.measurements"}),
            ("grader/lab1/shared/probes/benchmark.py", {"lab1.analysis", "lab1.benchmark", "lab1.measurements"}),
            ("grader/lab1/measurements/probes.py", {"lab1.measurements"}),
            ("grader/lab5/monitoring/probes/fake_nvml.py", {"lab5.monitoring"}),
            ("grader/shared/probes/support.py", EVERYTHING),
            ("grader/shared/devices.py", EVERYTHING),
            ("gradebox/run/grading.py", EVERYTHING),
            ("gradebox/run/submission.py", EVERYTHING),
            ("gradebox/sandbox/devices.py", EVERYTHING),
            ("gradebox/course/criterion.py", EVERYTHING),
            ("gradebox/run/assertions.py", EVERYTHING),
            ("gradebox/run/source_scan.py", EVERYTHING),
            ("gradebox/sandbox/server.py", EVERYTHING),
            ("vgpu/device/cost.py", EVERYTHING),
            ("vgpu/runtime/operations/kernel_cost.py", EVERYTHING),
            ("vgpu/tools/calibrate/measure.py", set()),
            ("labkit/results/__init__.py", EVERYTHING),
            ("labkit/monitoring/page.html", EVERYTHING),
            ("gradebox/course/hints.py", set()),
            ("gradebox/pytest_plugin.py", set()),
            ("gradebox/pytest_judge.py", set()),
            ("gradebox/report/presenter.py", set()),
            (
                "grader/lab1/__init__.py",
                LAB1,
            ),
            ("grader/lab1/memory/criterion.toml", set()),
            ("gradebox/report/next_step/text.py", set()),
            ("grader/doctor/look.py", set()),
            ("grader/notebooks/export.py", set()),
            ("gradebook/export/similarity/similarity.py", set()),
            ("gradebook/export/similarity/similarity.html.jinja", set()),
            ("grader/container/lab.toml", set()),
            ("grader/kernels/add/criterion.toml", set()),
            ("grader/sharding/lab.toml", set()),
            ("grader/release/leaks.py", set()),
            ("gradebox/report/html.py", set()),
            ("gradebook/export/canvas.py", set()),
            ("gradebox/run/overrides.py", set()),
            ("grader/cli/grading.py", set()),
            ("gradebook/grade_class.py", set()),
        ],
    ),
)
def test_a_changed_file_concerns_the_criteria_that_use_it(
    shared_checkout: Path, before: dict[str, str], file: str, criteria: set[str]
) -> None:
    path = shared_checkout / file
    original = path.read_bytes()
    try:
        add(path, "\nCHANGED = 1\n")
        assert changed_by(shared_checkout, before) == criteria
    finally:
        path.write_bytes(original)


@pytest.mark.night
def test_comments_docstrings_and_layout_concern_nothing(checkout: Path, before: dict[str, str]) -> None:
    files = [file for name in ROOMS for file in (checkout / name).rglob("*.py")]
    assert len(files) > 150
    for file in files:
        if file.parts[-2:] == ("compiled", "language.py"):
            continue  # it reads the source of kernels, so a change of a comment could matter to it
        text = file.read_text()
        text = text.replace('"""', '"""Said better: ', 1) if text.startswith('"""') else text
        file.write_text(f"{text}\n\n# a typo, fixed\n")
    add(checkout / "vgpu" / "device" / "gpus.toml", "\n# from the data sheet\n")
    assert changed_by(checkout, before) == set()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("vgpu/device/gpus.toml", "memory_bytes = 15828320256", "memory_bytes = 15828320257"),
        ("labkit/gpus/RTX-3090.toml", " = 2", " = 3"),
        ("gradebox/run/assertions.py", "_TOLD = 0.005", "_TOLD = 0.05"),
        ("gradebox/run/assertions.py", "if low <= observed <= high", "if low < observed <= high"),
        ("gradebox/run/assertions.py", "must be a finite number, but", "should be a finite number, but"),
    ],
)
def test_the_smallest_real_change_concerns_everything(
    shared_checkout: Path, before: dict[str, str], file: str, old: str, new: str
) -> None:
    path = shared_checkout / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    try:
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        assert changed_by(shared_checkout, before) == EVERYTHING
    finally:
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "how",
    [
        "from grader.lab1.extra import numbers",
        *(
            pytest.param(how, marks=pytest.mark.night)
            for how in (
                "from grader.lab1.extra.numbers import ANSWER",
                "import grader.lab1.extra.numbers",
                "def late():\n    from grader.lab1.extra import numbers",
            )
        ),
        pytest.param("from ...extra import numbers", marks=pytest.mark.night),
        'import importlib\nimportlib.import_module("grader.lab1.extra.numbers")',
    ],
)
def test_what_a_check_imports_in_whatever_way_counts(checkout: Path, how: str) -> None:
    add(checkout / "grader" / "lab1" / "extra" / "__init__.py", "")
    add(
        checkout / "grader" / "lab1" / "extra" / "numbers.py",
        "from grader.lab1.extra import deeper\nANSWER = deeper.ANSWER\n",
    )
    add(checkout / "grader" / "lab1" / "extra" / "deeper.py", "ANSWER = 42\n")
    add(checkout / "grader" / "lab1" / "extra" / "table.json", "[42]\n")
    add(checkout / MEMORY, f"\n{how}\n")
    before = versions.digests(COURSE, checkout)
    for file in ("deeper.py", "table.json"):
        add(checkout / "grader" / "lab1" / "extra" / file, " \nANSWER = 43\n")
        assert changed_by(checkout, before) == {"lab1.memory"}
        before = versions.digests(COURSE, checkout)


def test_code_that_reads_docstrings_depends_on_them(checkout: Path) -> None:
    add(checkout / MEMORY, '\nprint(truth.__doc__)  # "one"\n')
    before = versions.digests(COURSE, checkout)
    add(checkout / MEMORY, "# two\n")
    assert changed_by(checkout, before) == {"lab1.memory"}


def test_a_text_that_is_no_docstring_counts(checkout: Path) -> None:
    add(checkout / MEMORY, '\nTEXT = """a\n\n# b\n"""\n')
    before = versions.digests(COURSE, checkout)
    file = checkout / MEMORY
    file.write_text(file.read_text().replace("a\n\n# b", "a\n# b"))
    assert changed_by(checkout, before) == {"lab1.memory"}


def test_points_concern_nothing_and_a_new_check_its_criterion(checkout: Path, before: dict[str, str]) -> None:
    criterion = Path("grader", "lab1", "benchmark", "criterion.toml")
    file = checkout / criterion
    text = file.read_text()
    first, second = ("[checks.seconds_per_product]\npoints = ", "[checks.all_sizes_compared]\npoints = ")
    assert f"{first}0.5\n" in text
    assert f"{second}0.5\n" in text
    file.write_text(text.replace(f"{first}0.5\n", f"{first}0.25\n").replace(f"{second}0.5\n", f"{second}0.75\n"))
    assert versions.digests(courses.load(checkout / "grader"), checkout) == before
    other = checkout.with_name("other")
    shutil.copytree(checkout, other)
    (other / criterion).write_text(text.replace("[checks.all_sizes_compared]", "[checks.new_check]"))
    after = versions.digests(courses.load(other / "grader"), other)
    assert {name for name in after if after[name] != before[name]} == {"lab1.benchmark"}


IMPORTED = """\
import importlib, json, os, sys
import gradebox.run.grading, torch
import grader
from gradebox.sandbox import server, worker

found = {}
for name in sys.argv[1:]:
    there, here = os.pipe()
    if os.fork() == 0:
        importlib.import_module(name)
        rooms = ("gradebox", "gradebook", "grader", "vgpu", "labkit")
        ours = [key for key in sys.modules if key.partition(".")[0] in rooms]
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
DECIDES_NOTHING = {"gradebox/report", "gradebox/course/hints.py",
                   "gradebox/run/overrides.py", "gradebox/common/reading.py",
                   "gradebox/course/course.py", "grader/__init__.py"}  # fmt: skip
"""How grades are shown and counted, and how files are read."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.night
def test_no_module_that_is_really_imported_is_forgotten() -> None:
    tree = versions.Tree(COURSE, ROOT)
    checks = {
        criterion: next(
            Path(sys.modules[check.cls.__module__].__file__ or "")
            for check in COURSE.checks(lab).values()
            if check.id.startswith(f"{criterion}.")
        )
        for lab in COURSE.labs
        for criterion in (row.id for row in lab.criteria)
    }
    files = (file for lab in layout.labs(ROOT / "grader") for file in layout.files(lab, layout.PROBES))
    probes = [path for path in files if path.name != "__init__.py"]
    command = [sys.executable, "-c", IMPORTED, *map(module_of, [*checks.values(), *probes])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name: {Path(file) for file in files} for name, files in json.loads(done.stdout).items()}
    assert checks.keys() == EVERYTHING
    for criterion, home in checks.items():
        known = tree.shared | tree.own_files(criterion)
        own_probes = [path for path in probes if path in known]
        assert own_probes
        needed = set().union(*(imported[module_of(path)] for path in (home, *own_probes)))
        decisive = {file for file in needed if not file.relative_to(ROOT).as_posix().startswith(tuple(DECIDES_NOTHING))}
        assert decisive - known == set()
