"""Judges Lab 4's checkpointing: `criterion.py` has the checks, the other modules what they require."""
