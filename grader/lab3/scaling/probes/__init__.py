"""Probes of Lab 3's scaling analysis. Everything here is simulated."""
