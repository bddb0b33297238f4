"""Is this machine, or this cluster, fit for distributed training on GPUs? `python -m cluster.acceptance` answers.

| file          | what it is                                                                                        |
|---------------|---------------------------------------------------------------------------------------------------|
| beginning.py  | what has to happen before PyTorch is imported                                                     |
| options.py    | the command line                                                                                  |
| expectations.py | the file of `--expect`: what a cluster should be                                                |
| launch.py     | the two ways in: one plain command, or one process of many that torchrun started                  |
| watchdog.py   | starts the ranks' workers, watches them by a real clock, ends those that hang                     |
| store.py      | where watchdogs and workers agree, and where they go on when that node is lost                    |
| rank.py, worker.py | one rank: measures, stage after stage, and tells its watchdog                                |
| checks/       | each stage: what is measured, and how the measurements of all ranks are judged                    |
| faults.py     | faults on request, to show that they are found                                                    |
| verdict.py    | a check, its four outcomes, and what they add up to                                               |
| sysfs.py      | what Linux tells of a node's network ports                                                        |
| hardware.py   | what boards can do by their maker's documents (hardware.toml), by name                            |
| checks/links.py | what joins two GPUs, and how much it carries: the bars of bandwidth                             |
| ledger.py     | every field that is recorded (readings.toml), with the checks that judge it, or why none does     |
| names.py      | the names that a worker gives to what it measures                                                 |
| form.py       | takes out of a record what does not look like what the ledger says                                |
| checks/unusual.py | figures that stand out from those of siblings, or that no sound machine shows                 |
| checks/shapes.py | of a list of times the slow part, and the end against the beginning                            |
| checks/usual.py | what sound siblings, and sound machines, show                                                   |
| checks/surroundings.py | settings of the host, variables and versions, by good words                              |
| host.py       | what Linux says of the computer around a GPU                                                      |
| unjudged.py   | what a run read and nobody judges, and what it could not read                                     |
| as_read.py    | values for which nobody has a norm, quoted in the banner                                          |
| guard.py      | a part of the judge that breaks costs a check, and not the report                                 |
| report.py, page.py | the banner, the JSON report (report.schema.json), the page (report.html.jinja)               |
| writing.py    | puts a report on a disk, or on another one                                                        |

Workers only measure; what passes is decided afterwards, from plain values, by functions that need neither a GPU nor
PyTorch. Not a benchmark: times are compared with thresholds, peers and an earlier report, not collected.
"""
