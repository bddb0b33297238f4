"""How PyTorch reaches the virtual GPU: dispatch, patches, kernels, communication, compiled code."""
