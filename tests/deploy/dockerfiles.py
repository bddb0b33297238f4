"""Dockerfiles for the container exercise: the reference, mistakes that cost one check, styles that cost none."""

from __future__ import annotations

from tests.deploy.conftest import ROOT

REFERENCE = (ROOT / "solutions" / "container_exercise" / "Dockerfile").read_text(encoding="utf-8")

# (a line of the reference, what stands there instead, the one check that must fail)
MISTAKES = {
    "no GPU base": ("nvidia/cuda:13.2.0-base-ubuntu24.04", "ubuntu:24.04", "gpu_base_image"),
    "a tag that says nothing": ("nvidia/cuda:13.2.0-base-ubuntu24.04", "nvidia/cuda:latest", "gpu_base_image"),
    "no Python": ("python3 python3-venv", "curl", "python_installed"),
    "wheels of another CUDA": ("whl/cu132", "whl/cu126", "pytorch_pinned"),
    "wheels for the CPU": ("whl/cu132", "whl/cpu", "pytorch_pinned"),
    "wheels of nobody knows which CUDA": (
        "\\\n        --extra-index-url https://download.pytorch.org/whl/cu132 ",
        "",
        "pytorch_pinned",
    ),
    "unpinned packages": ("--requirement requirements.txt", "torch torchvision", "pytorch_pinned"),
    "everything copied first": ("COPY requirements.txt .", "COPY train.py requirements.txt ./", "packages_below"),
    "no working directory": ("WORKDIR /app", "", "directories"),
    "no place for models": ("/models /data\nCOPY", "/data\nCOPY", "directories"),
    "held back output": ("PYTHONUNBUFFERED=1", "PYTHONUTF8=1", "environment"),
    "hidden GPUs": ("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=-1", "environment"),
    "no command": ('CMD ["python", "train.py"]', "", "command"),
    "a command in a shell": ('CMD ["python", "train.py"]', "CMD python train.py", "command"),
    "another program": ('"train.py"]', '"-m", "http.server"]', "command"),
    "no user": ("USER 10001", "", "user"),
    "root again": ("USER 10001", "USER 10001\nUSER root", "user"),
    "a token in the environment": ("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=0 WANDB_API_KEY=12ab", "secrets"),
    "a password in an address": ("COPY train.py .", "COPY train.py .\nRUN curl https://me:pw@host/data", "secrets"),
    "a file of credentials": ("COPY train.py .", "COPY train.py .\nCOPY .env .", "secrets"),
    "compilers": ("13.2.0-base", "13.2.0-devel", "left_over"),
    "apt's lists": (" \\\n    && rm -rf /var/lib/apt/lists/*", "", "left_over"),
    "pip's cache": ("--no-cache-dir ", "", "left_over"),
}

# Other ways to write it that are as right.
STYLES = {
    "the reference": REFERENCE,
    "another registry, a variable, lower case": REFERENCE.replace(
        "FROM nvidia/cuda:13.2.0-base-ubuntu24.04",
        "ARG CUDA=13.0.1\nfrom nvcr.io/nvidia/cuda:${CUDA}-cudnn-runtime-ubuntu24.04",
    ),
    "versions that name the CUDA": REFERENCE.replace(
        "--requirement requirements.txt", "torch==2.13.0+cu130 torchvision==0.28.0+cu130"
    ),
    "a cache that is mounted": REFERENCE.replace(
        "RUN python3 -m venv", "RUN --mount=type=cache,target=/root/.cache python3 -m venv"
    ).replace("--no-cache-dir ", ""),
    "two stages": """
FROM nvidia/cuda:13.2.0-devel-ubuntu24.04 AS build
RUN apt-get update && apt-get install -y python3-venv
COPY requirements.txt /tmp/
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install -r /tmp/requirements.txt \\
    --index-url https://download.pytorch.org/whl/cu130

FROM nvidia/cuda:13.2.0-base-ubuntu24.04
RUN apt-get update && apt-get install -y python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/venv /opt/venv
ENV PYTHONUNBUFFERED 1
WORKDIR /app
RUN mkdir -p /models && chown 1000 /models
COPY ["train.py", "./"]
USER 1000:1000
ENTRYPOINT ["/opt/venv/bin/python"]
CMD ["train.py"]
""",
    "NVIDIA's PyTorch": """
FROM nvcr.io/nvidia/pytorch:25.09-py3
ENV PYTHONUNBUFFERED=1
WORKDIR /app
RUN pip install --no-cache-dir safetensors==0.8.0 && mkdir /models && chown 1000 /models
COPY train.py .
USER 1000
CMD ["python", "train.py"]
""",
}
