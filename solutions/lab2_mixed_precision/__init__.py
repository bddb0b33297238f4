"""Lab 2: training in mixed precision: how, what it saves, and what goes wrong when numbers have few bits.

Start with README.md. Not for memory by other means (Lab 4) nor for a whole trainer (Lab 5).
"""
