"""Something that is called again and again, by one timer after the other."""

import threading
from collections.abc import Callable


class Sampler:
    """Each timer's thread makes a call, and starts the next timer."""

    def __init__(self, call: Callable[[], None], interval: float) -> None:
        self._call, self._interval = call, interval
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._ended = False

    def start(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._timer = threading.Timer(self._interval, self._tick)
            self._timer.daemon = True
            self._timer.start()

    def _tick(self) -> None:
        if not self._ended:
            try:
                self._call()
            finally:
                self.start()

    def close(self) -> None:
        """No call is made after that."""
        with self._lock:
            self._ended, timer = True, self._timer
        if timer is not None:
            timer.cancel()
            timer.join()
