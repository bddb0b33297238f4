"""The Kubernetes manifests, rendered by kubectl and compared with Kubernetes' own schemas and their own promises."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.job import settings as job_settings
from tests.deploy.conftest import DEPLOY, KUBERNETES, ROOT, Manifest, Render, overlays

TRAININGS = [folder for folder in overlays() if folder.split("/")[0] in ("pytorchjob", "trainjob")]
SETTINGS = {
    "batch-size-64": ("BATCH_SIZE", "64"),
    "batch-size-256": ("BATCH_SIZE", "256"),
    "batch-size-512": ("BATCH_SIZE", "512"),
    "dataset-mnist": ("DATASET_TYPE", "mnist"),
    "precision-float32": ("MIXED_PRECISION", "false"),
    "precision-float16": ("MIXED_PRECISION", "float16"),
    "precision-bfloat16": ("MIXED_PRECISION", "bfloat16"),
}


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping inside a manifest."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(item)


def pod_specs(manifests: list[Manifest]) -> list[dict[str, Any]]:
    return [part for part in walk(manifests) if "containers" in part and "volumes" in part]


def settings(manifests: list[Manifest]) -> dict[str, str]:
    (config,) = [
        manifest for manifest in of_kind(manifests, "ConfigMap") if manifest["metadata"]["name"].startswith("training")
    ]
    return dict(config["data"])


@pytest.mark.parametrize("folder", overlays())
def test_kubernetes_schemas_accept_it(render: Render, folder: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate brings the schemas")
    manifests = render(folder)
    assert manifests
    known = [manifest for manifest in manifests if not _is_custom(manifest)]
    for manifest in known:
        # Claims of devices are as they are since 1.34.
        for version in ("1.30", validate.latest_version()) if not folder.endswith("-dra") else ("1.34",):
            validate.validate(manifest, version, strict=True)


def _is_custom(manifest: Manifest) -> bool:
    group = manifest["apiVersion"].split("/")[0]
    return group in (
        "kubeflow.org",
        "trainer.kubeflow.org",
        "monitoring.coreos.com",
        "kueue.x-k8s.io",
        "resource.nvidia.com",
    )


@pytest.mark.parametrize("folder", [folder for folder in overlays() if not folder.startswith("storage/")])
def test_every_name_that_a_pod_asks_for_exists(render: Render, folder: str) -> None:
    volumes = {manifest["metadata"]["name"] for manifest in of_kind(render("storage/shared"), "PersistentVolumeClaim")}
    manifests = render(folder)
    configs = {manifest["metadata"]["name"]: manifest.get("data", {}) for manifest in of_kind(manifests, "ConfigMap")}
    for part in walk(manifests):
        if "claimName" in part:
            assert part["claimName"] in volumes
        for reference in ("configMapRef", "configMapKeyRef", "configMap"):
            if reference in part:
                assert part[reference]["name"] in configs
        if "configMapKeyRef" in part:
            assert part["configMapKeyRef"]["key"] in configs[part["configMapKeyRef"]["name"]]
    for pod in pod_specs(manifests):
        volume_names = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volume_names
    for job in of_kind(manifests, "TrainJob"):
        runtimes = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "TrainingRuntime")}
        assert job["spec"]["runtimeRef"]["name"] in runtimes


# Agents of a node ask its driver, and read its files.
_AGENTS = ("monitoring", "fleet")


@pytest.mark.parametrize("folder", [folder for folder in overlays() if folder not in _AGENTS])
def test_our_containers_run_as_a_user_who_may_do_nothing_special(render: Render, folder: str) -> None:
    for pod in pod_specs(render(folder)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            may = container["securityContext"]
            assert may["allowPrivilegeEscalation"] is False
            assert may["readOnlyRootFilesystem"] is True
            assert may["capabilities"]["drop"] == ["ALL"]
            assert not may["capabilities"].get("add")


@pytest.mark.parametrize("folder", TRAININGS)
def test_a_job_asks_for_as_many_gpus_as_it_starts_processes(render: Render, folder: str) -> None:
    manifests = render(folder)
    resources = [part for part in walk(manifests) if "limits" in part]
    assert resources
    for resource in resources:
        # Kubernetes does not share GPUs: request and limit must be the same.
        assert resource["requests"]["nvidia.com/gpu"] == resource["limits"]["nvidia.com/gpu"]
    for job in of_kind(manifests, "TrainJob"):
        trainer = job["spec"]["trainer"]
        assert str(trainer["numProcPerNode"]) == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    for job in of_kind(manifests, "PyTorchJob"):
        assert job["spec"].get("nprocPerNode") == "gpu" or job["spec"]["elasticPolicy"]["nProcPerNode"] == 1
    # The device plugin decides which GPU a container sees; the variable would hide it again.
    assert all(part.get("name") != "CUDA_VISIBLE_DEVICES" for part in walk(manifests))


@pytest.mark.parametrize(
    ("folder", "gpus"),
    [
        *((f"{kind}/one-gpu", 1) for kind in ("pytorchjob", "trainjob")),
        *((f"{kind}/two-gpus", 2) for kind in ("pytorchjob", "trainjob")),
        *((f"{kind}/four-gpus-one-node", 4) for kind in ("pytorchjob", "trainjob")),
        ("pytorchjob/elastic", 2),
    ],
)
def test_an_overlay_has_the_gpus_of_its_name(render: Render, folder: str, gpus: int) -> None:
    manifests = render(folder)
    total = 0
    for job in of_kind(manifests, "PyTorchJob"):
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            (container,) = replica["template"]["spec"]["containers"]
            assert container["name"] == "pytorch", "the operator looks for this name"
            total += replica["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    for job in of_kind(manifests, "TrainJob"):
        total += job["spec"]["trainer"]["numNodes"] * job["spec"]["trainer"]["numProcPerNode"]
    assert total == gpus


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("overlay", SETTINGS)
def test_a_settings_overlay_changes_its_setting_and_no_other(render: Render, kind: str, overlay: str) -> None:
    name, value = SETTINGS[overlay]
    expected = {**settings(render(f"{kind}/two-gpus")), name: value}
    assert settings(render(f"{kind}/{overlay}")) == expected


def test_jobs_that_can_be_applied_together_have_different_names(render: Render) -> None:
    jobs = [
        (manifest["kind"], manifest["metadata"]["name"])
        for folder in overlays()
        if not folder.endswith("/base")
        for manifest in render(folder)
        if manifest["kind"] in ("Job", "PyTorchJob", "TrainJob")
    ]
    assert len(set(jobs)) == len(jobs)


@pytest.mark.parametrize(("folder", "name"), [("storage/data", "cifar10"), ("storage/data-mnist", "mnist")])
def test_the_data_volume_is_filled_by_the_command_that_students_have(render: Render, folder: str, name: str) -> None:
    (pod,) = pod_specs(render(folder))
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "grader.cli"]
    command, download, dataset, to, where = container["args"]
    assert (command, download, dataset, to) == ("data", "download", name, "--to")
    assert where in {mount["mountPath"] for mount in container["volumeMounts"]}
    help_text = subprocess.run(
        [sys.executable, *container["command"][1:], command, download, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert to in help_text
    assert name in help_text


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_every_default_setting_reaches_the_job(render: Render, kind: str) -> None:
    manifests = render(f"{kind}/two-gpus")
    for job in of_kind(manifests, "TrainJob"):
        named = {entry["name"] for entry in job["spec"]["trainer"]["env"]}
        assert settings(manifests).keys() <= named
    job_settings.read([], settings(manifests))  # accepts each of them


@pytest.mark.parametrize("folder", ["acceptance/one-gpu", "acceptance/eight-gpus", "acceptance/several-nodes"])
def test_a_fault_is_never_tried_away(render: Render, folder: str) -> None:
    manifests = render(folder)
    for job in of_kind(manifests, "Job"):
        assert job["spec"]["backoffLimit"] == 0
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    for runtime in of_kind(manifests, "TrainingRuntime"):
        assert "failurePolicy" not in runtime["spec"]["template"]["spec"]
    for job in of_kind(manifests, "TrainJob"):
        assert "--max-restarts=0" in job["spec"]["trainer"]["args"]


def test_one_line_sets_the_image_of_every_container(render: Render, tmp_path: Any) -> None:
    """The documented way, `images:` in a kustomization of one's own, reaches the image of a TrainJob too."""
    own = KUBERNETES / "trainjob" / "two-gpus"
    folder = tmp_path / "mine"
    folder.mkdir()
    relative = "../" * len(folder.parts[1:]) + str(own).lstrip("/")
    (folder / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{relative}]\nimages: [{{name: gpu-computing-labs, newName: ghcr.io/me/labs, newTag: v1}}]\n"
    )
    images = {part["image"] for part in walk(render(str(folder))) if "image" in part}
    assert images == {"ghcr.io/me/labs:v1"}


@pytest.mark.parametrize("name", ["kubernetes.md", "kubernetes-production.md", "kubernetes-example-08.md"])
def test_a_page_names_only_folders_that_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = set(re.findall(r"deploy/kubernetes/([a-z0-9/.-]*[a-z0-9])(?![\w/-]*\$)", page))
    assert named
    for folder in named:
        assert (KUBERNETES / folder).exists(), folder
    assert (DEPLOY / "README.md").is_file()
