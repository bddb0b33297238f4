"""Modules of flash-attn 2 that are simulated: `mha`."""
