"""The class that is graded by hand, once more for the page."""

from tests.gradebook.manual_grading.conftest import manual

__all__ = ["manual"]
