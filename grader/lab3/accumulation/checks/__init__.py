"""Judges Lab 3's gradient accumulation: `criterion.py` has the checks, the other modules what they require."""
