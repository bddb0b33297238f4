"""What the judge's process does once it is there: one grading, or one after each saved file.

Next to `launch.py`, whose other half only waits for this one and does without its imports.
"""

from __future__ import annotations

from gradebox.authoring import watch
from gradebox.common.exit_codes import ExitCode, refuse
from gradebox.report import presenter
from gradebox.run.options import Options
from gradebox.run.request import GradingError
from gradebox.sandbox.devices import DeviceError

_ROUNDS = {"watch": watch.watch, "answer": watch.answer}
"""Ways to grade again and again."""


def carry_out(options: Options, rounds: str = "") -> ExitCode:
    """Grade, or refuse in one line; `rounds` as for `launch.run`."""
    try:
        if rounds:
            return ExitCode(_ROUNDS[rounds](options))
        return presenter.grade(options, alone=True)
    except (GradingError, DeviceError, ValueError) as error:
        return refuse(str(error))
