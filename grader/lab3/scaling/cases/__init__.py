"""Inputs of Lab 3's scaling analysis: measurements that are made up, and steps to measure."""
