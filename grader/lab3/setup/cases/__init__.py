"""Inputs of Lab 3's setup and training: how ranks meet, what they train on, what they evaluate."""
