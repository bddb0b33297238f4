"""Inputs of the checks of gradient scaling: small trainings with all arguments, and with those of the document."""
