"""What takes the course to real machines: the acceptance test and the distributed training job.

Not for teaching (that is `labs/`) and not for manifests and batch scripts (`deploy/`).
"""
