"""What probes are given, as dimensions with values, and whether gradings ask each pair of values: see `coverage.py`."""
