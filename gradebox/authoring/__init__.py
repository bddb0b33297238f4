"""For authors of a course: stubs from solutions, a lint of the course, gradings after each saved file."""
