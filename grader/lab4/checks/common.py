"""What the criteria of Lab 4 ask in the same way: arguments that make no sense, and plots of made-up results."""

from __future__ import annotations

from gradebox.assertions import require, require_equal
from gradebox.submission import Submission


def judge_refusals(submission: Submission, criterion: str) -> None:
    """Fail unless each call of the criterion that makes no sense raises a ValueError, and none that makes sense."""
    seen = submission.numeric_probe("lab4.refusals.ask")
    for call, error in seen.calls[criterion].items():
        written = "is not written yet" if error == "NotImplementedError" else f"raised {error or 'nothing'}"
        require(error == "ValueError", f"{call} {written}, expected a ValueError", "see Raises in its docstring")
    for call, error in seen.sensible[criterion].items():
        require(
            error != "ValueError",
            f"{call} raised a ValueError although it makes sense",
            "refuse what its docstring names under Raises, and nothing else",
        )


def judge_plot(submission: Submission, kind: str) -> None:
    """Fail unless the plot function draws made-up results, returns its path, and says so where it cannot write."""
    seen = submission.probe("lab4.refusals.plots", kind=kind, device="cpu")
    what = f"plot_{kind}()"
    require(
        seen.is_picture, f"{what} wrote no PNG file to the path it was given", "labkit.plotting.save_png(figure, path)"
    )
    require(seen.is_its_path, f"{what} did not return the path it was given")
    require(bool(seen.drawn) and max(seen.drawn) >= 2, f"{what} drew no data", "draw on the figure that you save")
    require_equal(seen.refused, "OSError", what=f"error of {what} with a path that cannot be written")
