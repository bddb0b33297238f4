"""Points that people give: a rubric of their own, marks with reusable comments, and requests to look again.

Everything lies in the folder `hands` beside the gradebook, in text files that git can compare. Not for the page in
which people grade (`gradebook/desk/`), nor for the points of checks.
"""

FOLDER = "hands"
"""Beside the gradebook."""


class HandsError(ValueError):
    """What was written or asked about points by hand cannot be used; the message is one line that says what to do."""
