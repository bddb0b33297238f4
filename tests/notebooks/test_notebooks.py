"""Every notebook that there is: in step with its source, and run from top to bottom with stubs and with solutions."""

import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="needs the extra `notebooks`")
pytest.importorskip("ipykernel", reason="needs the extra `notebooks`")

import nbformat

from grader.release.leaks import Secrets
from notebooks import build
from tests.by_day import one_in

ROOT = Path(__file__).parents[2]
LARGEST_PAGE_BYTES = 600_000


@pytest.mark.parametrize("name", build.names())
def test_the_notebook_is_what_its_source_says(name: str) -> None:
    built = (build.HERE / f"{name}.ipynb").read_text(encoding="utf-8")
    assert built == build.to_json(build.from_source(name)), f"run make notebooks: {name}.ipynb is out of date"


def require_readable(page: str) -> None:
    assert len(page.encode()) < LARGEST_PAGE_BYTES
    assert "<script" not in page, "a page is for reading: it runs nothing"
    assert str(ROOT) not in page, "a page says nothing of the machine that built it"


@pytest.mark.parametrize("name", one_in(4, build.names()))
def test_a_notebook_can_be_made_a_page(name: str) -> None:
    page = build.render(build.from_source(name), name)
    require_readable(page)
    assert "<h1" in page


@pytest.mark.night
def test_with_the_solutions_every_cell_shows_something_right_and_the_page_is_small() -> None:
    for name, done in run("solutions", build.names()).items():
        assert build.errors(done) == [], name
        assert not build.UNWANTED.intersection(build.notes(done)), name
        require_readable(build.render(done, name))


@pytest.mark.night
@pytest.mark.parametrize("names", [["lab1"], ["lab2", "lab3", "lab4", "lab5", "kernels", "sharding"]])
def test_with_stubs_open_tasks_are_told_and_the_notebook_goes_on(names: list[str]) -> None:
    for name, done in run("labs", names).items():
        assert build.errors(done) == [], name
        kinds = build.notes(done)
        assert "open" in kinds, name
        assert "wrong" not in kinds, name


def run(labs: str, names: list[str]) -> dict[str, Any]:
    """The notebooks one after the other in one kernel, whose start is what costs; each begins with no names."""
    forget = nbformat.v4.new_code_cell("%reset -f")
    notebooks = {name: [*build.from_source(name).cells, forget] for name in names}
    cells = [cell for each in notebooks.values() for cell in each]
    environment = {"GPULABS_LABS": labs, "GPULABS_DEVICE": "vgpu:T4", "GPULABS_NOTEBOOK_GRADE": "0"}
    done = iter(build.execute(nbformat.v4.new_notebook(cells=cells), environment).cells)
    return {
        name: nbformat.v4.new_notebook(cells=list(itertools.islice(done, len(each))))
        for name, each in notebooks.items()
    }


def test_no_notebook_holds_a_line_of_a_solution() -> None:
    files = [path for path in build.HERE.rglob("*") if path.suffix in (".py", ".ipynb", ".html", ".md")]
    contents = [(path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in files]
    assert [str(leak) for leak in Secrets(ROOT / "solutions").leaks(contents)] == []
