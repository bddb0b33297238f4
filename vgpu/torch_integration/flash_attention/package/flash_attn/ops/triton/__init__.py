"""Those that the package writes in Triton."""
