"""A small server for a monitor: /metrics for Prometheus, / for people, /history for the page that people see.

Not for the open network: it listens on this machine only and knows no passwords. From elsewhere, use a tunnel
(ssh -L 9400:127.0.0.1:9400 machine), or name a `host` that is inside a cluster.
"""

import contextlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from labkit.monitoring.readings import Snapshot, plain

PAGE = Path(__file__).parent / "page.html"
_POINTS = 600
"""Most snapshots that the page gets at once."""


class Monitor(Protocol):
    """What is shown."""

    registry: CollectorRegistry
    history: Any
    """A sequence of `Snapshot`, oldest first."""

    def snapshot(self) -> Snapshot: ...


class Server:
    """Serves a monitor from threads of its own until it is closed.

    Args:
        monitor: what to show.
        port: 0 takes a free one.
        host: the address to listen on.

    Attributes:
        url: "http://HOST:PORT".

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, monitor: Monitor, port: int, *, host: str = "127.0.0.1") -> None:
        handler = type("Handler", (_Handler,), {"monitor": monitor})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="monitor-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    monitor: Monitor

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self._answer(generate_latest(self.monitor.registry), CONTENT_TYPE_PLAIN_0_0_4)
        elif url.path == "/history":
            self._answer(self._history(url.query).encode(), "application/json")
        elif url.path == "/":
            self._answer(PAGE.read_bytes(), "text/html; charset=utf-8")
        else:
            self.send_error(404, "there are /, /metrics and /history")

    def _history(self, query: str) -> str:
        """The snapshots later than `?after=SECONDS`, thinned out to a few hundred, and the one of now."""
        try:
            after = float(parse_qs(query).get("after", ["0"])[0])
        except ValueError:
            after = 0.0
        later = [snapshot for snapshot in list(self.monitor.history) if snapshot.time > after]
        kept: Sequence[Snapshot] = later[:: -(-len(later) // _POINTS) or 1]
        return json.dumps(plain({"history": kept, "now": self.monitor.snapshot()}), allow_nan=False)

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        with contextlib.suppress(ConnectionError):  # who asked has not waited for the answer
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is not worth a line."""
