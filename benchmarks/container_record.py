"""Records the container exercise's reference without a container daemon and without a GPU.

Builds the reference's image with buildah (chroot isolation), on a small Debian that debootstrap makes and that stands
in for NVIDIA's base image under its name. Runs the image's command on the virtual GPU and a few epochs on the CPU, as
the image's user, and writes the checklist. The label of the stand-in, the engine and the note go into the checklist.

    sudo python -m benchmarks.container_record --data data --work build/container

Needs root, buildah, podman (it describes what buildah built), debootstrap, and MNIST's files below DATA/MNIST/raw.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grader.container.shared.checks.dockerfile import parse
from solutions.container_exercise import checklist

ROOT = Path(__file__).parents[1]
EXERCISE = ROOT / "solutions" / "container_exercise"
IMAGE = "gpu-training:v1.0"
STAND_IN = "Debian 12, made by debootstrap: no CUDA"
BASE_DOCKERFILE = f'FROM scratch\nCOPY root/ /\nLABEL {checklist.STAND_IN_LABEL}="{STAND_IN}"\n'


class Engine:
    """buildah and podman on one store of images in a folder."""

    def __init__(self, work: Path) -> None:
        self._store = ["--root", str(work / "store"), "--runroot", str(work / "run")]
        self._work = work

    def buildah(self, *arguments: str, capture: bool = False) -> str:
        """Run a command of buildah; what it prints, if it is captured."""
        done = subprocess.run(
            ["buildah", *self._store, *arguments], stdout=subprocess.PIPE if capture else None, text=True, check=True
        )
        return done.stdout.strip() if capture else ""

    def podman(self) -> Path:
        """A program that is podman on this store."""
        path = self._work / "podman"
        path.write_text(f'#!/bin/sh\nexec podman {shlex.join(self._store)} "$@"\n')
        path.chmod(0o755)
        return path


def make_base(engine: Engine, work: Path, name: str) -> None:
    """An image under the name of NVIDIA's, of a Debian without anything of NVIDIA in it."""
    context = work / "base"
    if not (context / "root").is_dir():
        context.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(context / "root")], check=True)
    (context / "Dockerfile").write_text(BASE_DOCKERFILE)
    engine.buildah("build", "--isolation=chroot", "--layers", "--tag", f"docker.io/{name}", str(context))


def run_image(engine: Engine, options: argparse.Namespace, models: Path, command: Sequence[str], *extra: str) -> None:
    """A command in a container of the image, as its user, with the two volumes of the hand-out."""
    container = engine.buildah("from", "--pull-never", IMAGE, capture=True)
    volumes = [f"{models}:/models", f"{options.data.resolve()}:/data", f"{ROOT / 'vgpu'}:/course/vgpu:ro"]
    try:
        engine.buildah(
            "run",
            "--isolation=chroot",
            *(f"--volume={volume}" for volume in volumes),
            *extra,
            container,
            "--",
            *command,
        )
    finally:
        engine.buildah("rm", container)


def image_command(podman: Path) -> list[str]:
    """What the image starts."""
    done = subprocess.run([podman, "image", "inspect", IMAGE], capture_output=True, text=True, check=True)
    config: dict[str, Any] = json.loads(done.stdout)[0]["Config"]
    return list(config["Cmd"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds MNIST/raw")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for images, models and the base")
    parser.add_argument("--gpu", default="T4", help="the virtual GPU")
    parser.add_argument("--cpu-epochs", type=int, default=2, help="an epoch is what is compared; two are enough")
    parser.add_argument("--note", default="", help="what else a reader of the record must know")
    parser.add_argument(
        "--build-option", action="append", default=[], metavar="OPTION", help="for buildah, such as --volume=..."
    )
    parser.add_argument("--out", type=Path, default=EXERCISE / "results", metavar="DIR")
    options = parser.parse_args(argv)
    work, models = options.work.resolve(), options.work.resolve() / "models"
    models.mkdir(parents=True, exist_ok=True)
    models.chmod(0o777)
    for old in models.iterdir():
        old.unlink()
    dockerfile = parse((EXERCISE / "Dockerfile").read_text(encoding="utf-8"))
    assert dockerfile is not None
    engine = Engine(work)
    make_base(engine, work, dockerfile.base_image)
    engine.buildah(
        "build", "--isolation=chroot", "--pull-never", "--layers", "--tag", IMAGE, *options.build_option, str(EXERCISE)
    )
    podman = engine.podman()
    python, *command = image_command(podman)
    virtual = [python, "-m", "vgpu", "--gpu", options.gpu, "--shapes-only", *command, "--offline"]
    run_image(engine, options, models, virtual, "--env=PYTHONPATH=/course")
    # The last option counts: as many epochs as a CPU can do.
    on_cpu = [python, *command, "--offline", "--epochs", str(options.cpu_epochs)]
    run_image(engine, options, models, on_cpu, "--env=CUDA_VISIBLE_DEVICES=")
    for suffix in (".pth", ".safetensors"):
        run_image(
            engine, options, models, [python, command[0], "--offline", "--evaluate", f"/models/mnist_cnn-cpu{suffix}"]
        )
    version = engine.buildah("--version", capture=True)
    how = f"built and run by {version}, chroot isolation; podman describes the image. {options.note}".strip()
    arguments = [
        f"--image={IMAGE}",
        f"--engine={podman}",
        f"--models={models}",
        f"--note={how}",
        f"--out={options.out}",
    ]
    return checklist.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
