"""What the things that act on nodes have in common."""

from labkit import LabError


class ActionError(LabError):
    """A node could not be taken out or put back: it says why, and nothing else was changed."""
