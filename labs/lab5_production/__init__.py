"""Lab 5: a trainer to rely on, a profile that says what to change, and a monitor to leave running.

Start with README.md. Not for methods: Labs 2 to 4 taught them, this lab puts them to work together.
"""
