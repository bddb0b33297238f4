"""Grading while somebody works: after each saved file the affected checks run again, at once, in a sandbox that stays.

For the author of the code, and no grade: a grade runs every check once, with a seed of its own
(`gradebox/report/presenter.py`).
"""

from gradebox.authoring.watch.answering import answer
from gradebox.authoring.watch.loop import watch
from gradebox.authoring.watch.session import Round, Session

__all__ = ["Round", "Session", "answer", "watch"]
