"""The command line, calibration against a real card, prices on other cards, and the pytest plugin."""
