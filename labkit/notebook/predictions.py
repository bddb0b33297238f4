"""Predict first, then measure: what a student wrote down next to what a cell finds.

Nothing is measured, nor shown, before every prediction is there. Not for grades: nobody counts these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from labkit.notebook import notes

Answer = float | str


def check_prediction(
    predicted: Mapping[str, object], measure: Callable[[], Mapping[str, Answer]], *, within: float = 1.25, because: str
) -> None:
    """Show predictions next to what is found, and why; ask for them, as long as one is None.

    Args:
        predicted: by question a number, or a word where `measure` gives one; None where nothing is written yet.
        measure: called when all predictions are there; gives an answer for each of the same questions.
        within: a number is as found if it is neither more than this many times what was found, nor less than the same
            part of it; 1 asks for the number itself.
        because: one or a few sentences on where the answers come from, shown with them.

    Raises:
        ValueError: `measure` answers other questions, or `within` is below 1.
    """
    if within < 1:
        raise ValueError(f"within starts at 1, not {within}")
    missing = [question for question, value in predicted.items() if value is None]
    if missing:
        open_ones = ", ".join(f"`{question}`" for question in missing)
        notes.card(f"Your prediction first: {open_ones}. Write it in the cell above, run that, then this one.")
        return
    answers = measure()
    if answers.keys() != predicted.keys():
        raise ValueError(f"predicted are {list(predicted)}, found are {list(answers)}")
    verdicts = {question: _verdict(predicted[question], answer, within) for question, answer in answers.items()}
    notes.table(
        ("question", "your prediction", "found", "so it is"),
        [(name, str(predicted[name]), _shown(answer), verdicts[name]) for name, answer in answers.items()],
    )
    right = sum(verdict == "as found" for verdict in verdicts.values())
    notes.card(f"{right} of {len(verdicts)} as found. {because}")


def _verdict(predicted: object, answer: Answer, within: float) -> str:
    if isinstance(answer, str):
        return "as found" if str(predicted).strip().casefold() == answer.casefold() else "something else"
    try:
        number = float(predicted)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "not a number"
    if math.isclose(number, answer, rel_tol=1e-9) or (answer > 0 and answer / within <= number <= answer * within):
        return "as found"
    return "too high" if number > answer else "too low" if number < answer else "not a number"


def _shown(answer: Answer) -> str:
    return answer if isinstance(answer, str) else f"{answer:.3g}"
