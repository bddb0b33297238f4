"""What drives a submission. Runs beside it in the sandbox, and judges nothing."""
