"""A recording of a run: its entries, its file, and its replay on another card."""
