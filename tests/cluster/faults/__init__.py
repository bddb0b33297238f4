"""Faults that the acceptance test has to find: what is broken, whom it has to name, and the verdict.

| file         | what it is                                                                                          |
|--------------|-----------------------------------------------------------------------------------------------------|
| measured.py  | faults as workers would tell of them: the records of a sound machine with one thing changed         |
| spoils.py    | how those records are changed                                                                        |
| running.py   | faults of processes that run: injected on virtual GPUs and the CPU, nodes and disks taken away      |
| table.py     | `python -m tests.cluster.faults.table`: goes through all of them; the site shows the result |
"""
