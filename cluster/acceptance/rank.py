"""`python -m cluster.acceptance.rank PARENT ...`: the process of a worker. Its watchdog starts it."""

import signal
import sys

from cluster.acceptance.beginning import bind_to_parent

if __name__ == "__main__":
    # Before PyTorch is imported: a watchdog that is killed takes its worker along, nobody else would.
    bind_to_parent(signal.SIGKILL, int(sys.argv[1]))
    from cluster.acceptance.worker import main
    from labkit import program

    program.end_process(main(sys.argv[2:]))
