"""A course with randomness, a class and a plot, and a class of ten made-up submissions to grade."""
