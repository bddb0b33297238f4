"""How long the labs' programs take a student who has no GPU: `python -m benchmarks.programs [LABS]`.

Each program of the reference, and of each right style that has other code in that lab, is started as the hand-out says,
with nothing but `--out`, in a new interpreter, on the virtual GPU that it chooses by itself. Seconds are from start to
end, one program at a time, with both cores to itself. Those that need an argument or a torchrun are not among them.
All labs and exercises take an hour; the results so far are saved after each.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import load, save
from tests.scenarios.build import Scenario, scenarios

ROOT = Path(__file__).parents[1]
LABS = ("lab1", "lab2", "lab3", "lab4", "lab5", "kernels", "sharding")
AIM = 90.0
LIMIT = 300.0
_BROKEN_ON_PURPOSE = ("ddp_debugging", "oom_fixes.template", "ddp_debugging.template")


def programs(package: Path) -> Iterator[str]:
    """Modules of a lab that have a `main` and can be started."""
    for file in sorted(package.glob("*.py")):
        if file.stem in _BROKEN_ON_PURPOSE:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body):
            yield file.stem


def run(folder: Path, package: str, program: str) -> dict[str, Any]:
    """Start one, and wait for its end."""
    environment = os.environ | {"PYTHONPATH": f"{folder.parent}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", f"{folder.name}.{package}.{program}", "--out", out]
        begun = time.perf_counter()
        try:
            ended = subprocess.run(
                command, cwd=out, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return {"seconds": None, "exit_code": None, "said": f"not within {LIMIT:g} s"}
    result = {"seconds": round(time.perf_counter() - begun, 1), "exit_code": ended.returncode}
    return result if ended.returncode == 0 else result | {"said": ended.stderr.strip().splitlines()[-1:]}


def measure(lab: str) -> dict[str, Any]:
    """Seconds by style and program; a style whose lab is the reference's is left out."""
    digests: set[str] = set()
    results: dict[str, Any] = {}
    for scenario in (None, *scenarios(f"{lab}/variants")):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            folder = Path(name) / "solutions"
            _build(scenario, folder)
            package = next(path for path in folder.iterdir() if path.name.startswith(f"{lab}_"))
            digest = _digest(package)
            if digest in digests:
                continue
            digests.add(digest)
            style = "reference" if scenario is None else scenario.name
            results[style] = {program: run(folder, package.name, program) for program in programs(package)}
            print(lab, style, {key: value["seconds"] for key, value in results[style].items()}, flush=True)
    return results


def _build(scenario: Scenario | None, folder: Path) -> None:
    if scenario is None:
        shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        scenario.build(folder)


def _digest(package: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main(labs: Sequence[str] = LABS) -> Path:
    """Measure the labs and save seconds."""
    before = load()
    results: dict[str, Any] = {}
    for lab in labs:
        results[lab] = measure(lab)
        every = [
            (value["seconds"], value["exit_code"]) for lab in results.values() for style in lab.values()
            for value in style.values()
        ]  # fmt: skip
        file = save(
            "programs",
            {
                "what": "seconds of each lab's programs without a GPU, as they are started, in every right style",
                "load_average": {"before": before, "after": load()},
                "longest_seconds": max(seconds or LIMIT for seconds, _ in every),
                "programs": len(every),
                "longer_than_90_seconds": sum((seconds or LIMIT) > AIM for seconds, _ in every),
                "failed": sum(code != 0 for _, code in every),
                "results": results,
            },
        )
    return file


if __name__ == "__main__":
    print(main(sys.argv[1:] or LABS))
