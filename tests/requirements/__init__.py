"""What is required of a student: every sentence that binds them, and the check that asks for it."""
