"""The reference changed once, in many ways, and graded: what nobody notices is a question that nobody asks."""
