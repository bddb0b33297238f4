"""A trivial assignment, NumPy only, in the forms that three graders want: what `other_graders.py` measures with."""
