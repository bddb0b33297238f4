"""Points that people give: a rubric of their own, marks with reusable comments, and requests to look again.

Everything is in the folder `manual_grading` next to the gradebook, in text files that git can compare. Not for the page
in which people grade, which is a plug-in, nor for the points of checks.
"""

import getpass
from datetime import UTC, datetime

FOLDER = "manual_grading"
"""Next to the gradebook."""


class ManualGradingError(ValueError):
    """What was written or asked about points by hand cannot be used; the message is one line that says what to do."""


def now() -> datetime:
    """The moment of a decision, to a second."""
    return datetime.now(UTC).replace(microsecond=0)


def grader_name(name: str | None) -> str:
    """Who grades or answers: as they say, else as they log in.

    Raises:
        ManualGradingError: nobody knows.
    """
    try:
        return name if name is not None else getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise ManualGradingError("say who you are: --as NAME") from None
