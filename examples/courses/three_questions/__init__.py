"""A second course: three questions about NumPy. Graded by `gradebox`, which reads `course.toml`."""
