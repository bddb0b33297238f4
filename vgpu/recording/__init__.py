"""Record a run once, price it for any card: what the host did and asked of its devices, and the same on other devices.

`tape` writes it down while a program runs, `file` keeps it, `replay` runs it again without the program, `prices` makes
tables and `picture` draws timelines above each other. All but the tape do without torch.
"""
