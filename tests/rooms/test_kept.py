"""What passes without being run, because it has passed with the same code (`tests/kept.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import kept

grimp = pytest.importorskip("grimp", reason="import-linter, of the extra dev, is not installed")

ROOT = kept.ROOT
OURS = ("benchmarks", "cluster", "docs", "gradebook", "gradebox", "grader", "labkit", "labs", "notebooks", "vgpu")
OWN = ("solutions", "tests")


@pytest.mark.parametrize("folder", sorted(kept.NEEDS))
def test_what_a_folder_of_tests_imports_is_among_what_it_needs(folder: str) -> None:
    found = _imports()
    start = {name for name in found if name.startswith(f"tests.{folder}.")}
    assert start
    needed = {*kept.NEEDS[folder], f"tests/{folder}", *kept._SHARED}
    for module in _reached(start, found):
        path = module.replace(".", "/")
        files = (f"{path}.py", f"{path}/__init__.py")
        file = next(one for one in files if (ROOT / one).is_file())
        assert any(file == one or file.startswith(f"{one}/") for one in needed), f"tests/{folder} imports {module}"


def _imports() -> dict[str, set[str]]:
    graph = grimp.build_graph(*OURS[1:2], *OURS[3:7], "vgpu", *OWN, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def _reached(start: set[str], found: dict[str, set[str]]) -> set[str]:
    """Modules that those of `start` import, directly or through others; what all tests share is left out."""
    seen, left = set(start), list(start)
    while left:
        for name in found.get(left.pop(), ()):
            if name not in seen and name != "tests.conftest":
                seen.add(name)
                left.append(name)
    return seen


TESTS = """
import os
from pathlib import Path

RAN = Path(os.environ["RAN"])


def test_passes(): RAN.write_text(RAN.read_text() + "passes ")


def test_fails():
    RAN.write_text(RAN.read_text() + "fails ")
    assert False
"""
CONFTEST = """
import pytest
from tests import kept


def pytest_addoption(parser):
    for name, default in (("--seed", "1"), ("--replies", ""), ("--whole", "")):
        parser.addoption(name, default=default)
    parser.addoption("--again", action="store_true")


def pytest_configure(config):
    kept.install(config)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_has_passed_is_reported_and_not_run_again(
    workers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, course = tmp_path / "ran", tmp_path / "checkout"
    (course / "tests" / "some").mkdir(parents=True)
    (course / "tests" / "__init__.py").touch()
    (course / "tests" / "kept.py").write_text(Path(kept.__file__).read_text())
    (course / "tests" / "conftest.py").write_text(CONFTEST)
    (course / "tests" / "some" / "test_some.py").write_text(TESTS)
    (course / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    subprocess.run(["git", "init", "--quiet"], cwd=course, check=True)
    monkeypatch.setenv("RAN", str(ran))

    def run(*named: str) -> tuple[str, str]:
        ran.write_text("")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            f"--replies={tmp_path}/replies",
            *workers,
            *named,
        ]
        done = subprocess.run(command, cwd=course, capture_output=True, text=True, timeout=300, check=False)
        assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
        return ran.read_text(), done.stdout

    assert run()[0] == "passes fails "
    again, said = run()
    assert again == "fails "
    assert "1 of these had passed before with the same code" in said
    assert run("tests/some")[0] == "passes fails "  # whoever names them wants them run
    (course / "pages.md").write_text("Anything that is new may be what a test depends on.")
    assert run()[0] == "passes fails "
