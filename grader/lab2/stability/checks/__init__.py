"""The checks of numerical stability, and what each run of the unstable model must come to."""
