"""Inputs of the checks of the comparison of precisions: what is measured, concluded and drawn."""
