"""What CUDA's kernels accept, asked from PyTorch's CUDA build without a card: `__main__` writes the tables."""
