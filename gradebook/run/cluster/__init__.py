"""A class graded by the nodes of a cluster: each submission one element of an array of jobs.

`folder.py` is the shared folder by which both sides speak, `element.py` the node's side, `engine.py` ours, `slurm.py`
and `kubernetes.py` how their schedulers are spoken to.
"""
