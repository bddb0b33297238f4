"""Many nodes over a long time: a light check, reports merged, metrics, and what takes a node out.

    python -m cluster.fleet node       one node, in a second, beside whatever runs there: NVML, ports, kernel log
    python -m cluster.fleet merge      reports of many runs: verdicts, outliers, what got slower
    python -m cluster.fleet accept     a node whose acceptance test passed: back into service

No PyTorch here, and nothing is computed on a GPU: that is `cluster.acceptance`.
"""
