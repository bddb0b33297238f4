"""`python -m cluster.acceptance`, or `torchrun ... -m cluster.acceptance`."""

import sys

from cluster.acceptance import beginning

if __name__ == "__main__":
    beginning.begin(sys.argv[1:])  # before PyTorch is imported
    from cluster.acceptance.launch import main
    from labkit import program

    program.end_process(main())
