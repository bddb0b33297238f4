"""Random numbers as a real card draws them: Philox, the launch that spreads it over threads, and what is made of it."""
