"""What leaves the gradebook: tables for Canvas, Moodle and spreadsheets, results for Gradescope, feedback, pages.

Everything here reads a `ClassResult` and writes files; nothing grades or changes a gradebook. `everything.py` writes
them all.
"""

FOLDER = "exports"
"""Where the exports lie, below the folder of the class."""
