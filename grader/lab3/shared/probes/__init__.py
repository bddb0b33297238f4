"""What probes of several criteria of Lab 3 have in common."""
