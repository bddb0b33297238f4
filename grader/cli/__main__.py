"""`python -m grader.cli`: the command `gpulabs` where no script was installed, as in the image."""

from grader.cli import app

app(prog_name="gpulabs")
