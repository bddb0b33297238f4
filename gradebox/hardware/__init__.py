"""Real devices: which request may use one now, which probes measure, and what disturbed a measurement.

A simulated device needs none of it. Not here: which devices a course has (`gradebox.devices`).
"""
