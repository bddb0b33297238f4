"""Judges Lab 3's setup and training: `criterion.py` has the checks, the other modules what they require."""
