"""`gpulabs doctor`: what is here, what is wrong, and the command that fixes it."""

import os
import sys

import typer

from grader import doctor


def examine_machine() -> None:
    """Look at Python, PyTorch, CUDA, the driver, the virtual GPU, disk, memory, ports and the sandbox.

    One line per fact: ok, note, to do or wrong, and the command that fixes it. Changes nothing.
    Exit codes: 0 nothing is wrong, 1 something is.
    """
    raise typer.Exit(doctor.main(colours=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
