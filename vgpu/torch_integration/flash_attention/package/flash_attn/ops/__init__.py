"""Kernels of flash-attn 2 beside attention that are simulated: `triton.rotary`."""
