"""Probes drive the student's functions inside the sandbox and report what they saw; they know no expected value."""
