"""Given: the checklist of your runs, from what they left on the volume and what the engine says of the image.

Run outside the container: python -m labs.container_exercise.checklist --image gpu-training:v1.0 --models models
Writes `results/checklist.json`, which is graded. It says how the runs were made: on which engine, on a real or a
virtual GPU, on which base image. Without an engine, `--engine none` records the runs alone: then no image was built,
and none is paid for.
"""

import argparse
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit import LabError
from labkit.files import atomic_write

RESULTS = Path(__file__).parent / "results"
NO_ENGINE = "none"
STAND_IN_LABEL = "org.gpulabs.stand-in"
"""A base image that was made to replace NVIDIA's carries it, and so does every image that is built on it."""
BUDGET_BYTES = 4_000_000_000
"""Of what a machine downloads to run the image: its layers, compressed."""
LEAST_UTILIZATION = 0.7
MOST_SECONDS = 120.0
_GPU_RUNS = ("run.json", "run-virtual.json")
"""A real GPU's first: a virtual one counts only if there is no other."""
_CPU_RUN = "run-cpu.json"
_CHUNK_BYTES = 1 << 20
_DOCKERS_LEVEL = 6
"""Of gzip, as `docker push` compresses layers."""

Run = dict[str, Any]


class ChecklistError(LabError):
    """There is no run, or no image, to make a checklist of."""


def read_runs(models: Path) -> list[Run]:
    """The run on the GPU and the run on the CPU, as far as both were made."""
    names = [*[name for name in _GPU_RUNS if (models / name).exists()][:1], _CPU_RUN]
    runs = [read_run(models, name) for name in names if (models / name).exists()]
    if not runs:
        raise ChecklistError(
            f"{models} has neither run.json nor run-virtual.json nor run-cpu.json: "
            f"run the container with -v $PWD/{models}:/models"
        )
    return runs


def read_run(models: Path, name: str) -> Run:
    """What train.py wrote, and whether the models that it names are really on the volume."""
    path = models / name
    try:
        run: Run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChecklistError(f"{path} cannot be read ({error}): run the container again") from None
    saved = run.get("models") or []
    on_volume = bool(saved) and all(_sha256(models / str(model["file"])) == model["sha256"] for model in saved)
    return {**run, "models_on_volume": on_volume}


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except PermissionError:
        raise ChecklistError(f"{path} may not be read by you: chmod a+r it, or run the checklist with sudo") from None


def read_image(engine: str, image: str) -> dict[str, Any]:
    """What the engine says of the image, and how large it is: unpacked, and compressed as a registry keeps it."""
    details = _inspect(engine, image)
    config = details.get("Config") or {}
    return {
        "name": image,
        "id": details["Id"],
        "user": config.get("User") or "",
        "command": [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())],
        "stand_in": (config.get("Labels") or {}).get(STAND_IN_LABEL),
        "unpacked_bytes": details["Size"],
        "compressed_bytes": compressed_bytes(engine, image),
    }


def _inspect(engine: str, image: str) -> dict[str, Any]:
    try:
        done = subprocess.run([engine, "image", "inspect", image], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ChecklistError(f"{engine} cannot be started ({error}): name yours with --engine") from None
    if done.returncode != 0:
        raise ChecklistError(f"{engine} has no image {image}: {done.stderr.strip()}")
    details: dict[str, Any] = json.loads(done.stdout)[0]
    return details


def compressed_bytes(engine: str, image: str) -> int:
    """The image through gzip, without keeping a copy: about what a registry would say."""
    squeeze = zlib.compressobj(_DOCKERS_LEVEL, wbits=31)
    total = 0
    with subprocess.Popen([engine, "image", "save", image], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        while chunk := saving.stdout.read(_CHUNK_BYTES):
            total += len(squeeze.compress(chunk))
    if saving.returncode != 0:
        raise ChecklistError(f"{engine} could not save {image}")
    return total + len(squeeze.flush())


def recorded(engine: str, note: str) -> dict[str, Any]:
    """How and where the checklist was written."""
    version = None if engine == NO_ENGINE else _printed([engine, "--version"])
    return {
        "engine": version,
        "system": f"{platform.system()} {platform.machine()}",
        "gpus": (_printed(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]) or "").splitlines(),
        "note": note,
    }


def _printed(command: list[str]) -> str | None:
    """What a program prints; None if it is not there, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def speedup(runs: Sequence[Run]) -> float | None:
    """How many times as long an epoch takes on the CPU; None unless both were timed with the same options."""
    gpu, cpu = _on("cuda", runs), _on("cpu", runs)
    if gpu is None or cpu is None or not all(run.get("epoch_seconds") for run in (gpu, cpu)):
        return None
    same = all(gpu.get(name) == cpu.get(name) for name in ("batch_size", "amp", "images"))
    return float(cpu["epoch_seconds"] / gpu["epoch_seconds"]) if same else None


def _on(device: str, runs: Sequence[Run]) -> Run | None:
    return next((run for run in runs if str(run.get("device")).startswith(device)), None)


def rows(runs: Sequence[Run], image: dict[str, Any] | None) -> list[tuple[str, bool]]:
    """The success criteria, and whether these runs meet them."""
    gpu = _on("cuda", runs) or {}
    busy, seconds, faster = gpu.get("utilization_ratio"), gpu.get("seconds"), speedup(runs)
    size = image["compressed_bytes"] if image else None
    kind = "virtual" if gpu.get("simulated") else "real"
    return [
        (f"the container sees a {kind} GPU", bool(image and gpu.get("cuda_available"))),
        (f"training ran on the {kind} GPU", gpu.get("parameter_devices") == ["cuda:0"]),
        (f"utilization above {LEAST_UTILIZATION:.0%}: {busy}", busy is not None and busy > LEAST_UTILIZATION),
        (f"under {MOST_SECONDS:.0f} s: {seconds}", seconds is not None and seconds < MOST_SECONDS),
        ("the models are on the volume", all(run["models_on_volume"] for run in runs)),
        ("no errors, no warnings", not any(run["errors"] or run["warnings"] for run in runs)),
        (
            f"below {BUDGET_BYTES / 1e9:.0f} GB compressed: {size / 1e9 if size else 'no image'}",
            size is not None and size < BUDGET_BYTES,
        ),
        (f"an epoch timed on GPU and CPU, speedup: {faster}", faster is not None),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write results/checklist.json.")
    parser.add_argument("--image", metavar="NAME", help="the image that was run; not needed with --engine none")
    parser.add_argument(
        "--models", type=Path, default=Path("models"), metavar="DIR", help="what was mounted at /models"
    )
    parser.add_argument(
        "--engine",
        default="docker" if shutil.which("docker") else "podman",
        metavar="PROGRAM",
        help=f"docker, podman or nerdctl; '{NO_ENGINE}' if no image was built",
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="what else a reader of the record must know")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="results folder")
    options = parser.parse_args(argv)
    if (options.engine == NO_ENGINE) == bool(options.image):
        parser.error(f"name the image with --image, or say --engine {NO_ENGINE}")
    try:
        runs = read_runs(options.models)
        image = read_image(options.engine, options.image) if options.image else None
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    provenance = {name: runs[0][name] for name in ("device_name", "simulated", "torch", "cuda")}
    document = {
        "schema": 2,
        "provenance": {**provenance, "recorded": recorded(options.engine, options.note)},
        "image": image,
        "results": runs,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.out / "checklist.json") as temporary:
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for text, met in rows(runs, image):
        print(f"[{'x' if met else ' '}] {text}")
    if runs[0]["simulated"]:
        print("The GPU was a virtual one: its times are modelled, and nobody has seen the container use a real GPU.")
    if image is None:
        print("There was no engine: no image was built, and the programs ran outside of a container.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
