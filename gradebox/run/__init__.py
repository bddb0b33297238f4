"""One grading: from a request to a grade."""
