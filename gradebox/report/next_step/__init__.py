"""What to do next: reads a student's labs as text and the last grade, and chooses one task or one failing check.

Grades nothing and imports nothing of a submission. Hints are `gradebox/course/hints.py`.
"""
