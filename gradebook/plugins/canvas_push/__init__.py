"""Grades and comments to Canvas without a file: what would change, sending it, and remembering what was sent.

`client.py` is HTTP, `service.py` what we ask of Canvas, `people.py` who is who there, `differences.py` what would
change, `memory.py` what was sent before, `push.py` the whole of it, `messages.py` what is said about it.
"""
