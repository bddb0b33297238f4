"""Dockerfiles for the container exercise: the reference, mistakes that cost one check, styles that cost none."""

from __future__ import annotations

from tests.deploy.conftest import ROOT

REFERENCE = (ROOT / "solutions" / "container_exercise" / "Dockerfile").read_text(encoding="utf-8")

_TRAINS = 'CMD ["python", "train.py", "--batch-size", "4096", "--epochs", "40"]'

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
    "an index that no installer is told": (
        "\\\n        --extra-index-url https://download.pytorch.org/whl/cu132 ",
        "&& test -n https://download.pytorch.org/whl/cu132 ",
        "pytorch_pinned",
    ),
    "unpinned packages": ("--requirement requirements.txt", "torch torchvision", "pytorch_pinned"),
    "everything copied first": ("COPY requirements.txt .", "COPY train.py requirements.txt ./", "packages_below"),
    "no working directory": ("WORKDIR /app", "", "directories"),
    "no place for models": ("/models /data\nCOPY", "/data\nCOPY", "directories"),
    "held back output": ("PYTHONUNBUFFERED=1", "PYTHONUTF8=1", "environment"),
    "hidden GPUs": ("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=-1", "environment"),
    "no command": (_TRAINS, "", "command"),
    "a command in a shell": (_TRAINS, "CMD python train.py", "command"),
    "another program": (_TRAINS, 'CMD ["python", "-m", "http.server"]', "command"),
    "no user": ("USER 10001", "", "user"),
    "root again": ("USER 10001", "USER 10001\nUSER root", "user"),
    "a token in the environment": ("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=0 WANDB_API_KEY=12ab", "secrets"),
    "a password in an address": ("COPY train.py .", "COPY train.py .\nRUN curl https://me:pw@host/data", "secrets"),
    "a file of credentials": ("COPY train.py .", "COPY train.py .\nCOPY .env .", "secrets"),
    "compilers": ("13.2.0-base", "13.2.0-devel", "left_over"),
    "apt's lists": (" \\\n    && rm -rf /var/lib/apt/lists/*", "", "left_over"),
    "pip's cache": ("--no-cache-dir ", "", "left_over"),
}

_OWNED = "--owner=10001 /models /data"

# Those that look right: an image comes of most of them, and then it does not train, or keeps what it should not.
NEVER_RUN = {
    "printed": "&& echo pip install",
    "behind what never fails": "; true || pip install",
    "behind what comes to its end": "&& true || pip install",
    "behind what always fails": "; false && pip install",
    "behind the end": "; exit 0; pip install",
    "a comment of the shell": "# pip install",
    "behind a condition that is false": "; if false; then pip install",
    "in the other branch": "; if true; then :; else pip install",
    "in a loop that never begins": "; while false; do pip install",
    "in a loop over nothing": "; for each in; do pip install",
    "in a function that nobody calls": "; later() { :; pip install",
    "behind another program in the shell's place": "; exec true; pip install",
    "where the shell only reads": "; set -n; pip install",
    "only pretended": "&& pip install --dry-run",
}
"""What stands for `&& pip install`, so that packages are installed for a reader of the text alone."""
SUBTLE = {
    "models belong to root": (_OWNED, "/models /data", "directories"),
    "models belong to somebody else": (_OWNED, "--owner=1000 /models /data", "directories"),
    "only the data are the user's": (
        "install --directory --owner=10001 /models /data",
        "mkdir /models && install --directory --owner=10001 /data",
        "directories",
    ),
    "made by WORKDIR": ("install --directory --owner=10001 /models /data", "true\nWORKDIR /models", "directories"),
    "owner set after the volume was declared": (
        '--owner=10001 /models /data\nCOPY train.py .\n\nUSER 10001\nVOLUME ["/models", "/data"]',
        '/models /data\nVOLUME ["/models", "/data"]\nRUN chown 10001 /models /data\nCOPY train.py .\n\nUSER 10001',
        "directories",
    ),
    "made by a user who may not": (
        "    && install --directory --owner=10001 /models /data\nCOPY train.py .\n\nUSER 10001",
        "    && true\nCOPY train.py .\n\nUSER 10001\nRUN mkdir /models /data",
        "directories",
    ),
    "group may write, but not this group": (
        "install --directory --owner=10001 /models /data",
        "install --directory --group=500 --mode=775 /models /data",
        "directories",
    ),
    "root's group, for a user with a group of its own": (
        "install --directory --owner=10001 /models /data",
        "mkdir /models /data && chmod g=u /models /data",
        "directories",
    ),
    "a user that nobody made": (
        "RUN useradd --create-home --uid 10001 trainer \\\n    && install --directory --owner=10001 /models /data\n"
        "COPY train.py .\n\nUSER 10001",
        "RUN install --directory --mode=777 /models /data\nCOPY train.py .\n\nUSER trainer",
        "user",
    ),
    "a program that only root may read": ("COPY train.py .", "COPY --chmod=600 train.py .", "user"),
    "packages in root's home": ("pip install --no-cache-dir", "pip install --user --no-cache-dir", "user"),
    "the system's Python, without the packages": ("PATH=/opt/venv/bin:$PATH \\\n    PYTHON", "PYTHON", "command"),
    "that Python by its whole name": (_TRAINS, 'CMD ["/usr/bin/python3", "train.py"]', "command"),
    "a PATH of one folder": ("PATH=/opt/venv/bin:$PATH", "PATH=/opt/venv/bin", "command"),
    "a shell in the JSON form": (_TRAINS, 'CMD ["sh", "-c", "python train.py"]', "command"),
    "one word": (_TRAINS, 'CMD ["python train.py"]', "command"),
    "an option and its value in one word": (_TRAINS, 'CMD ["python", "train.py", "--epochs 50"]', "command"),
    "entry point and command say it twice": (
        _TRAINS,
        'ENTRYPOINT ["python", "train.py"]\nCMD ["python", "train.py"]',
        "command",
    ),
    "a command that trains nothing": (
        _TRAINS,
        'CMD ["python", "train.py", "--evaluate", "/models/mnist_cnn.pth"]',
        "command",
    ),
    "started elsewhere than it lies": (_TRAINS, "WORKDIR /models\n" + _TRAINS, "command"),
    "a signal that nobody hears": (_TRAINS, "STOPSIGNAL SIGKILL\n" + _TRAINS, "command"),
    "a driver without its libraries": (
        "CUDA_VISIBLE_DEVICES=0",
        "CUDA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=graphics",
        "environment",
    ),
    "a version with a star": ("--requirement requirements.txt", "torch==2.15.* torchvision==0.29.*", "pytorch_pinned"),
    "the whole folder mounted for pip": (
        "RUN python3 -m venv /opt/venv",
        "RUN --mount=type=bind,target=/src python3 -m venv /opt/venv",
        "packages_below",
    ),
    "lists deleted a layer too late": ("apt-get update \\\n    && apt-get", "apt-get update\nRUN apt-get", "left_over"),
    "lists deleted before they come": (
        "RUN apt-get update \\\n    && apt-get install --yes --no-install-recommends python3 python3-venv \\\n"
        "    && rm -rf /var/lib/apt/lists/*",
        "RUN rm -rf /var/lib/apt/lists/* && apt-get update \\\n    && apt-get install --yes python3 python3-venv",
        "left_over",
    ),
    "no cache, said below": (
        "--no-cache-dir --no-compile --requirement requirements.txt \\\n"
        "        --extra-index-url https://download.pytorch.org/whl/cu132 \\\n"
        "    && find /opt/venv -name '*.a' -exec rm -f {} +",
        "--requirement requirements.txt --extra-index-url https://download.pytorch.org/whl/cu132\n"
        "ENV PIP_NO_CACHE_DIR=1",
        "left_over",
    ),
    "no cache, said to another installer": (
        "RUN python3 -m venv /opt/venv \\\n    && pip install --no-cache-dir",
        "ENV UV_NO_CACHE=1\nRUN python3 -m venv /opt/venv \\\n    && pip install",
        "left_over",
    ),
    "a key as an argument of the build": ("COPY train.py .", "ARG HF_TOKEN\nCOPY train.py .", "secrets"),
    "a key for one command": ("RUN useradd", "RUN export WANDB_API_KEY=12ab && useradd", "secrets"),
    "a key in base64": (
        "RUN useradd",
        "RUN echo bWFjaGluZSBtZSBwYXNzd29yZCBoZl9hYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM= > /x && useradd",
        "secrets",
    ),
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
    "open to everybody": REFERENCE.replace(
        "install --directory --owner=10001 /models /data", "mkdir -pm 777 /models /data"
    ),
    "root's group, as OpenShift wants it": REFERENCE.replace(
        "useradd --create-home --uid 10001 trainer \\\n    && install --directory --owner=10001 /models /data",
        "mkdir -p /models /data && chgrp -R 0 /models /data && chmod -R g=u /models /data",
    ),
    "a user by its name": REFERENCE.replace(
        "install --directory --owner=10001 /models /data",
        "mkdir /models /data \\\n    && chown trainer:trainer /models /data",
    ).replace("USER 10001", "USER trainer"),
    "the name here, the number there": REFERENCE.replace("--owner=10001 /models", "-o trainer /models"),
    "in the user's hands before it becomes the user": REFERENCE.replace(
        "install --directory --owner=10001 /models /data\nCOPY train.py .\n\nUSER 10001",
        "mkdir /models /data; chown 10001 /models /data\n"
        "USER 10001\nRUN chmod 700 /models\nCOPY --chown=10001 train.py .",
    ),
    "a shell that makes room": REFERENCE.replace(
        _TRAINS, 'CMD ["sh", "-c", "exec python -u train.py --epochs 50 --amp"]'
    ),
    "no options": REFERENCE.replace(_TRAINS, 'CMD ["python", "train.py"]'),
    "other options": REFERENCE.replace(
        _TRAINS, 'CMD ["python", "/app/train.py", "--epochs", "50", "--batch-size=1024", "--amp"]'
    ),
    "a cache that is gone again": REFERENCE.replace("--no-cache-dir ", "").replace(
        "    && find", "    && rm -rf /root/.cache/pip \\\n    && find"
    ),
    "no cache, said above": REFERENCE.replace("--no-cache-dir ", "").replace(
        "RUN python3 -m venv", "ENV PIP_NO_CACHE_DIR=off\nRUN python3 -m venv"
    ),
    "uv's cache, said above": REFERENCE.replace("pip install --no-cache-dir --no-compile", "uv pip install").replace(
        "RUN python3 -m venv", "ENV UV_NO_CACHE=true\nRUN python3 -m venv"
    ),
    "a key that is read where it is mounted": REFERENCE.replace(
        "RUN useradd", 'RUN --mount=type=secret,id=k export HF_TOKEN="$(cat /run/secrets/k)" && useradd'
    ),
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
