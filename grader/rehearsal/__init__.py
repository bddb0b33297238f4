"""Grading as on a real GPU, on a virtual one that passes for it. `python -m grader.rehearsal` is the command."""
