"""Random walks."""

import matplotlib.pyplot as plt
import numpy as np


def walk(steps, generator):
    moves = generator.choice([-1, 1], size=steps)
    return np.concatenate([[0], np.cumsum(moves)])


class RunningMean:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def add(self, value):
        self.total += value
        self.count += 1

    @property
    def mean(self):
        return self.total / self.count


def plot(walks):
    figure, axes = plt.subplots()
    for positions in walks:
        axes.plot(positions)
    axes.set_xlabel("step")
    axes.set_ylabel("position")
    return figure
