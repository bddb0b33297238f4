"""Programs of other people, run unchanged on the virtual GPU; see `harness.py`."""
