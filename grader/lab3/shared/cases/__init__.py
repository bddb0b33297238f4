"""What checks and probes of several criteria of Lab 3 know of each other."""
