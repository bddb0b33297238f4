"""Three questions about NumPy."""

import numpy as np


def normalise_rows(values: np.ndarray) -> np.ndarray:
    """The rows of a matrix without rows of zeros, each divided by its Euclidean length; the same shape."""
    # TODO: the length of each row
    # TODO: divide
    raise NotImplementedError("Task 1.1 is open: write normalise_rows in questions.py (about 1 line)")


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each `window` neighbouring values: `len(values) - window + 1` of them, in order."""
    # TODO: one mean for each place where the whole window fits
    raise NotImplementedError("Task 1.2 is open: write moving_average in questions.py (about 1 line)")


def distances(points: np.ndarray) -> np.ndarray:
    """Euclidean distances between points (one a row): entry [i, j] is that from point i to point j."""
    # TODO: differences of all pairs
    # TODO: their lengths
    raise NotImplementedError("Task 1.3 is open: write distances in questions.py (about 2 lines)")
