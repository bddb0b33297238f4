"""Grades one submission for Classroom 50. Made by `gpulabs export classroom50`.

Classroom 50's runner starts it in the student's checkout. It installs the course from `course.zip` next to it, and
leaves `result.json` and `release-body.md` in the checkout. It ends with 0 where there is a result, which may be no
points; with anything else the runner reports an error, and nobody gets a zero for a fault of the grader. Needs Python
3.11 or newer with venv, and a network.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GPULABS = ["-c", 'from grader.cli import app; app(prog_name="gpulabs")']


def main() -> int:
    checkout = Path.cwd()
    for name in ("result.json", "release-body.md"):
        (checkout / name).unlink(missing_ok=True)  # nothing that a student committed is taken for a result
    with tempfile.TemporaryDirectory(prefix="gpulabs-", dir=os.environ.get("RUNNER_TEMP")) as folder:
        root = Path(folder)
        root.chmod(0o755)  # submissions may run as another user, who must be able to read the interpreter
        with zipfile.ZipFile(HERE / "course.zip") as archive:
            archive.extractall(root / "source")
        allow_namespaces()
        return grade(checkout, root, os.environ.get("GPULABS_PYTHON") or installed(root))


def grade(checkout: Path, root: Path, python: str) -> int:
    settings = json.loads((HERE / "settings.json").read_text(encoding="utf-8"))
    lab = ["--lab", settings["lab"]] if settings["lab"] else []
    seed = ["--seed", str(settings["seed"])] if settings["seed"] is not None else []
    (root / "work").mkdir()

    # A course without a command of its own is graded by the engine's commands.
    course = ["--course", str(root / "source" / settings["course"])] if settings["course"] else []
    book = ["-m", "gradebook", *course] if course else GPULABS
    grading = ["-m", "gradebox", "grade", *course] if course else [*GPULABS, "grade"]

    def run(module: list[str], *arguments: object, captured: bool = False) -> subprocess.CompletedProcess[str]:
        command = [python, "-P", *module, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(root / "source")}
        return subprocess.run(
            command, cwd=root / "source", env=environment, check=False, text=True, capture_output=captured
        )

    exported = run(book, "export", "labs", checkout, "--out", root / "work", *lab, captured=True)
    print(exported.stderr, end="", flush=True)  # what does not count, or why nothing does
    if exported.returncode == 1:
        (root / "log").write_text(exported.stderr, encoding="utf-8")
        return run(book, "export", "classroom50-result", "--failed", root / "log", *lab, "--out", checkout).returncode
    if exported.returncode:
        return exported.returncode
    report = root / "report"
    options = ["--device", settings["device"], "--report", report, "--time-limit", settings["seconds"]]
    if run(grading, exported.stdout.strip(), *options, *lab, *seed).returncode not in (0, 1, 3):
        print("no result is written: the grader could not grade this submission (see its reason above)")
        return 1
    return run(book, "export", "classroom50-result", report / "grade.json", "--out", checkout).returncode


def allow_namespaces() -> None:
    """With which the grader isolates what it runs; without them limits of processes hold, and the grade says so."""
    command = ["sudo", "-n", "sysctl", "-q", "-w", "kernel.apparmor_restrict_unprivileged_userns=0"]
    if os.environ.get("RUNNER_ENVIRONMENT") == "github-hosted":
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


def installed(root: Path) -> str:
    """The interpreter of a new environment that has the course."""
    subprocess.run([sys.executable, "-m", "venv", str(root / "uv")], check=True)
    subprocess.run([root / "uv" / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    uv, source = root / "uv" / "bin" / "uv", root / "source"
    # PyTorch for CPUs where there is no GPU: a tenth of the download.
    environment = {"UV_TORCH_BACKEND": "auto", **os.environ, "UV_PYTHON_INSTALL_DIR": str(root / "python")}
    subprocess.run(
        [uv, "venv", "--quiet", "--python", ">=3.11,<3.14", ".venv"], cwd=source, env=environment, check=True
    )
    python = source / ".venv" / "bin" / "python"
    install: list[str | Path] = ["sh", "install.sh", uv, python]
    if not (source / "install.sh").is_file():
        install = [uv, "pip", "install", "--quiet", "--python", python, "--requirement", "requirements.txt"]
    subprocess.run(install, cwd=source, env=environment, check=True)
    return str(python)


if __name__ == "__main__":
    sys.exit(main())
