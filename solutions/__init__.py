"""The labs of the course, one package each; the README.md in each says what to do and in which order."""

# --- solution only ---
# These are the reference solutions, and the only place where lab code is written: `gpulabs release` makes `labs/` from
# them. Nothing imports this package but the grader's reference runs and the project's own tests.
# --- end ---
