"""What several criteria of Lab 3 require of ranks and of programs."""
