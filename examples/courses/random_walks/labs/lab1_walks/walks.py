"""Random walks."""

import matplotlib.pyplot as plt  # noqa: F401
import numpy as np


def walk(steps: int, generator: np.random.Generator) -> np.ndarray:
    """The positions of a walk: 0, then after each of `steps` steps, each one up or one down with equal probability."""
    # TODO: draw the steps from `generator`
    # TODO: add them up, from 0 on
    raise NotImplementedError("Task 1.1 is open: write walk in walks.py (about 2 lines)")


class RunningMean:
    """The mean of all values that `add` was given so far; `mean` is a property."""

    def add(self, value: float) -> None:
        """Take one more value in."""
        # TODO: keep what the mean needs
        raise NotImplementedError("Task 1.2 is open: write RunningMean in walks.py (about 6 lines)")


def plot(walks):
    """A Matplotlib Figure with a line for each walk, whose heights are its positions; both axes have a label."""
    # TODO: a line for each walk
    # TODO: labels
    raise NotImplementedError("Task 1.3 is open: write plot in walks.py (about 6 lines)")
