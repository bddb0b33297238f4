"""The page in which people grade."""
