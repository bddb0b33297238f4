"""Labels and taints, against a server that answers for nodes as Kubernetes does: merge patch, versions, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cluster.fleet import kubernetes
from cluster.fleet.actions import ActionError
from cluster.fleet.kubernetes import KEY, Api, clear, mark

OTHERS = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


class Server(ThreadingHTTPServer):
    """One node, and how often somebody else changes it in between."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.node: dict[str, Any] = {
            "metadata": {"name": "node1", "resourceVersion": "1", "labels": {"zone": "a"}},
            "spec": {"taints": [OTHERS]},
        }
        self.conflicts = 0
        self.refuse = False

    @property
    def api(self) -> Api:
        return Api(f"http://127.0.0.1:{self.server_address[1]}", "secret", None)


def merged(value: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in change.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), part)
    return result


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self, code: int, body: Any) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self) -> None:
        if self.server.refuse or self.headers["Authorization"] != "Bearer secret":
            self.answer(403, {})
        else:
            self.answer(200 if self.path == "/api/v1/nodes/node1" else 404, self.server.node)

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metadata = self.server.node["metadata"]
        if self.server.conflicts:
            self.server.conflicts -= 1
            metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        if change["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            self.answer(409, {})
            return
        self.server.node = merged(self.server.node, change)
        self.answer(200, self.server.node)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    thread = threading.Thread(target=started.serve_forever, daemon=True)
    thread.start()
    yield started
    started.shutdown()
    started.server_close()


def test_a_node_that_passes_is_labelled_and_nothing_else_changes(server: Server) -> None:
    mark(server.api, "node1", "PASS", "", taint=True)
    assert server.node["metadata"]["labels"] == {"zone": "a", KEY: "pass"}
    assert server.node["spec"]["taints"] == [OTHERS]


def test_a_node_that_fails_is_tainted_beside_the_taints_of_others(server: Server) -> None:
    mark(server.api, "node1", "FAIL", "XID 79", taint=True)
    mark(server.api, "node1", "FAIL", "XID 79", taint=True)
    assert server.node["spec"]["taints"] == [OTHERS, {"key": KEY, "value": "fail", "effect": "NoSchedule"}]
    assert server.node["metadata"]["annotations"][f"{KEY}-reason"] == "XID 79"


def test_without_taint_it_is_only_labelled(server: Server) -> None:
    mark(server.api, "node1", "FAIL", "XID 79", taint=False)
    assert server.node["metadata"]["labels"][KEY] == "fail"
    assert server.node["spec"]["taints"] == [OTHERS]


def test_a_taint_stays_until_the_node_is_accepted(server: Server) -> None:
    mark(server.api, "node1", "FAIL", "XID 79", taint=True)
    mark(server.api, "node1", "PASS", "", taint=True)
    assert server.node["metadata"]["labels"][KEY] == "fail"
    assert server.node["metadata"]["annotations"][f"{KEY}-reason"] == "XID 79"
    clear(server.api, "node1")
    assert server.node["metadata"]["labels"][KEY] == "pass"
    assert server.node["spec"]["taints"] == [OTHERS]
    assert f"{KEY}-reason" not in server.node["metadata"]["annotations"]


def test_a_node_that_others_change_at_the_same_time_loses_nothing(server: Server) -> None:
    server.conflicts = 2
    mark(server.api, "node1", "FAIL", "XID 79", taint=True)
    assert len(server.node["spec"]["taints"]) == 2
    server.conflicts = 100
    with pytest.raises(ActionError, match="changed by others"):
        clear(server.api, "node1")


def test_a_refusal_says_what_is_missing(server: Server) -> None:
    server.refuse = True
    with pytest.raises(ActionError, match="ClusterRole"):
        mark(server.api, "node1", "PASS", "", taint=True)


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ActionError, match="this is no pod"):
        kubernetes.Api.of_pod()
