"""Hints for an instructor: what a submission's source reaches for, and which submissions are alike. Never points."""
