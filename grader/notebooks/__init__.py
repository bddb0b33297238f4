"""What students wrote in a notebook, exported into the modules of their labs.

Not for what notebooks show (`labkit.notebook`), and needs no Jupyter.
"""
