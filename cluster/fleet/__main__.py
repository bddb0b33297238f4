"""`python -m cluster.fleet`: see the package's first lines."""

import sys

from cluster.fleet.command import main

if __name__ == "__main__":
    sys.exit(main())
