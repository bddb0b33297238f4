"""What every lab is given: data sets, small models, result files, plots, the choice of a device, progress.

Not for anything a lab teaches (that is written in the lab) and not for grading. `import labkit` is quick: PyTorch,
scikit-learn and matplotlib are imported by the modules that need them, when they need them.
"""

__all__ = ["LabError"]


class LabError(Exception):
    """Something a student can put right: no GPU, a missing data set, a damaged file. The message says how."""
