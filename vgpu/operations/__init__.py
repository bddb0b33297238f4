"""What happens at an operation: the two modes that see it, where its result lives, its precision and its work."""
