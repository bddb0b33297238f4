"""Real devices: whose turn it is on one, which probes measure, and whether something disturbed a measurement.

A simulated device needs none of it. Not here: which devices a course has (`gradebox.devices`).
"""
