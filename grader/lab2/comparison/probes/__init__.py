"""The probes of the comparison: what is measured and concluded, and what is drawn."""
