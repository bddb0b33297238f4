"""Predictions in notebooks: asked for before anything is measured, and then compared with what is found."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="needs the extra `notebooks`")
pytest.importorskip("ipykernel", reason="needs the extra `notebooks`")

import nbformat

from labkit.notebook import notes
from labkit.notebook.predictions import Answer, check_prediction
from notebooks import build

ANSWERS: dict[str, dict[str, tuple[Answer, ...]]] = {
    "launches": {"my_launches": (1, 13, 2), "my_graph": (6, 6, 6, 1)},
    "compiling": {"my_fusion": (3, 3, "less")},
    "channels_last": {"my_prediction": (1, 1.2, 1)},
    "rings": {"my_prediction": (4, 1, 1, 2)},
}
"""Worked out from steps, bytes, launches and data sheets, in the order of the questions."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cell shows, as text."""
    texts: list[str] = []
    monkeypatch.setattr(notes, "publish", lambda html, plain, kind, **details: texts.append(plain))
    return texts


def test_nothing_is_measured_as_long_as_a_prediction_is_missing(shown: list[str]) -> None:
    def measure() -> Mapping[str, Answer]:
        raise AssertionError("measured too early")

    check_prediction({"faster": 2.0, "kernels": None}, measure, because="so")
    assert len(shown) == 1
    assert "`kernels`" in shown[0]
    assert "faster" not in shown[0]
    assert "so" not in shown[0].split()


@pytest.mark.parametrize(
    ("predicted", "answer", "within", "verdict"),
    [
        (2.0, 2.0, 1.0, "as found"),
        (1.7, 2.0, 1.25, "as found"),
        (2.5, 2.0, 1.25, "as found"),
        (1.5, 2.0, 1.25, "too low"),
        (2.6, 2.0, 1.25, "too high"),
        ("2", 2.0, 1.25, "as found"),
        ("twice", 2.0, 1.25, "not a number"),
        (float("nan"), 2.0, 1.25, "not a number"),
        (0, 0.0, 1.25, "as found"),
        (1, 0.0, 1.25, "too high"),
        (" More ", "more", 1.25, "as found"),
        ("less", "more", 1.25, "something else"),
        (3, "more", 1.25, "something else"),
    ],
)
def test_a_prediction_is_as_found_or_told_how_it_is_off(
    shown: list[str], predicted: object, answer: Answer, within: float, verdict: str
) -> None:
    check_prediction({"x": predicted}, lambda: {"x": answer}, within=within, because="that is why")
    table, card = shown
    assert table.splitlines()[-1].endswith(f"| {verdict}")
    assert card == f"{int(verdict == 'as found')} of 1 as found. that is why"


def test_answers_to_other_questions_are_an_error_of_the_notebook(shown: list[str]) -> None:
    with pytest.raises(ValueError, match="found are"):
        check_prediction({"x": 1}, lambda: {"y": 1.0}, because="")
    with pytest.raises(ValueError, match="within"):
        check_prediction({"x": 1}, lambda: {"x": 1.0}, within=0.5, because="")
    assert shown == []


@pytest.mark.night
@pytest.mark.parametrize("name", ANSWERS)
def test_the_exercises_of_a_notebook_wait_for_a_prediction_and_find_the_right_ones_right(name: str) -> None:
    notebook = build.from_source(name)
    asking = [cell.source for cell in notebook.cells if "check_prediction(" in cell.source]
    assert len(asking) == len(ANSWERS[name])
    for (variable, answers), question in zip(ANSWERS[name].items(), asking, strict=True):
        (blank,) = [cell.source for cell in notebook.cells if cell.source.startswith(f"{variable} = {{")]
        remaining = iter(answers)
        filled = re.sub(r"\bNone\b", lambda _, remaining=remaining: repr(next(remaining)), blank)  # type: ignore[misc]
        assert next(remaining, None) is None, "an answer for each question"
        notebook.cells += [nbformat.v4.new_code_cell(source) for source in (filled, question)]
    done = build.execute(notebook, {"GPULABS_DEVICE": "vgpu:T4"})
    texts = [_text(cell) for cell in done.cells if "check_prediction(" in cell.source]
    waiting, checked = texts[: len(asking)], texts[len(asking) :]
    assert all("Your prediction first" in text for text in waiting)
    for text, answers in zip(checked, ANSWERS[name].values(), strict=True):
        assert f"{len(answers)} of {len(answers)} as found" in text, text


def _text(cell: Any) -> str:
    return "\n".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
