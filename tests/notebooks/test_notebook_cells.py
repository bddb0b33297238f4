"""What a cell shows for an open task, for an error in student code, for an error of its own, and for a grade."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="needs the extra `notebooks`")
pytest.importorskip("ipykernel", reason="needs the extra `notebooks`")

import nbformat

from notebooks import build

OPEN = "from labkit import notebook\ncourse = notebook.open(lab=1)\nlab = course.modules"
STUB = (
    'def {0}(*a):\n    raise NotImplementedError("Task 1.2 is open: write {0} in labs/lab1_gpu_basics/benchmark.py")\n'
)
EDIT = "import os, pathlib\nfile = pathlib.Path(os.environ['GPULABS_LABS'], 'lab1_gpu_basics', 'benchmark.py')\n"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """One kernel for all: what each cell showed, by its name."""
    labs = tmp_path_factory.mktemp("course") / "labs"
    (labs / "lab1_gpu_basics").mkdir(parents=True)
    for folder in (labs, labs / "lab1_gpu_basics"):
        (folder / "__init__.py").touch()
    wrong = "def wrong(x):\n    return x + {}['missing']\n"
    (labs / "lab1_gpu_basics" / "benchmark.py").write_text(STUB.format("area") + wrong)
    cells = {
        "opened": OPEN,
        "open task": "result = lab.benchmark.area(2)",
        "hidden open task": "try:\n    lab.benchmark.area(2)\nexcept Exception:\n    raise RuntimeError('x')",
        "builds on it": "print(result)",
        "wrong": "lab.benchmark.wrong(1)",
        "own error": "1 / 0",
        "goes on": "print('still here')",
        "edited": EDIT + "file.write_text('def area(size):\\n    return size * size + 1000\\n')\n"
        "result = lab.benchmark.area(2)\nresult",
        "virtual time": "import time\nstart = time.perf_counter()\ntime.sleep(50)\n"
        "print('slept', flush=True)\nround(time.perf_counter() - start)",
        "times only": "import torch\nwith course.times_only():\n    y = torch.ones(3, device='cuda').sum().item()\ny",
        "graded": "course.grade()",
    }
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    environment = {"GPULABS_LABS": str(labs), "GPULABS_DEVICE": "vgpu:T4", "GPULABS_NOTEBOOK_GRADE": "0"}
    done = build.execute(notebook, environment, to_the_end=True)
    return {name: cell.outputs for name, cell in zip(cells, done.cells, strict=True)}


def shown(outputs: list[Any]) -> str:
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def kinds(outputs: list[Any]) -> list[str]:
    return [output.metadata["gpulabs"]["kind"] for output in outputs if output.get("metadata")]


@pytest.mark.night
def test_the_first_line_names_the_device(outputs: dict[str, list[Any]]) -> None:
    assert shown(outputs["opened"]) == "virtual GPU: simulated Tesla T4, times are modelled\n"


def test_an_open_task_is_a_note_that_names_the_file(outputs: dict[str, list[Any]]) -> None:
    assert kinds(outputs["open task"]) == ["open"]
    assert "Task 1.2 is open: labs/lab1_gpu_basics/benchmark.py, function `area`" in shown(outputs["open task"])


def test_an_open_task_is_found_behind_another_error(outputs: dict[str, list[Any]]) -> None:
    assert kinds(outputs["hidden open task"]) == ["open"]


def test_a_cell_that_builds_on_an_open_task_says_so(outputs: dict[str, list[Any]]) -> None:
    assert kinds(outputs["builds on it"]) == ["builds-on-open"]
    assert "needs `result`, which waits for task 1.2" in shown(outputs["builds on it"])


def test_an_error_in_student_code_is_short(outputs: dict[str, list[Any]]) -> None:
    assert kinds(outputs["wrong"]) == ["wrong"]
    text = shown(outputs["wrong"])
    assert "labs/lab1_gpu_basics/benchmark.py, line 4, in wrong" in text
    assert text.endswith("KeyError: 'missing'")
    assert len(text.splitlines()) == 4


def test_an_error_of_the_cell_looks_as_always_and_the_notebook_goes_on(outputs: dict[str, list[Any]]) -> None:
    assert [output.output_type for output in outputs["own error"]] == ["error"]
    assert shown(outputs["goes on"]) == "still here\n"


def test_an_edit_is_seen_by_the_next_cell(outputs: dict[str, list[Any]]) -> None:
    assert shown(outputs["edited"]) == "1004"


def test_time_in_a_cell_is_virtual_and_printing_costs_none(outputs: dict[str, list[Any]]) -> None:
    assert shown(outputs["virtual time"]) == "slept\n\n50"


def test_times_only_computes_no_numbers(outputs: dict[str, list[Any]]) -> None:
    assert shown(outputs["times only"]) == "0.0"


def test_grading_can_be_left_out(outputs: dict[str, list[Any]]) -> None:
    assert "Grading is left out here" in shown(outputs["graded"])


@pytest.mark.night
def test_a_lab_is_really_graded() -> None:
    """Stubs, on the virtual GPU: the quickest grade there is."""
    cells = [OPEN.replace("lab=1", "lab=5"), "course.grade()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    done = build.execute(notebook, {"GPULABS_LABS": "labs", "GPULABS_DEVICE": "vgpu:T4"})
    assert build.errors(done) == []
    text = shown(done.cells[1].outputs)
    assert "0 of 15 points" in text
    assert "Complete pipeline | 0 / 5 |" in text
    assert "make next" in text


@pytest.mark.night
def test_a_criterion_is_graded_by_a_magic_and_an_edit_counts(tmp_path: Path) -> None:
    labs = tmp_path / "labs"
    shutil.copytree(build.ROOT / "labs", labs)
    fixed = build.ROOT / "solutions/lab1_gpu_basics/environment.py"
    edit = f"import shutil\nshutil.copy({str(fixed)!r}, {str(labs / 'lab1_gpu_basics')!r})"
    cells = [OPEN, "%grade lab1.benchmark", edit, "%grade lab1.benchmark", "%grade lab1.nothing"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    done = build.execute(notebook, {"GPULABS_LABS": str(labs), "GPULABS_DEVICE": "vgpu:T4"}, to_the_end=True)
    first, then, wrong = (shown(done.cells[place].outputs) for place in (1, 3, 4))
    assert "0 of 5 points" in first
    assert "Benchmark implementation | 0.5 / 5 | ✓" in then
    assert "there is no criterion lab1.nothing" in wrong


def test_the_folder_of_the_labs_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.notebook.modules import find_folder

    monkeypatch.setenv("GPULABS_LABS", "nowhere")
    with pytest.raises(FileNotFoundError, match="set GPULABS_LABS"):
        find_folder(tmp_path)
