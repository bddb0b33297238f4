"""The probes of numerical stability: of the tools, and of the training that uses them."""
