"""What the course's notebooks begin with: the device, the student's own modules, calm notes, pictures, the grade.

    from labkit import notebook
    course = notebook.open(lab=1)
    lab = course.modules

Needs IPython (the extra `notebooks`). Not for programs: those use `labkit.device` and `labkit.plotting`, and not for
building the notebooks from their sources (`notebooks/build.py`).
"""

from labkit.notebook.course import Course, open_course
from labkit.notebook.notes import card, table
from labkit.notebook.pictures import COLORS, INK, new_figure, show, show_file
from labkit.notebook.predictions import check_prediction
from labkit.notebook.timing import seconds_of

open = open_course

__all__ = [
    "COLORS", "INK", "Course", "card", "check_prediction", "new_figure", "open", "seconds_of", "show", "show_file",
    "table",
]  # fmt: skip
