"""Lab 4: make it fit: what a training step keeps in memory, and how to keep less.

Start with README.md. Not for spreading a model over several GPUs.
"""
