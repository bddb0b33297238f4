"""What students get: stubs made from the solutions, and the repository that they are handed out in."""

from gradebox.authoring.release.folder import MANIFEST, RESULTS, Released, check, make_labs, render_all, solve_all
from gradebox.authoring.release.stubs import ReleaseError, render

__all__ = [
    "MANIFEST",
    "RESULTS",
    "ReleaseError",
    "Released",
    "check",
    "make_labs",
    "render",
    "render_all",
    "solve_all",
]
