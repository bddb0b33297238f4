"""What a machine with virtual GPUs is while a program runs: memory, clocks, threads and processes."""
