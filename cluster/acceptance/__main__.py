"""`python -m cluster.acceptance`, or `torchrun ... -m cluster.acceptance`."""

from cluster.acceptance.launch import main
from labkit import program

if __name__ == "__main__":
    program.end_process(main())
