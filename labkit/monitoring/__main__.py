"""Prints the rule file for Prometheus: python -m labkit.monitoring > alerts.rules.yml"""

from labkit.monitoring.rules import prometheus_rules

print(prometheus_rules(), end="")
