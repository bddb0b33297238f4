"""`python -m vgpu calibrate`: the same workloads on a real GPU and on the virtual one, predicted against measured.

`workloads` and `models` say what runs, `measure` runs it (on whichever GPU there is), `compare` sets the two results
next to each other, `suggest` turns the measured one into a custom spec. Not here: anything that a grade depends on.
"""
