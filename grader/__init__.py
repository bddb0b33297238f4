"""The autograder: plugin, rubric, sandbox, probes, checks and reports."""
