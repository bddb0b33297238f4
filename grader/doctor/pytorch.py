"""PyTorch, torchvision, CUDA and the virtual GPU, looked at from a process of their own (`look.py`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from grader.doctor.fact import ROOT, Fact, install, install_torch, note, ok, to_do, wrong
from grader.doctor.gpus import Driver
from grader.doctor.software import not_set_up, set_up

OLDEST = (2, 11)
_SECONDS = 120.0
_UNTIL_THEN = "or grade on the virtual GPU until then: make grade DEVICE=vgpu"


def examine(driver: Driver) -> list[Fact]:
    answers = _look()
    torch = answers.get("torch", {})
    if "version" not in torch:
        return [
            _absent(torch, answers["end"]["text"]),
            note("virtual GPU", "needs PyTorch: look again when it is there"),
        ]
    facts = [
        _version(torch),
        _torchvision(answers.get("torchvision", {})),
        _cuda(torch, answers.get("cuda", {}), driver),
    ]
    return [*facts, _virtual(answers.get("vgpu"), answers["end"]["text"])]


def _look() -> dict[str, dict[str, Any]]:
    """What each line said, and under "end" why there are no more."""
    command = [sys.executable, "-m", "grader.doctor.look"]
    answers: dict[str, dict[str, Any]] = {}
    try:
        done = subprocess.run(command, cwd=str(ROOT), capture_output=True, timeout=_SECONDS, check=False)
        output, errors = done.stdout, done.stderr.decode("utf-8", "replace").strip().splitlines()
        text = f"the process ended with {done.returncode}" + (f": {errors[-1][:200]}" if errors else "")
    except subprocess.TimeoutExpired as error:
        output, text = error.stdout or b"", f"no answer for {_SECONDS:.0f} seconds"
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            answer = json.loads(line)
            answers[answer["what"]] = answer
        except (ValueError, KeyError, TypeError):
            continue
    answers["end"] = {"text": text}
    return answers


def _absent(torch: dict[str, Any], end: str) -> Fact:
    if torch.get("missing") and not_set_up():
        return to_do("PyTorch", "not installed yet", set_up())
    if torch.get("missing"):
        return wrong("PyTorch", "is not installed", set_up("--torch-backend=auto"))
    return wrong("PyTorch", f"does not load: {torch.get('error', end)}", install_torch())


def _version(torch: dict[str, Any]) -> Fact:
    version = torch["version"]
    built = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "without CUDA"
    if _numbers(version) < OLDEST:
        return wrong("PyTorch", f"{version} is too old: the course needs {OLDEST[0]}.{OLDEST[1]}", install_torch())
    return ok("PyTorch", f"{version}, {built}")


def _torchvision(answer: dict[str, Any]) -> Fact:
    if "version" in answer:
        return ok("torchvision", answer["version"])
    if answer.get("missing"):
        return wrong("torchvision", "is not installed", install("torchvision"))
    text = f"does not fit this PyTorch: {answer.get('error', 'its import ended the process')}"
    return wrong("torchvision", text, install_torch())


def _cuda(torch: dict[str, Any], answer: dict[str, Any], driver: Driver) -> Fact:
    if not driver.gpus:
        return ok("CUDA", "not needed without an NVIDIA GPU")
    if not torch["cuda"]:
        text = "this PyTorch was built without CUDA, so it cannot use the GPU that the driver offers"
        return wrong("CUDA", text, install_torch(), _UNTIL_THEN)
    if driver.cuda is not None and _numbers(torch["cuda"])[0] > driver.cuda[0]:
        text = (
            f"PyTorch was built for CUDA {torch['cuda']}, and the driver knows CUDA "
            f"{driver.cuda[0]}.{driver.cuda[1]} at most: take a PyTorch for the driver, or a newer driver"
        )
        return wrong("CUDA", text, install_torch(), _UNTIL_THEN)
    if not answer.get("available"):
        why = answer.get("why") or "torch.cuda.is_available() is False"
        return wrong("CUDA", f"PyTorch cannot use the GPU: {why}", "nvidia-smi", install_torch(), _UNTIL_THEN)
    if not answer.get("right"):
        return wrong("CUDA", "a product on the GPU came out wrong", "nvidia-smi -q -d ECC", _UNTIL_THEN)
    return ok("CUDA", f"{torch['cuda']} works: a product on the GPU came out right")


def _virtual(answer: Any, end: str) -> Fact:
    if answer is None:
        return wrong("virtual GPU", f"could not be tried: {end}", install_torch())
    if "error" in answer:
        return wrong("virtual GPU", f"does not work: {answer['error']}", "git checkout -- vgpu", install_torch())
    if not answer["right"]:
        return wrong("virtual GPU", "a product came out wrong", "git checkout -- vgpu", install_torch())
    return ok("virtual GPU", f"works: a simulated {answer['name']}, numbers are computed for real")


def _numbers(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
