"""Three questions about NumPy."""

import numpy as np


def normalise_rows(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def moving_average(values, window):
    return np.convolve(values, np.ones(window) / window, mode="valid")


def distances(points):
    return np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))
