"""The labs of the course, one package each; the README.md in each says what to do and in which order."""
