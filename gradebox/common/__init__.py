"""What every part of the engine uses: files and texts that somebody wrote, exit codes, the machine's resources."""
