"""The checks: one module per lab. They judge what probes observed, in NumPy, and never see the submission's objects."""
