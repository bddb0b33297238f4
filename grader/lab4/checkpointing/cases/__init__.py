"""Inputs of the checks of checkpointing, and what its probes return."""
