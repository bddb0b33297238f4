"""Given: start the processes of a job and collect what they return: see `labkit/ranks.py`. Nothing to write here.

Not for what a rank does: it joins the others with `ddp_training.setup`.
"""

from labkit.ranks import run_ranks

__all__ = ["run_ranks"]
