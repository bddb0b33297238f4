"""Notebooks: in step with their sources, run with stubs and with solutions, and what they export."""
