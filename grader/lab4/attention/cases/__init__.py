"""Inputs of the checks of attention, and what its probes return."""
