"""Given for Lab 5's monitor: readings of GPUs, exports, names, rules, a terminal view, a web page, a dashboard.

| file             | what it is                                                                              |
|------------------|-----------------------------------------------------------------------------------------|
| readings.py      | what a monitor knows at one moment, in base units                                       |
| nvml.py          | what to ask NVML, and in which unit it answers                                          |
| gpus.py          | reads all GPUs, in base units; what one cannot tell is None                             |
| exports.py       | a moment for Prometheus, for TensorBoard and as a line of JSON                          |
| names.py         | names, kinds and help texts for Prometheus, ours and DCGM's                             |
| rules.py         | what is worth an alert; alerts.rules.yml is the same for Prometheus                     |
| web.py           | a server for Prometheus (/metrics) and for people (/: charts and alerts)                |
| terminal.py      | a live view for a terminal                                                              |
| dashboard.json   | a dashboard for Grafana, with a Prometheus data source                                  |

Not for when to sample and to export, nor for deciding what is an alert: that is what the lab is about.
"""

from labkit.monitoring.readings import Alert, GpuReading, Snapshot, plain
from labkit.monitoring.rules import RULES, SLOWED_BY, Rule, prometheus_rules

__all__ = ["RULES", "SLOWED_BY", "Alert", "GpuReading", "Rule", "Snapshot", "plain", "prometheus_rules"]
