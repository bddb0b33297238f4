"""Templates: processes between the server and its supervisors, each ready for one kind of request (`ready.py`).

The server forks one when its kind is asked for the first time, sends it each request, and reads the reply from the
supervisor itself. A template reads nothing of what a submission says, and what it forks has copies of its memory: a
run leaves no more in it than in the server. Not for what a run is (`runs.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from typing import Any, NoReturn

from gradebox.sandbox import codec, linux, machine, prefork_state, processes, wire
from gradebox.sandbox.runs import Runs

KEPT = 6
"""How many live at a time: each has some 50 MiB of its own."""
MAX_ORDER_BYTES = 2**31
_START, _END = b"s", b"e"
_END_SECONDS = 60.0
"""How long a template may take to end a run before it is ended itself."""


class Gone(Exception):
    """The template has ended, or answers no more."""


class Template:
    """One of them, seen from the server."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid = pid
        self._channel = channel
        self.uses = 0

    def start(self, number: int, frame: bytes, out: int) -> None:
        """Have the server's n-th request carried out; the supervisor writes its frame to `out`.

        Raises:
            Gone: it was not.
        """
        self.uses += 1
        try:
            socket.send_fds(self._channel, [_START], [out])
            wire.send(self._channel.fileno(), codec.join(str(number).encode(), frame))
        except (OSError, wire.Closed):
            raise Gone from None

    def end(self) -> None:
        """Return only when every process of that run has ended.

        Raises:
            Gone: nobody knows.
        """
        try:
            self._channel.sendall(_END)
            wire.receive(self._channel.fileno(), max_bytes=0, timeout_seconds=_END_SECONDS)
        except (OSError, wire.Closed):  # OSError: also the TimeoutError
            raise Gone from None

    def kill(self) -> None:
        """End it; a run of its ends with it, but later."""
        self._channel.close()
        processes.send([self._pid], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


class Born(BaseException):
    """Raised in a new template: it leaves the server's frames, which hold a request, before it begins."""

    def __init__(self, kind: str, channel: socket.socket) -> None:
        super().__init__()
        self.kind = kind
        self.channel = channel


class Templates:
    """The templates of one server. Other processes below the server belong to a run."""

    def __init__(self, *, namespaces: bool) -> None:
        self._namespaces = namespaces
        self._living: dict[str, Template] = {}

    def start(self, kind: str, number: int, frame: bytes, out: int) -> Template:
        """Have a request carried out by the template of its kind, which is made again where there is none.

        Raises:
            Gone: also a new one ended.
            Born: in a new template.
        """
        known = self._living.get(kind)
        if known is not None:
            try:
                known.start(number, frame, out)
                return known
            except Gone:
                self.end_all()
        made = self._make(kind)
        made.start(number, frame, out)
        return made

    def _make(self, kind: str) -> Template:
        if len(self._living) >= KEPT:
            least = min(self._living, key=lambda key: self._living[key].uses)
            self._living.pop(least).kill()
            processes.reap()  # what the ones before have left: their devices' processes end after them
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            raise Born(kind, there)
        there.close()
        made = self._living[kind] = Template(pid, here)
        return made

    def end_all(self) -> None:
        """End every template and whatever a run has left below it: for when one of them is gone."""
        while self._living:
            self._living.popitem()[1].kill()
        if not self._namespaces:
            processes.end_descendants()
            return
        # Processes below a template end with it and are ours then; waiting for a namespace's first process waits for
        # all.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def live(
    kind: str, channel: socket.socket, config: machine.Config, site: machine.Machine, *, skip_pids: int
) -> NoReturn:
    """Be a template, until the server ends."""
    try:
        if linux.AVAILABLE:
            linux.die_with_parent(signal.SIGKILL)
            linux.adopt_orphans()
        linux.close_all_but({0, 1, 2, channel.fileno()})
        _serve(channel, Runs(config, site, prefork_state.make(kind, config.of_course), skip_pids=skip_pids))
    except (ConnectionError, wire.Closed):  # the server has ended
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # to the server's log
        os._exit(1)


def _order(channel: socket.socket) -> tuple[int, dict[str, Any], bytes, bytes]:
    """The number of a request, it, its tensors, and what only the device learns.

    Its bytes stay here: the frames below those of a worker are a copy of ours.
    """
    number, frame = codec.split(wire.receive(channel.fileno(), max_bytes=MAX_ORDER_BYTES))
    head, tensors, conditions = codec.split(frame)
    return int(number), codec.load_json(head), tensors, conditions


def _serve(channel: socket.socket, runs: Runs) -> NoReturn:
    while True:
        word, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if word == _START:
            try:
                number, request, tensors, conditions = _order(channel)
                ends = runs.device_for(request, conditions)
                del conditions  # what is forked below knows nothing of it
                try:
                    runs.start(number, request, tensors, descriptors[0], ends)
                finally:
                    ends.close()
            except OSError as error:  # no process, no disk
                why = codec.dump_json({"failed": f"{type(error).__name__}: {error}"})
                with contextlib.suppress(wire.Closed):
                    wire.send(descriptors[0], codec.join(why))
            os.close(descriptors[0])
        elif word == _END:
            runs.end()
            wire.send(channel.fileno(), b"")
        else:
            raise wire.Closed
