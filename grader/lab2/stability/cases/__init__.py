"""Inputs of the checks of numerical stability: those of the numerical tools, and trainings of the unstable model."""
