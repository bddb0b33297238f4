"""Probes of Lab 4's attention."""
