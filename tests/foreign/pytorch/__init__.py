"""PyTorch's own databases of test cases, which every wheel carries, run on the virtual GPU. See `run.py`."""
