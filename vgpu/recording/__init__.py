"""Record a run once, run it again on any card: what the host did and asked of its devices, without the program.

`tape` writes it down while a program runs, `file` keeps it, `replay` runs it again. All but the tape do without torch.
Not here: what is then told of it (`vgpu.comparison`).
"""
