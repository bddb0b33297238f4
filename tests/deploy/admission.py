"""What a cluster's admission says of a pod: the levels of Pod Security, as the server enforces them on a namespace.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (v1.34). Controls of Windows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEVELS = ("privileged", "baseline", "restricted")
ENFORCE = "pod-security.kubernetes.io/enforce"
BASELINE_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
RESTRICTED_VOLUMES = frozenset({
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "image",
})  # fmt: skip
SAFE_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
})  # fmt: skip
REFERENCES = {
    "priorityClassName": "PriorityClass", "runtimeClassName": "RuntimeClass", "serviceAccountName": "ServiceAccount",
    "persistentVolumeClaim": "PersistentVolumeClaim", "resourceClaimTemplateName": "ResourceClaimTemplate",
    "configMapKeyRef": "ConfigMap", "configMap": "ConfigMap", "secretKeyRef": "Secret",
}  # fmt: skip
Pod = dict[str, Any]


def containers(pod: Pod) -> list[dict[str, Any]]:
    """All of a pod, those that run before it included."""
    return [one for kind in ("initContainers", "containers", "ephemeralContainers") for one in pod.get(kind, [])]


def violations(pod: Pod, level: str) -> list[str]:
    """Why a namespace of that level refuses the pod; nothing if it takes it."""
    if level == "privileged":
        return []
    found = list(_baseline(pod))
    return found + list(_restricted(pod)) if level == "restricted" else found


def _contexts(pod: Pod) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "pod", pod.get("securityContext") or {}
    for container in containers(pod):
        yield container["name"], container.get("securityContext") or {}


def _baseline(pod: Pod) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    yield from (f"hostPath volume {volume['name']}" for volume in pod.get("volumes", []) if "hostPath" in volume)
    sysctls = {sysctl["name"] for sysctl in (pod.get("securityContext") or {}).get("sysctls", [])}
    yield from (f"sysctl {name}" for name in sysctls - SAFE_SYSCTLS)
    for container in containers(pod):
        name, context = container["name"], container.get("securityContext") or {}
        if context.get("privileged"):
            yield f"{name} is privileged"
        added = set((context.get("capabilities") or {}).get("add", []))
        yield from (f"{name} adds {capability}" for capability in sorted(added - BASELINE_CAPABILITIES))
        yield from (
            f"{name} takes host port {port['hostPort']}" for port in container.get("ports", []) if port.get("hostPort")
        )
        if context.get("procMount", "Default") != "Default":
            yield f"{name} mounts /proc whole"
    for name, context in _contexts(pod):
        if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f"{name} has no seccomp profile"
        if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
            yield f"{name} has no AppArmor profile"
        options = context.get("seLinuxOptions") or {}
        kinds = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
        if options.get("type", "") not in kinds or options.get("user") or options.get("role"):
            yield f"{name} has SELinux options of its own"


def _restricted(pod: Pod) -> Iterator[str]:
    own = pod.get("securityContext") or {}
    for volume in pod.get("volumes", []):
        yield from (f"volume of kind {kind}" for kind in set(volume) - {"name"} - RESTRICTED_VOLUMES)
    for container in containers(pod):
        name, context = container["name"], container.get("securityContext") or {}
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may gain privileges"
        if context.get("runAsNonRoot", own.get("runAsNonRoot")) is not True:
            yield f"{name} may run as root"
        if context.get("runAsUser", own.get("runAsUser")) == 0:
            yield f"{name} runs as root"
        profile = context.get("seccompProfile") or own.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} names no seccomp profile"
        capabilities = context.get("capabilities") or {}
        if "ALL" not in capabilities.get("drop", []):
            yield f"{name} keeps capabilities"
        yield from (f"{name} adds {one}" for one in set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"})


def useless_capabilities(pod: Pod) -> list[str]:
    """Capabilities that are added and never reach the process: Kubernetes sets no ambient ones, so that a program of
    another user than root has none of them (kubernetes/kubernetes issue 56374)."""
    own = pod.get("securityContext") or {}
    useless = []
    for container in containers(pod):
        context = container.get("securityContext") or {}
        user = context.get("runAsUser", own.get("runAsUser", 0))
        added = (context.get("capabilities") or {}).get("add", [])
        useless += [f"{container['name']}: {capability} for user {user}" for capability in added if user]
    return useless


def without_quota(pod: Pod, quotas: list[dict[str, Any]]) -> list[str]:
    """System classes that a cluster takes only in a namespace with a quota for them (kubernetes.io, Limit Priority
    Class consumption by default; GKE is set up so, kubernetes/test-infra pull request 35233)."""
    allowed: set[str] = set()
    for quota in quotas:
        for scope in quota["spec"].get("scopeSelector", {}).get("matchExpressions", []):
            if (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In"):
                allowed |= set(scope["values"])
    name = pod.get("priorityClassName", "")
    return [name] if name.startswith("system-") and name not in allowed else []


def references(part: Any) -> Iterator[tuple[str, str]]:
    """Kind and name of what a pod, or a job, needs to be there: without it the pod is refused, or never starts."""
    if isinstance(part, dict):
        for key, kind in REFERENCES.items():
            value = part.get(key)
            name = value.get("name") or value.get("claimName") if isinstance(value, dict) else value
            if isinstance(name, str) and not (kind == "PriorityClass" and name.startswith("system-")):
                yield kind, name
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def pods(manifest: dict[str, Any]) -> Iterator[Pod]:
    """Every pod that a manifest leads to: what has containers, wherever it is."""
    yield from _pods(manifest)


def _pods(part: Any) -> Iterator[Pod]:
    if isinstance(part, dict):
        if isinstance(part.get("containers"), list):
            yield part
        for inner in part.values():
            yield from _pods(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _pods(inner)
