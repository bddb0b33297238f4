"""What the judge's process does once it is there: one grading, or one after each saved file.

Beside `launch.py`, whose other half only waits for this one and does without its imports.
"""

from __future__ import annotations

from gradebox import front, watching
from gradebox.devices import DeviceError
from gradebox.exits import ExitCode, refuse
from gradebox.options import Options
from gradebox.order import GradingError

_ROUNDS = {"watch": watching.watch, "answer": watching.answer}
"""Ways to grade again and again."""


def carry_out(options: Options, rounds: str = "") -> ExitCode:
    """Grade, or refuse in one line; `rounds` as for `launch.run`."""
    try:
        if rounds:
            return ExitCode(_ROUNDS[rounds](options))
        return front.grade(options, alone=True)
    except (GradingError, DeviceError, ValueError) as error:
        return refuse(str(error))
