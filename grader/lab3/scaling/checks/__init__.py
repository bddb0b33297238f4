"""Judges Lab 3's scaling analysis: `criterion.py` has the checks, `report.py` reads the written part."""
