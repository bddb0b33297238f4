"""A course as data: its labs, criteria, checks, hints and the people who help."""
