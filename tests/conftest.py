"""What several test folders share."""

import signal

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever starts the tests in the background of a script hands this down, also to the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
