"""The page in which people grade: served to one grader by a process of their own, on this machine only."""
