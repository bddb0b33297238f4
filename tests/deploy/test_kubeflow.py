"""Kubeflow's own models read every job, and write back what they read: no field is unknown to them, none is lost."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.conftest import Manifest, Render, overlays

V1 = [folder for folder in overlays() if folder.startswith("pytorchjob/")]
V2 = [
    folder
    for folder in overlays()
    if folder.startswith(("trainjob/", "production/")) and not folder.startswith("production/cluster/")
] + ["acceptance/several-nodes", "acceptance/several-nodes-rdma"]


def without_empty(value: Any) -> Any:
    """Without what a model does not write back: empty mappings and None."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {})}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("folder", V1)
def test_the_training_operators_models_keep_every_field(render: Render, folder: str) -> None:
    (job,) = [manifest for manifest in render(folder) if manifest["kind"] == "PyTorchJob"]
    assert without_empty(_v1_round_trip(job)) == without_empty(job)


def _v1_round_trip(job: Manifest) -> Any:
    models = pytest.importorskip(
        "kubeflow.training.models", reason="pip install kubeflow-training brings the v1 models"
    )
    from kubernetes.client import ApiClient
    from kubernetes.client import models as plain

    # The client of Kubernetes looks for every model by its name in its own module.
    with pytest.MonkeyPatch.context() as patch:
        for name in dir(models):
            if name.startswith("KubeflowOrgV1"):
                patch.setattr(plain, name, getattr(models, name), raising=False)
        client = ApiClient()
        parsed = client.deserialize(SimpleNamespace(data=json.dumps(job)), "KubeflowOrgV1PyTorchJob")
        return client.sanitize_for_serialization(parsed)


@pytest.mark.parametrize("folder", V2)
def test_the_trainers_models_keep_every_field(render: Render, folder: str) -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api brings the v2 models"
    )
    parsers = {"TrainJob": models.TrainerV1alpha1TrainJob, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}
    kinds = set()
    for manifest in render(folder):
        if (model := parsers.get(manifest["kind"])) is not None:
            kinds.add(manifest["kind"])
            assert without_empty(_round_trip(model, manifest)) == without_empty(manifest)
    assert kinds == set(parsers)


def _round_trip(model: Any, manifest: Manifest) -> Any:
    parsed = model.from_dict(manifest)
    return json.loads(parsed.to_json())


def test_a_misspelled_field_is_noticed(render: Render) -> None:
    """The comparisons have teeth: the models drop what they do not know instead of refusing it."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api brings the v2 models"
    )
    (job,) = [manifest for manifest in render("trainjob/one-gpu") if manifest["kind"] == "TrainJob"]
    wrong = {**job, "spec": {**job["spec"], "trainer": {**job["spec"]["trainer"], "numberOfNodes": 2}}}
    assert without_empty(_round_trip(models.TrainerV1alpha1TrainJob, wrong)) != without_empty(wrong)
    (job,) = [manifest for manifest in render("pytorchjob/one-gpu") if manifest["kind"] == "PyTorchJob"]
    wrong = {**job, "spec": {**job["spec"], "processesPerNode": "gpu"}}
    assert without_empty(_v1_round_trip(wrong)) != without_empty(wrong)
