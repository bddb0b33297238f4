"""Judges Lab 4's out-of-memory script and its handler."""
