"""Lab 3: train one model with several processes, keep them equal, and find out what that is worth.

Start with README.md. Not for memory: Lab 4 does that.
"""
