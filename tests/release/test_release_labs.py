"""The folder `labs/` as a whole: what is generated, how drift is found, and that nobody's work is overwritten."""

import importlib
import inspect
import json
import operator
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from gradebox.authoring import release
from grader import cli
from labs.lab5_production.config import TrainerConfig

ROOT = Path(__file__).parents[2]
SOLUTION = '''"""Lab 7."""


def answer() -> int:
    """The answer."""
    # TODO(task 7.1): compute it.
    # --- solution: task 7.1 ---
    return 6 * 7
    # --- end ---
'''


@pytest.fixture
def solutions(tmp_path: Path) -> Path:
    """A small course with one lab: a task, a report, a broken script and its fixed version, results."""
    lab = tmp_path / "solutions" / "lab7_answers"
    files = {
        "../__init__.py": '"""Labs."""\n',
        "__init__.py": "",
        "answer.py": SOLUTION,
        "README.md": "# Lab 7\n\n## Task 7.1: compute\n",
        "REPORT.md": "The answer is 42.\n",
        "REPORT.template.md": "What is the answer?\n",
        "script.py": "print('mended')\n",
        "script.template.py": "print('broken')\n",
        "results/answer.json": "42\n",
        "__pycache__/answer.pyc": "bytes",
    }
    for name, text in files.items():
        path = lab / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "solutions"


@pytest.fixture
def labs(tmp_path: Path, solutions: Path) -> Path:
    release.make_labs(solutions, tmp_path / "labs")
    return tmp_path / "labs"


def edit(path: Path) -> bytes:
    path.write_text(path.read_text() + "\n# my work\n")
    return path.read_bytes()


def test_students_get_stubs_and_templates_and_no_results(labs: Path) -> None:
    names = {path.relative_to(labs).as_posix() for path in labs.rglob("*") if path.is_file()}
    lab = "lab7_answers"
    assert names == {
        release.MANIFEST, "__init__.py", f"{lab}/__init__.py", f"{lab}/answer.py", f"{lab}/README.md",
        f"{lab}/REPORT.md", f"{lab}/script.py", f"{lab}/results/.gitkeep",
    }  # fmt: skip
    assert "6 * 7" not in (labs / lab / "answer.py").read_text()
    assert (labs / lab / "REPORT.md").read_text() == "What is the answer?\n"


def test_a_template_takes_the_place_of_a_script(labs: Path) -> None:
    assert (labs / "lab7_answers" / "script.py").read_text() == "print('broken')\n"


def test_a_template_takes_the_place_of_a_file_without_an_ending(tmp_path: Path, solutions: Path) -> None:
    lab = solutions / "lab7_answers"
    (lab / "Dockerfile").write_text("FROM scratch\n")
    (lab / "Dockerfile.template").write_text("# TODO: choose a base image\n")
    release.make_labs(solutions, tmp_path / "labs")
    made = tmp_path / "labs" / "lab7_answers"
    assert (made / "Dockerfile").read_text() == "# TODO: choose a base image\n"
    assert not (made / "Dockerfile.template").exists()


def test_a_fresh_release_has_no_drift(solutions: Path, labs: Path) -> None:
    assert release.check(solutions, labs) == []


def test_a_second_release_changes_nothing(solutions: Path, labs: Path) -> None:
    released = release.make_labs(solutions, labs)
    assert released.written == released.removed == ()


def test_drift_in_a_solution_is_found_and_shown(solutions: Path, labs: Path) -> None:
    answer = solutions / "lab7_answers" / "answer.py"
    answer.write_text(SOLUTION.replace('"""The answer."""', '"""The answer to everything."""'))
    (message, manifest) = sorted(release.check(solutions, labs), key=lambda text: release.MANIFEST in text)
    assert "answer.py differs" in message
    assert '+    """The answer to everything."""' in message
    assert release.MANIFEST in manifest


def test_a_missing_and_an_extra_file_are_drift(solutions: Path, labs: Path) -> None:
    (labs / "lab7_answers" / "README.md").unlink()
    (labs / "lab7_answers" / "notes.txt").write_text("?")
    missing, extra = release.check(solutions, labs)
    assert missing.endswith("README.md is missing")
    assert "notes.txt is not generated" in extra


def test_byproducts_of_python_are_no_drift(solutions: Path, labs: Path) -> None:
    (labs / "__pycache__").mkdir()
    (labs / "__pycache__" / "x.pyc").write_bytes(b"")
    assert release.check(solutions, labs) == []


def test_a_long_diff_is_cut_short(solutions: Path, labs: Path) -> None:
    (labs / "lab7_answers" / "README.md").write_text("".join(f"line {n}\n" for n in range(500)))
    (message,) = release.check(solutions, labs)
    assert len(message.splitlines()) < 30
    assert "more lines" in message


def test_an_edited_file_is_not_overwritten_and_nothing_else_is_written(solutions: Path, labs: Path) -> None:
    work = edit(labs / "lab7_answers" / "answer.py")
    (solutions / "lab7_answers" / "README.md").write_text("## Task 7.1: changed\n")
    with pytest.raises(release.ReleaseError, match=r"answer\.py\n.*--force"):
        release.make_labs(solutions, labs)
    assert (labs / "lab7_answers" / "answer.py").read_bytes() == work
    assert "changed" not in (labs / "lab7_answers" / "README.md").read_text()


def test_force_overwrites_an_edited_file(solutions: Path, labs: Path) -> None:
    edit(labs / "lab7_answers" / "answer.py")
    released = release.make_labs(solutions, labs, force=True)
    assert released.written == ("lab7_answers/answer.py",)
    assert release.check(solutions, labs) == []


def test_work_in_a_folder_without_manifest_is_protected(solutions: Path, labs: Path) -> None:
    edit(labs / "lab7_answers" / "answer.py")
    (labs / release.MANIFEST).unlink()
    with pytest.raises(release.ReleaseError, match=r"answer\.py"):
        release.make_labs(solutions, labs)


def test_an_outdated_but_untouched_file_is_updated(solutions: Path, labs: Path) -> None:
    (solutions / "lab7_answers" / "README.md").write_text("## Task 7.1: changed\n")
    assert release.make_labs(solutions, labs).written == ("lab7_answers/README.md",)
    assert "changed" in (labs / "lab7_answers" / "README.md").read_text()


def test_a_file_whose_solution_is_gone_is_removed(solutions: Path, labs: Path) -> None:
    (solutions / "lab7_answers" / "script.py").unlink()
    (solutions / "lab7_answers" / "script.template.py").unlink()
    assert release.make_labs(solutions, labs).removed == ("lab7_answers/script.py",)
    assert not (labs / "lab7_answers" / "script.py").exists()


def test_a_students_results_are_left_alone(solutions: Path, labs: Path) -> None:
    mine = labs / "lab7_answers" / "results" / "answer.json"
    mine.write_text("41\n")
    release.make_labs(solutions, labs, force=True)
    assert mine.read_text() == "41\n"


def test_a_filled_report_without_template_is_refused(solutions: Path) -> None:
    (solutions / "lab7_answers" / "REPORT.template.md").unlink()
    with pytest.raises(release.ReleaseError, match=r"lab7_answers lacks REPORT\.template\.md"):
        release.render_all(solutions)


def test_a_lab_without_readme_is_refused(solutions: Path) -> None:
    (solutions / "lab7_answers" / "README.md").unlink()
    with pytest.raises(release.ReleaseError, match=r"README\.md is missing"):
        release.render_all(solutions)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="no solutions"):
        release.make_labs(tmp_path / "nowhere", tmp_path / "labs")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["release", *arguments])
    return result.exit_code, result.output


def test_the_command_writes_and_checks(solutions: Path, tmp_path: Path) -> None:
    folders = ("--solutions", str(solutions), "--labs", str(tmp_path / "labs"))
    code, output = run("--check", *folders)
    assert (code, "is missing" in output) == (1, True)
    code, output = run(*folders)
    assert (code, "wrote" in output) == (0, True)
    code, output = run("--check", *folders)
    assert (code, "matches" in output) == (0, True)


def test_the_command_reports_a_wrong_mark_in_one_line(solutions: Path, tmp_path: Path) -> None:
    answer = solutions / "lab7_answers" / "answer.py"
    answer.write_text(SOLUTION.replace("# --- end ---", ""))
    code, output = run("--solutions", str(solutions), "--labs", str(tmp_path / "labs"))
    assert code == 1
    assert output == f"error: {answer}:7: the region that begins here is never closed\n"


def test_no_line_of_a_solution_reaches_the_students() -> None:
    inside, outside = set(), set()
    for path in sorted((ROOT / "solutions").rglob("*.py")):
        hidden = False
        for line in map(str.strip, path.read_text().splitlines()):
            if line.startswith("# --- "):
                hidden = line != "# --- end ---"
            else:
                (inside if hidden else outside).add(line)
    secrets = {line for line in inside - outside if len(line) > 20}
    assert len(secrets) > 100
    leaked = {
        (path.name, line)
        for path in (ROOT / "labs").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        for line in map(str.strip, path.read_text().splitlines())
        if line in secrets
    }
    assert leaked == set()


OPEN = re.compile(r'NotImplementedError\(\s*"Task ([\d.]+) is open: write (\S+) ')


def open_functions() -> list[tuple[str, str, str]]:
    """(module, function, task) of every open task, read from the stubs."""
    return [
        (f"labs.{path.parent.name}.{path.stem}", function, task)
        for path in sorted((ROOT / "labs").glob("lab*/*.py"))
        for task, function in OPEN.findall(path.read_text())
    ]


@pytest.mark.parametrize(("module", "function", "task"), [f for f in open_functions() if f[1] != "main"])
def test_every_open_function_raises_with_the_name_of_its_task(
    module: str, function: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    stub = operator.attrgetter(function)(importlib.import_module(module))
    # What is given runs before the place of the task: constructors begin with it.
    needed = {"sizes": (), "iterations": 1, "count": 1, "interval": 1.0, "rules": (), "model": nn.Linear(1, 1)}
    needed["config"] = TrainerConfig()
    if function.endswith(".__init__"):
        made_by = operator.attrgetter(function.removesuffix(".__init__"))(importlib.import_module(module))
        needed["self"] = made_by.__new__(made_by)
    code = stub.__code__
    names = code.co_varnames[inspect.ismethod(stub) : code.co_argcount + code.co_kwonlyargcount]
    arguments = {name: needed.get(name) for name in names}
    with pytest.raises(NotImplementedError, match=rf"^Task {task} is open: write {function} in labs/"):
        stub(**arguments)


def test_lab_1_has_the_tasks_it_should() -> None:
    assert {task for module, _, task in open_functions() if "lab1" in module} == {"1.1", "1.2", "1.3", "1.4"}


def test_a_program_of_the_stubs_ends_with_one_line_that_names_the_task(tmp_path: Path) -> None:
    for package in ("labs", "labkit"):  # and no solutions
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "labs.lab1_gpu_basics.benchmark", "--device", "cpu", "--sizes", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Task 1.2 is open: write benchmark_matmul in labs/lab1_gpu_basics/benchmark.py")


def test_the_manifest_lists_every_file_with_its_hash(labs: Path) -> None:
    manifest = json.loads((labs / release.MANIFEST).read_text())
    assert manifest["schema"] == 1
    assert all(len(digest) == 64 for digest in manifest["files"].values())
    assert "lab7_answers/answer.py" in manifest["files"]
