"""Judges the three questions: the same behaviour that the other graders' tests ask for.

Inputs travel as lists: as arrays they would reach the probe as tensors, and each child would import PyTorch for that.
"""

from __future__ import annotations

import numpy as np

from gradebox.assertions import require_arrays_close
from gradebox.criterion import criterion
from gradebox.fresh import Fresh
from gradebox.submission import Submission


@criterion("lab1.questions")
class TestQuestions:
    def test_rows_normalised(self, submission: Submission, fresh: Fresh) -> None:
        values = fresh.normal(5, 7)
        seen = submission.probe("questions.normalise_rows", device="cpu", array=values.tolist()).result
        exact = values.astype(np.float64)
        expected = exact / np.linalg.norm(exact, axis=1, keepdims=True)
        require_arrays_close(seen, expected, rtol=1e-5, what="normalise_rows()")

    def test_moving_average(self, submission: Submission, fresh: Fresh) -> None:
        values = fresh.normal(40)
        seen = submission.probe("questions.moving_average", device="cpu", array=values.tolist(), window=4).result
        expected = np.convolve(values.astype(np.float64), np.ones(4) / 4, mode="valid")
        require_arrays_close(seen, expected, rtol=1e-4, atol=1e-5, what="moving_average()")

    def test_distances(self, submission: Submission, fresh: Fresh) -> None:
        points = fresh.normal(6, 3)
        seen = submission.probe("questions.distances", device="cpu", array=points.tolist()).result
        exact = points.astype(np.float64)
        expected = np.sqrt(((exact[:, None] - exact[None]) ** 2).sum(axis=-1))
        require_arrays_close(seen, expected, rtol=1e-3, atol=1e-4, what="distances()")
