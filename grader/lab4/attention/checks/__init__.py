"""Judges Lab 4's attention."""
