"""Measurements drawn at random: about 1,500 small cases, so that each visit to a GPU adds new ones.

`python -m benchmarks.measured.drawn OUT.json --seconds 60` measures cases that OUT.json lacks. `cases.jsonl` lists all
cases, one a line; `python -m benchmarks.measured.drawn.generate` writes that file from a fixed seed. Each family of
cases (`families`) draws its parameters and prepares the work; `timing` reads the clocks, and `run` decides what comes
next. Not here: what a measurement means for the virtual GPU (`benchmarks.measured.compare`).
"""
