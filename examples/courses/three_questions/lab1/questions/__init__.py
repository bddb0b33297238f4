"""What is asked of a submission. Runs in the judge, and sees of a submission only what a probe reported."""
