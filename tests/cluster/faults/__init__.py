"""Faults that the acceptance test has to find: what is broken, whom it has to name, and the verdict.

| file         | what it is                                                                                          |
|--------------|-----------------------------------------------------------------------------------------------------|
| measured.py  | faults as workers would tell of them: the records of a sound machine with one thing changed         |
| spoils.py    | how those records are changed                                                                        |
| running.py   | faults of processes that run: injected on virtual GPUs and the CPU, nodes and disks taken away      |
| changes.py   | what the lists of stories do to records                                                              |
| reported.py  | machines built by hand: broken ones after public reports, healthy ones that are unusual             |
| issues.py    | the same, after threads of NCCL, DCGM, Kubernetes and health checks                                   |
| threads.py    | more of them, of which some break while the test runs                                                |
| incidents.py | faults that come and go, or that somebody left behind; sound machines whose pace varies              |
| unseen.py    | the same, of which the judge let half pass when they were written                                   |
| hidden.py, shared.py, doubtful.py | faults between two fields, of all alike, in small pieces                            |
| quiet.py, trackers.py, other_boards.py, near_limits.py | what the names say; trackers.py follows public reports          |
| settings.py, alike.py, overlooked.py, margins.py | hosts and settings; what all share; what monitors overlooked, by public reports   |
| outsider.py, traces.py | faults that leave traces in many fields, by somebody who had seen no check                  |
| noise.py, unsteady.py | how repetitions vary on sound machines, and faults that come and go, drawn                 |
| machines.py, plants.py | healthy machines that are drawn, and one fault of each                                    |
| drawn.py     | `python -m tests.cluster.faults.drawn`: judges them by the thousand; the site shows the result      |
| table.py     | `python -m tests.cluster.faults.table`: goes through all of them; the site shows the result |
"""
