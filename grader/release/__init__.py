"""The repository that students get: what is in it, and one release after the other."""
