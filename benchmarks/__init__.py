"""Performance claims: ratios measured side by side in one run, written as JSON. Not part of the tests."""
