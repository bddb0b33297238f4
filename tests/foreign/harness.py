"""Runs programs of public repositories unchanged on the virtual GPU, from a local mirror.

    FOREIGN_MIRROR=/path/to/mirror python -m tests.foreign.harness [NAME ...] [--out FILE]

`programs.toml`, and `packages.toml` for libraries from PyPI, say for each: repository, commit, folder, command, tiny
data to be made, how it should end. A program may be changed in nothing but its arguments. What is checked: it ends by
itself; what it prints holds no NaN; where its entry names `numbers`, these are the CPU's, when the same program is run
there. Not here: the programs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.foreign.data import MAKERS
from tests.foreign.mirror import NotMirrored, mirror, unpack

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_FILES = ("programs.toml", "packages.toml")
_NOT_A_NUMBER = re.compile(r"(?<![\w.])nan(?![\w.])", re.IGNORECASE)
_NUMBER = r"(-?\d+\.\d+(?:e[-+]?\d+)?)"


@dataclass(frozen=True)
class Program:
    """One entry of `programs.toml`."""

    name: str
    repository: str
    commit: str = ""
    """Empty for what is not unpacked from the mirror but installed, see `package`."""
    package: str = ""
    """Comes installed, as this package; its `script` uses it."""
    command: list[str] = field(default_factory=lambda: ["use.py"])
    folder: str = "."
    """Where it is started, within the repository."""
    script: str = ""
    """A program that uses the repository's library, where that has none itself; it is started as `use.py`."""
    takes: list[str] = field(default_factory=list)
    """Folders of the repository that it needs; all of it where none are named."""
    gpu: str = "A100-80GB"
    gpus: int = 1
    ranks: int = 0
    """Started by torchrun with so many ranks, where it is not 0."""
    data: dict[str, str] = field(default_factory=dict)
    """Maker of `data.py` by the path, within the repository, that it fills."""
    needs: list[str] = field(default_factory=list)
    """Packages that must be there in addition to PyTorch."""
    newest_torch: str = ""
    """The newest PyTorch that it runs with, as "2.11"; empty for all."""
    refused: str = ""
    """What the virtual GPU refuses it by, where it does."""
    numbers: str = ""
    """What stands before numbers that have to be those of a run on the CPU."""
    on_cpu: list[str] = field(default_factory=list)
    """Arguments for that run, instead of hiding the GPU."""
    seconds: float = 240.0


@dataclass(frozen=True)
class Result:
    """How a program ended: "passed", "refused", "failed" or "skipped", and why."""

    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    simulated: str = ""


def programs() -> list[Program]:
    """All entries. Raises ValueError for one that is not as it should be."""
    tables = [tomllib.loads((HERE / name).read_text(encoding="utf-8")) for name in _FILES]
    result: list[Program] = []
    for repository in (entry for table in tables for entry in table["repository"]):
        shared = {key: value for key, value in repository.items() if key not in ("name", "program")}
        for entry in repository["program"]:
            values: dict[str, Any] = {"repository": repository["name"], **shared, **entry}
            try:
                program = Program(**values)
            except TypeError as error:
                raise ValueError(f"{entry.get('name')}: {error}") from error
            if unknown := sorted(set(program.data.values()) - set(MAKERS)):
                raise ValueError(f"{program.name}: data.py makes no {', '.join(unknown)}")
            result.append(program)
    return result


def run(program: Program) -> Result:
    """Run one program in a folder of its own."""
    root = mirror()
    if root is None and not program.package:
        return Result(program.name, "skipped", "there is no mirror: set FOREIGN_MIRROR")
    if missing := [name for name in filter(None, [program.package, *program.needs]) if find_spec(name) is None]:
        return Result(program.name, "skipped", f"needs {', '.join(missing)}")
    if program.newest_torch and _numbers(version("torch")) > _numbers(program.newest_torch):
        return Result(program.name, "skipped", f"needs PyTorch {program.newest_torch} or older")
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        if root is not None and not program.package:
            try:
                unpack(root, program.repository, program.commit, program.takes, Path(folder))
            except NotMirrored as error:
                return Result(program.name, "skipped", str(error))
        for path, maker in program.data.items():
            MAKERS[maker](Path(folder) / path)
        if program.script:
            (Path(folder) / program.folder / "use.py").write_text(program.script, encoding="utf-8")
        return _judge(program, Path(folder))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")[:2]]


def _judge(program: Program, folder: Path) -> Result:
    start = time.monotonic()
    launch = ["torchrun", "--nproc-per-node", str(program.ranks)] if program.ranks else []
    gpu = ["-m", "vgpu", "--gpu", program.gpu, "--gpus", str(max(program.gpus, program.ranks))]
    code, output = _output([*gpu, *launch, *program.command], folder, program)
    seconds = round(time.monotonic() - start, 1)
    simulated = next((line for line in output.splitlines() if line.startswith("[vgpu]") and "simulated" in line), "")
    simulated = simulated.partition("simulated ")[2].partition("; modelled")[0]

    def result(outcome: str, detail: str = "") -> Result:
        return Result(program.name, outcome, detail, seconds, simulated)

    if program.refused:
        said = f"does not support {program.refused}" in output
        return result("refused", program.refused) if said else result("failed", f"not refused: {_end(output)}")
    if code is None:
        return result("failed", f"still running after {program.seconds:g} s: {_end(output)}")
    if code:
        return result("failed", f"exit code {code}: {_end(output)}")
    if not simulated or ": 0 s of virtual time" in simulated:
        return result("failed", "it never used the GPU")
    if _NOT_A_NUMBER.search(output):
        return result("failed", "it printed NaN")
    if program.numbers:
        wrong = _compare(program, folder, output)
        if wrong:
            return result("failed", wrong)
    return result("passed", f"numbers behind {program.numbers!r} are those of the CPU" if program.numbers else "")


def _compare(program: Program, folder: Path, output: str) -> str:
    """What differs from the same program on the CPU; empty where nothing does."""
    code, plain = _output([*program.command, *program.on_cpu], folder, program)
    if code != 0:
        return f"on the CPU: exit code {code}: {_end(plain)}"
    actual, expected = (
        [float(number) for number in re.findall(program.numbers + _NUMBER, text)] for text in (output, plain)
    )
    if not expected or len(actual) != len(expected):
        return f"{len(actual)} numbers behind {program.numbers!r}, {len(expected)} on the CPU"
    for mine, theirs in zip(actual, expected, strict=True):
        if abs(mine - theirs) > 2e-3 + 1e-2 * abs(theirs):
            return f"{mine} behind {program.numbers!r}, {theirs} on the CPU"
    return ""


def _output(arguments: list[str], folder: Path, program: Program) -> tuple[int | None, str]:
    """Exit code (None: it had to be ended) and everything that was printed."""
    # The repository's own packages are found as if it had been installed.
    paths = os.pathsep.join(filter(None, [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {
        "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "MPLBACKEND": "Agg",
        "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder / program.folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=program.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output


def _end(output: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("[vgpu]")]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|Unsupported)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def main() -> int:
    """Run those that are named, or all; returns 1 where one failed."""
    arguments = sys.argv[1:]
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else None
    names = {
        argument for argument in arguments if not argument.startswith("--") and (out is None or argument != str(out))
    }
    results = []
    for program in programs():
        if names and program.name not in names and program.repository not in names:
            continue
        result = run(program)
        results.append(result)
        print(
            f"{result.outcome:8} {program.repository}: {program.name} ({result.seconds:g} s) {result.detail}",
            flush=True,
        )
        if out is not None:
            out.write_text(json.dumps([asdict(entry) for entry in results], indent=1) + "\n", encoding="utf-8")
    counts = {
        name: sum(entry.outcome == name for entry in results) for name in ("passed", "refused", "failed", "skipped")
    }
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
