"""What is asked of walks, running means and plots. Nothing random is compared with one sequence of numbers."""

from __future__ import annotations

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require, require_arrays_close, require_between, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission


@criterion("lab1.walks")
class Walks:
    def test_steps(self, submission: Submission, generator: InputGenerator) -> None:
        steps = generator.integer(20, 60)
        for walk in submission.probe("lab1.walks.walks", steps=steps, seeds=[3, 4]).whole("walks"):
            require_equal(len(walk), steps + 1, what=f"the number of positions of walk({steps}, generator)")
            require_equal(float(walk[0]), 0.0, what="the first position")
            require_arrays_close(np.abs(np.diff(walk)), np.ones(steps), rtol=1e-9, what="the length of each step")

    @requires("steps")
    def test_repeatable(self, submission: Submission, generator: InputGenerator) -> None:
        """The same seed twice, and another one: no sequence is asked for, so that any way to draw is right."""
        seed, other = generator.shuffled(range(1000))[:2]
        first, again, different = submission.probe("lab1.walks.walks", steps=200, seeds=[seed, seed, other]).whole(
            "walks"
        )
        hint = "draw from the generator that is given, as generator.choice(...)"
        require(np.array_equal(first, again), "two generators with one seed gave two different walks", hint)
        require(not np.array_equal(first, different), "generators with different seeds gave the same walk", hint)

    @requires("steps")
    def test_fair(self, submission: Submission) -> None:
        """Of 4,000 fair steps, fewer than 1,750 or more than 2,250 go up once in 10^15 gradings."""
        walks = submission.probe("lab1.walks.walks", steps=4000, seeds=[11]).whole("walks")
        up = int(np.count_nonzero(np.diff(walks[0]) > 0))
        require_between(up, 1750, 2250, what="the steps up, of 4000")

    def test_mean(self, submission: Submission, generator: InputGenerator) -> None:
        values = [generator.uniform(-5, 5) for _ in range(12)]
        means = submission.probe("lab1.walks.running_means", values=[values]).means[0]
        require_arrays_close(means, np.cumsum(values) / np.arange(1, 13), rtol=1e-9, what="RunningMean.mean")

    @requires("mean")
    def test_apart(self, submission: Submission, generator: InputGenerator) -> None:
        values = [[generator.uniform(-5, 5) for _ in range(6)] for _ in range(2)]
        means = submission.probe("lab1.walks.running_means", values=values).means
        for own, mean in zip(values, means, strict=True):
            require_arrays_close(mean, np.cumsum(own) / np.arange(1, 7), rtol=1e-9, what="one of two RunningMeans")

    def test_plot(self, submission: Submission, generator: InputGenerator) -> None:
        values = np.cumsum(generator.normal(3, 20), axis=1)
        report = submission.probe("lab1.walks.plot", values=values)
        heights = report.whole("heights")
        require_equal(len(heights), 3, what="the number of lines that plot() draws for 3 walks")
        for line, expected in zip(heights, values, strict=True):
            require_arrays_close(line, expected, rtol=1e-6, what="the heights of a line")
        require(all(report.labels), "an axis has no label", "name both axes")
