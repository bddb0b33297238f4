"""Grading while somebody works: what a saved file may have changed is asked again, at once, by a sandbox that stays.

For whoever writes the code, and no grade: that asks everything, once, with a seed of its own (`gradebox/front.py`).
"""

from gradebox.watching.answering import answer
from gradebox.watching.loop import watch
from gradebox.watching.session import Round, Session

__all__ = ["Round", "Session", "answer", "watch"]
