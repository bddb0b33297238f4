"""Given: the checklist of a run, from what the container left on the volume and what the engine says of the image.

Run outside the container: python -m labs.container_exercise.checklist --image gpu-training:v1.0 --models models
Writes `results/checklist.json`, which is graded.
"""

import argparse
import hashlib
import json
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
BUDGET_BYTES = 4_000_000_000
"""Of what a machine downloads to run the image: its layers, compressed."""
LEAST_UTILIZATION = 0.7
MOST_SECONDS = 120.0
_CHUNK_BYTES = 1 << 20
_DOCKERS_LEVEL = 6
"""Of gzip, as `docker push` compresses layers."""


class ChecklistError(LabError):
    """There is no run, or no image, to make a checklist of."""


def read_run(models: Path) -> dict[str, Any]:
    """What train.py wrote, and whether the model that it speaks of is really on the volume."""
    path = models / "run.json"
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChecklistError(
            f"{path} cannot be read ({error}): run the container with -v $PWD/{models}:/models"
        ) from None
    model = models / str(run.get("model_file"))
    found = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else None
    return {**run, "model_on_volume": found is not None and found == run.get("model_sha256")}


def read_image(engine: str, image: str) -> dict[str, Any]:
    """What the engine says of the image, and how large it is: unpacked, and compressed as a registry keeps it."""
    done = subprocess.run([engine, "image", "inspect", image], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChecklistError(f"{engine} knows no image {image}: {done.stderr.strip()}")
    (found,) = json.loads(done.stdout)
    config = found.get("Config") or {}
    return {
        "image": image,
        "image_id": found["Id"],
        "user": config.get("User", ""),
        "command": [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())],
        "unpacked_bytes": found["Size"],
        "compressed_bytes": compressed_bytes(engine, image),
    }


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


def rows(run: dict[str, Any]) -> list[tuple[str, bool]]:
    """The success criteria, and whether this run meets them."""
    busy, seconds, size = run.get("utilization_ratio"), run.get("seconds"), run["compressed_bytes"]
    return [
        ("the container sees a GPU", bool(run["cuda_available"])),
        ("training ran on the GPU", run.get("parameter_devices") == ["cuda:0"]),
        (f"utilization above {LEAST_UTILIZATION:.0%}: {busy}", busy is not None and busy > LEAST_UTILIZATION),
        (f"under {MOST_SECONDS:.0f} s: {seconds}", seconds is not None and seconds < MOST_SECONDS),
        ("the model is on the volume", bool(run["model_on_volume"])),
        ("no errors, no warnings", not run["errors"] and not run["warnings"]),
        (f"below {BUDGET_BYTES / 1e9:.0f} GB compressed: {size / 1e9:.2f}", size < BUDGET_BYTES),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write results/checklist.json.")
    parser.add_argument("--image", required=True, metavar="NAME", help="the image that was run")
    parser.add_argument(
        "--models", type=Path, default=Path("models"), metavar="DIR", help="what was mounted at /models"
    )
    parser.add_argument("--engine", default="docker" if shutil.which("docker") else "podman", metavar="PROGRAM")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="results folder")
    options = parser.parse_args(argv)
    try:
        run = {**read_run(options.models), **read_image(options.engine, options.image)}
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    provenance = {name: run[name] for name in ("device_name", "simulated", "torch", "cuda")}
    options.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.out / "checklist.json") as temporary:
        document = {"schema": 1, "provenance": provenance, "results": [run]}
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for text, met in rows(run):
        print(f"[{'x' if met else ' '}] {text}")
    if run["simulated"]:
        print("This run was simulated: nobody has seen the container use a GPU.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
