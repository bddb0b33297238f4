"""Labels and taints a node of Kubernetes, through its API, from inside a pod. Standard library only.

The label says the verdict, the taint keeps new pods away (NoSchedule: those that run go on). Both are this
program's own keys: labels and taints of others are left alone.

Source: Kubernetes API, Node v1; https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

import json
import os
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.acceptance.verdict import Outcome
from cluster.fleet.actions import ActionError

KEY = "gpu-labs/acceptance"
"""Of label and taint; the annotations have it as their beginning."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 30
_TRIES = 5
_CONFLICT = 409
_WORDS: dict[Outcome, str] = {
    "PASS": "pass",
    "FAIL": "fail",
    "INCOMPLETE": "incomplete",
    "COULD NOT RUN": "could-not-run",
}


@dataclass(frozen=True)
class Api:
    """Where the API server is, and who asks."""

    url: str
    token: str
    authority: Path | None

    @classmethod
    def of_pod(cls) -> "Api":
        """That of the pod's own service account.

        Raises:
            ActionError: this is no pod, or it has no account.
        """
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ActionError("KUBERNETES_SERVICE_HOST is not set, so this is no pod: leave --kubernetes out")
        try:
            token = (ACCOUNT / "token").read_text(encoding="ascii").strip()
        except OSError as error:
            raise ActionError(f"the pod has no account: {error}; automountServiceAccountToken: true") from error
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", token, ACCOUNT / "ca.crt")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request; the answer.

        Raises:
            ActionError: it was refused, or nobody answers.
        """
        request = urllib.request.Request(  # the API server's own address
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/merge-patch+json"},
        )
        trusted = ssl.create_default_context(cafile=self.authority) if self.authority else None
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS, context=trusted) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == _CONFLICT:
                raise Conflict from error
            hint = "; the ClusterRole must allow get and patch of nodes" if error.code in (401, 403) else ""
            raise ActionError(f"Kubernetes: {method} {path}: {error.code} {error.reason}{hint}") from error
        except OSError as error:
            raise ActionError(f"Kubernetes does not answer at {self.url}: {error}") from error


class Conflict(ActionError):
    """Somebody else changed the node in between: read it again."""


def mark(api: Api, node: str, outcome: Outcome, reason: str, *, taint: bool) -> str:
    """Label the node with the verdict; taint it where that is a failure. What was done, in a line.

    A taint stays until a passed acceptance test takes it off (`clear`), whatever later light checks say.

    Raises:
        ActionError: Kubernetes refused, or does not answer.
    """
    tainted = taint and outcome == "FAIL"
    for _ in range(_TRIES):
        answer = api.call("GET", f"/api/v1/nodes/{node}")
        taints = answer.get("spec", {}).get("taints") or []
        mine = [entry for entry in taints if entry["key"] == KEY]
        change: dict[str, Any] = {
            "metadata": {
                # The version makes the server refuse where somebody else changed the node after it was read.
                "resourceVersion": answer["metadata"]["resourceVersion"],
                "labels": {KEY: "fail" if mine else _WORDS[outcome]},
                "annotations": {
                    f"{KEY}-checked": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    **({} if mine and not reason else {f"{KEY}-reason": reason or None}),
                },
            }
        }
        if tainted and not mine:
            change["spec"] = {"taints": [*taints, {"key": KEY, "value": "fail", "effect": "NoSchedule"}]}
        try:
            api.call("PATCH", f"/api/v1/nodes/{node}", change)
        except Conflict:
            continue
        return f"node {node}: {KEY}={change['metadata']['labels'][KEY]}" + (", tainted" if tainted or mine else "")
    raise ActionError(f"node {node} was changed by others {_TRIES} times in between: try again")


def clear(api: Api, node: str) -> str:
    """Take our taint off, and label the node as passed.

    Raises:
        ActionError: as `mark`.
    """
    for _ in range(_TRIES):
        answer = api.call("GET", f"/api/v1/nodes/{node}")
        taints = [entry for entry in answer.get("spec", {}).get("taints") or [] if entry["key"] != KEY]
        change = {
            "metadata": {
                "resourceVersion": answer["metadata"]["resourceVersion"],
                "labels": {KEY: "pass"},
                "annotations": {f"{KEY}-reason": None},
            },
            "spec": {"taints": taints or None},
        }
        try:
            api.call("PATCH", f"/api/v1/nodes/{node}", change)
        except Conflict:
            continue
        return f"node {node}: {KEY}=pass, not tainted"
    raise ActionError(f"node {node} was changed by others {_TRIES} times in between: try again")
