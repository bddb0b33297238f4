"""Jobs that run programs of this repository: acceptance test, conformance, measurements, a class.

Each is the command that a person would type. In a rehearsal they get the virtual GPU by their search path.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS
from benchmarks.on_a_gpu.job import Finding
from benchmarks.on_a_gpu.results import card_of
from tests.scenarios.build import SCENARIOS, load

if TYPE_CHECKING:
    from benchmarks.on_a_gpu.worker import Tools

_FIRST_RECORD = ("nvidia-h100-80gb-hbm3", RESULTS / "h100.json")
"""The card that was measured before there was this queue, and what was."""
_HOSTILE = '''
import threading as _threading

import torch as _torch


def _hog() -> None:
    """Takes all memory of the GPU, and never stops launching."""
    held = []
    while _torch.cuda.is_available():
        try:
            held.append(_torch.empty(2**30, dtype=_torch.uint8, device="cuda"))
        except RuntimeError:
            held[0][: 2**22].add_(1)


_threading.Thread(target=_hog, daemon=True).start()
'''
"""Appended to a module of the class's hostile student."""
_CLASS_LABS = "1,4"
"""The two labs whose checks measure most."""


def pytest_grade(tools: Tools, *, lab: str | None = None) -> Finding:
    """Grade the reference by the command of the README."""
    report = tools.folder / "grade"
    shutil.rmtree(report, ignore_errors=True)
    arguments = ["--grade", "--submission=solutions", "--device", "cuda", f"--grade-report={report}"]
    tools.command(["-m", "pytest", *arguments, *([f"--lab={lab}"] if lab else [])], accepted=(0, 1, 3))
    grade = json.loads((report / "grade.json").read_text(encoding="utf-8"))
    checks = [check for lab in grade["labs"] for criterion in lab["criteria"] for check in criterion["checks"]]
    details = {
        "score": grade["score"],
        "max_score": grade["max_score"],
        "grading_seconds": grade["seconds"],
        "seed": grade["seed"],
        "isolation": grade["isolation"],
        "not_passed": {
            check["id"]: {"outcome": check["outcome"], "message": check["message"]}
            for check in checks
            if check["outcome"] != "passed"
        },
        "seconds_by_check": {check["id"]: check["seconds"] for check in checks},
    }
    summary = f"{grade['score']} of {grade['max_score']} in {grade['seconds']:.0f} s"
    return Finding(grade["score"] == grade["max_score"], summary, details)


def acceptance(tools: Tools, *, options: Sequence[str] = ()) -> Finding:
    """The acceptance test on the GPUs of this machine; passed only with PASS."""
    report = tools.folder / "acceptance"
    shutil.rmtree(report, ignore_errors=True)
    arguments = ["-m", "cluster.acceptance", "--device", "cuda", "--report", str(report), *options]
    tools.command(arguments, accepted=(0, 1, 3), program=True)
    document = json.loads((report / "cluster_test_report.json").read_text(encoding="utf-8"))
    checks = {
        check["name"]: {"status": check["status"], "evidence": check.get("evidence", "")}
        for check in document["validation"]["checks"]
    }
    counts = Counter(check["status"] for check in checks.values())
    verdict = document["acceptance"]["status"]
    others = [
        f"{name} {check['status']}" for name, check in checks.items() if check["status"] not in ("pass", "skipped")
    ]
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    summary = "; ".join([f"{verdict}: {counts['pass']} of {len(checks)} checks pass{skipped}", *others])
    return Finding(verdict == "PASS", summary, {"checks": checks, "performance": document["performance"]})


def conformance(tools: Tools, *, files: Sequence[str]) -> Finding:
    """The programs in these files of `tests/conformance`, by what CUDA does with them."""
    report = tools.folder / "conformance.json"
    report.unlink(missing_ok=True)
    tools.command(
        ["-m", "pytest", *(f"tests/conformance/{file}" for file in files), "-q", "-p", "no:cacheprovider",
         "--conformance-device", "cuda", f"--conformance-json={report}"],
        accepted=(0, 1), program=True,
    )  # fmt: skip
    document = json.loads(report.read_text(encoding="utf-8"))
    counts = document["counts"]
    others = {
        program["id"]: f"{program['outcome']}: {program['message']}"
        for program in document["programs"]
        if program["outcome"] not in ("passed", "skipped")
    }
    skipped = [program["id"] for program in document["programs"] if program["outcome"] == "skipped"]
    passed = counts.get("passed", 0)
    summary = f"{passed} of {len(document['programs']) - len(skipped)} do, {len(skipped)} need another machine"
    return Finding(not others, summary, {"others": others, "skipped": skipped, "counts": counts})


def record(tools: Tools) -> Finding:
    """The published programs, training steps, host calls and kernels that the virtual GPU is compared with."""
    known = [*tools.known, *_first_record(card_of(tools.device.label))]
    before, out = tools.folder / "known.json", tools.folder / "record.json"
    before.write_text(json.dumps({"entries": known}), encoding="utf-8")
    seconds = str(max(5.0, tools.seconds - 10))
    arguments = ["-m", "benchmarks.measured", "record", str(out), "--seconds", seconds, "--known", str(before)]
    tools.command(arguments, program=True, values=False)
    document = json.loads(out.read_text(encoding="utf-8"))
    have = {(entry["group"], entry["name"]) for entry in known}
    fresh = [
        entry
        for entry in document["entries"]
        if (entry["group"], entry["name"]) not in have and entry.get("error") != "no time was left"
    ]
    draws = [{"group": "random numbers", **draw} for draw in document["draws"]]
    fresh += [draw for draw in draws if (draw["group"], draw["name"]) not in have]
    left = sum(entry.get("error") == "no time was left" for entry in document["entries"])
    return _measured(fresh, left, document["machine"])


def _first_record(card: str) -> list[dict[str, Any]]:
    """What is known of a card from before."""
    if card != _FIRST_RECORD[0]:
        return []
    document = json.loads(_FIRST_RECORD[1].read_text(encoding="utf-8"))
    draws = [{"group": "random numbers", **draw} for draw in document["draws"]]
    return [entry for entry in (*document["entries"], *draws) if "error" not in entry]


def drawn(tools: Tools, *, families: Sequence[str], options: Sequence[str] = ()) -> Finding:
    """Kernels, steps and host calls of shapes that were drawn at random: each visit measures others."""
    before, out = tools.folder / "drawn-known.json", tools.folder / "drawn.json"
    out.unlink(missing_ok=True)
    before.write_text(json.dumps({"schema": 1, "machine": {}, "entries": tools.known}), encoding="utf-8")
    seconds = str(max(5.0, tools.seconds - 10))
    arguments = ["-m", "benchmarks.measured.drawn", str(out), "--seconds", seconds, "--known", str(before)]
    arguments += ["--seed", str(len(tools.known)), "--families", *families, *options]
    # 3: an error has made the GPU unusable for that process; what it has measured is kept, the rest comes next time.
    printed = tools.command(arguments, accepted=(0, 3), program=True, values=False)
    document = json.loads(out.read_text(encoding="utf-8"))
    left = re.search(r"(\d+) left$", printed, re.MULTILINE)
    return _measured(document["entries"], int(left[1]) if left else 1, document["machine"])


def _measured(fresh: Sequence[dict[str, Any]], left: int, machine: dict[str, Any]) -> Finding:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    errors = sum("error" in entry for entry in fresh)
    summary = f"{len(fresh) - errors} measured, {errors} not possible, {left} left"
    entries = [{**entry, "date": date} for entry in fresh]
    return Finding(True, summary, {"entries": entries, "machine": machine}, complete=left <= 0)


def calibration(tools: Tools) -> Finding:
    """What `vgpu calibrate` says of this card and its host."""
    out = tools.folder / "calibration.json"
    tools.command(["-m", "vgpu", "calibrate", "--suggest", "--json", str(out)], program=True, values=False)
    return Finding(True, "written", {"calibration": json.loads(out.read_text(encoding="utf-8"))})


def small_class(tools: Tools) -> Finding:
    """Five students on one GPU, one of them hostile: the four others keep every point."""
    folder, out = tools.folder / "class", tools.folder / "gradebook"
    for path in (folder, out):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True)
    honest = ("honest_right", *(f"style_{number}" for number in range(3)))
    styles = sorted(path for path in (SCENARIOS / "lab1" / "variants").iterdir() if path.is_dir())
    for name, scenario in zip(honest, (SCENARIOS / "exploits" / "honest_right", *styles[:3]), strict=True):
        load(scenario).build(folder / name)
    attacker = load(SCENARIOS / "exploits" / "honest_right").build(folder / "hostile")
    _append(attacker / "lab1_gpu_basics" / "benchmark.py", _HOSTILE)
    command = ["-c", "from grader.cli import app; app()"]  # `gpulabs`, which is not installed everywhere
    arguments = [*command, "class", str(folder), "--out", str(out), "--device", "cuda"]
    tools.command([*arguments, "--lab", _CLASS_LABS, "--seed", "1"], accepted=(0, 3))
    scores = _scores(out / "exports" / "grades.csv")
    full = [name for name in honest if scores.get(name, {}).get("score") == scores.get(name, {}).get("max_score", -1)]
    hostile = scores.get("hostile", {}).get("score") or "none"
    summary = f"{len(full)} of {len(honest)} honest students have every point; points of the hostile one: {hostile}"
    return Finding(len(full) == len(honest), summary, {"scores": scores})


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def _scores(path: Path) -> dict[str, dict[str, str]]:
    """Of each student, the row of the class's table."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}
