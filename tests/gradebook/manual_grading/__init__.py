"""Points that people give, without a browser."""
