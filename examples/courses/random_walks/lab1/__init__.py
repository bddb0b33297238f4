"""The only lab of this course."""
