"""Judges Lab 4's prediction of memory and its report."""
