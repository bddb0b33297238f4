"""The class that is graded by hand, once more for the page."""

from tests.gradebook.hands.conftest import hands

__all__ = ["hands"]
