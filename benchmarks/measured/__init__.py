"""One real card, measured by ourselves, and the virtual one of the same name beside it.

`python -m benchmarks.measured record FILE` measures on this machine's NVIDIA GPU. `python -m benchmarks.measured
compare FILE` runs the same on the virtual GPU, writes how far it is off, and the table of `docs/how-we-know.md`. No
constant of `vgpu/` is fitted to such a file, but where its comment says so: it shows how good a fit to published
figures is elsewhere.
"""
