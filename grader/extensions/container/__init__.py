"""The container exercise: a Dockerfile that is read, and a checklist that the student's own run filled in."""
