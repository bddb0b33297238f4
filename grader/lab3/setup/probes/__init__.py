"""Probes of Lab 3's setup and training, which run in every rank."""
