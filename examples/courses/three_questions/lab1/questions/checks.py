"""The three questions. What is expected is computed here, in float64, from inputs that are new in every grading."""

from __future__ import annotations

import numpy as np

from gradebox.course.criterion import criterion
from gradebox.run.assertions import require_arrays_close
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission


@criterion("lab1.questions")
class Questions:
    def test_rows_normalised(self, submission: Submission, generator: InputGenerator) -> None:
        values = generator.normal(5, 7)
        seen = submission.probe("lab1.questions.normalise_rows", array=values).result
        exact = values.astype(np.float64)
        expected = exact / np.linalg.norm(exact, axis=1, keepdims=True)
        require_arrays_close(seen, expected, rtol=1e-5, what="normalise_rows()")

    def test_moving_average(self, submission: Submission, generator: InputGenerator) -> None:
        values, window = generator.normal(40), generator.integer(2, 6)
        seen = submission.probe("lab1.questions.moving_average", array=values, window=window).result
        expected = np.convolve(values.astype(np.float64), np.ones(window) / window, mode="valid")
        require_arrays_close(seen, expected, rtol=1e-4, atol=1e-5, what=f"moving_average(window={window})")

    def test_distances(self, submission: Submission, generator: InputGenerator) -> None:
        points = generator.normal(6, 3)
        seen = submission.probe("lab1.questions.distances", array=points).result
        exact = points.astype(np.float64)
        expected = np.sqrt(((exact[:, None] - exact[None]) ** 2).sum(axis=-1))
        require_arrays_close(seen, expected, rtol=1e-3, atol=1e-4, what="distances()")
