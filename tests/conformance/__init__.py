"""Conformance: small programs with the outcome that the documentation of CUDA and PyTorch promises.

They run on the virtual GPU, and with `--conformance-device cuda` on a real one, where the expectations are checked.
Not here: what only a virtual GPU can show (`tests/vgpu`).
"""
