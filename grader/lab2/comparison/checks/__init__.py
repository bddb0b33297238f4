"""The checks of the comparison: what is measured, concluded, drawn and written."""
