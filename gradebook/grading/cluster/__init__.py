"""A class graded by the nodes of a cluster: each submission is one task of an array of jobs.

`shared_folder.py` is the folder by which both sides speak, `array_task.py` the node's side, `engine.py` ours. A plug-in
brings a `Scheduler`: how Slurm or Kubernetes is spoken to.
"""
