"""What is asked of a submission: randomness, a class and a plot."""
