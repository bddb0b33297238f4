"""Grading a class: from many submissions to one gradebook. Not for judging one submission (`gradebox.run`)."""
