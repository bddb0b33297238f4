"""`python3 -m grader.doctor`."""

import os
import sys

from grader.doctor import main

if __name__ == "__main__":
    sys.exit(main(colours=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
