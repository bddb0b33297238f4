"""The copy of a submission: a package called `labs` and nothing else, whatever the folder holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradebox.sandbox import Sandbox, SandboxError, SubmissionError, copying
from tests.sandbox.sandbox_runs import ENVIRONMENT, PROBES, call

HOSTILE = ("torch", "numpy", "sitecustomize", "usercustomize", "conftest", "random", "json", "labkit")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small submission in the repository's tree."""
    lab = tmp_path / "work of a student" / "lab1_gpu_basics"
    lab.mkdir(parents=True)
    (lab / "benchmark.py").write_text("def answer():\n    return 42\n")
    return lab.parent


def copied(folder: Path, tmp_path: Path) -> set[str]:
    """Names of the copied files, relative to `labs`."""
    target = tmp_path / "copy"
    copying.copy(copying.scan(folder), target)
    return {str(path.relative_to(target / "labs")) for path in target.rglob("*") if path.is_file()}


@pytest.fixture
def hostile(folder: Path) -> Iterator[Sandbox]:
    """The submission next to files that want to be imported instead of the real modules."""
    for name in HOSTILE:
        (folder / f"{name}.py").write_text("raise SystemExit('imported by its bare name')\n")
    imports = "import json\nimport random\n\nimport labkit\nimport numpy\n"
    function = "def origin():\n    return [module.__file__ for module in (json, random, labkit, numpy)]\n"
    (folder / "lab1_gpu_basics" / "where.py").write_text(imports + function)
    with Sandbox(folder, ENVIRONMENT, preload=("numpy",), probe_paths=[PROBES]) as sandbox:
        yield sandbox


def test_hostile_names_shadow_nothing(hostile: Sandbox) -> None:
    reply = call(hostile, "where", "origin")
    assert reply.kind == "ok", reply.first
    assert not any("submission" in file for file in reply.value["returned"])


def test_files_beside_the_package_cannot_be_imported(namespaces: Sandbox) -> None:
    assert call(namespaces, "honest", "imports").value == {"returned": []}


def test_files_beside_the_package_cannot_be_imported_with_limits_only(process_limits: Sandbox) -> None:
    assert call(process_limits, "honest", "imports").value == {"returned": []}


def test_the_handouts_names_become_importable(tmp_path: Path) -> None:
    for name in ("lab1-gpu-basics", "lab2-mixed-precision", "lab3-distributed", "lab4-memory", "lab5-production"):
        (tmp_path / "sub" / name).mkdir(parents=True)
        (tmp_path / "sub" / name / "task.py").touch()
    folders = {name.split("/")[0] for name in copied(tmp_path / "sub", tmp_path) if "/" in name}
    expected = {"lab1_gpu_basics", "lab2_mixed_precision", "lab3_distributed", "lab4_memory", "lab5_production"}
    assert folders == expected


def test_packages_get_an_init_where_there_is_none(folder: Path, tmp_path: Path) -> None:
    assert copied(folder, tmp_path) == {"__init__.py", "lab1_gpu_basics/__init__.py", "lab1_gpu_basics/benchmark.py"}


def test_a_repository_with_a_labs_folder_stands_for_that_folder(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "labs")
    (tmp_path / "README.md").touch()
    assert "README.md" not in copied(tmp_path, tmp_path)


def test_caches_history_environments_and_large_files_stay_behind(folder: Path, tmp_path: Path) -> None:
    lab = folder / "lab1_gpu_basics"
    for name in (".git/config", "__pycache__/x.pyc", ".venv/lib.py", "env/pyvenv.cfg", "env/lib.py"):
        (lab / name).parent.mkdir(exist_ok=True)
        (lab / name).touch()
    os.truncate(os.open(lab / "weights.pt", os.O_CREAT | os.O_WRONLY), copying.MAX_FILE_BYTES + 1)
    assert copied(folder, tmp_path) == {"__init__.py", "lab1_gpu_basics/__init__.py", "lab1_gpu_basics/benchmark.py"}


def test_links_that_lead_outside_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    lab = folder / "lab1_gpu_basics"
    (lab / "out.py").symlink_to(tmp_path / "secret")
    (lab / "up").symlink_to(tmp_path)
    (lab / "loop").symlink_to(lab)
    (lab / "inside.py").symlink_to(lab / "benchmark.py")
    os.mkfifo(lab / "pipe.py")
    names = copied(folder, tmp_path)
    assert "lab1_gpu_basics/inside.py" in names
    assert not any(word in name for name in names for word in ("out.py", "up", "loop", "pipe.py"))


def test_too_many_files_are_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_FILES", 3)
    for number in range(4):
        (folder / f"extra{number}.py").touch()
    with pytest.raises(SubmissionError, match="too large: more than 3 files"):
        Sandbox(folder)


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="is not a folder"):
        Sandbox(tmp_path / "nothing")


def test_two_folders_for_one_lab_are_one_clear_error(folder: Path) -> None:
    (folder / "lab1-gpu-basics").mkdir()
    with pytest.raises(SubmissionError, match="keep one of them"):
        Sandbox(folder)


def test_the_digest_depends_on_content_alone(folder: Path, tmp_path: Path) -> None:
    first = copying.copy(copying.scan(folder), tmp_path / "a")
    folder.rename(tmp_path / "elsewhere")
    assert copying.copy(copying.scan(tmp_path / "elsewhere"), tmp_path / "b") == first
    (tmp_path / "elsewhere/lab1_gpu_basics/benchmark.py").write_text("def answer():\n    return 43\n")
    assert copying.copy(copying.scan(tmp_path / "elsewhere"), tmp_path / "c") != first


def test_a_sandbox_that_turns_to_another_submission_keeps_nothing_of_the_one_before(folder: Path) -> None:
    file = folder / "lab1_gpu_basics" / "benchmark.py"
    with Sandbox(folder, preload=("numpy",), probe_paths=[PROBES]) as sandbox:
        before = sandbox.submission_sha256
        status = file.stat()
        file.write_text(file.read_text().replace("42", "43"))  # as long as before, and said to be as old
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        sandbox.set_submission(folder)
        assert sandbox.submission_sha256 != before
        assert sandbox.read_text("lab1_gpu_basics/benchmark.py") == file.read_text()
        assert call(sandbox, "benchmark", "answer").value == {"returned": 43}


def test_a_folder_that_is_edited_during_a_grading_is_graded_as_it_was(folder: Path) -> None:
    file = folder / "lab1_gpu_basics" / "benchmark.py"
    with Sandbox(folder, preload=("numpy",), probe_paths=[PROBES]) as sandbox:
        before = sandbox.submission_sha256
        file.write_text("def answer():\n    return 7\n")
        (folder / "lab1_gpu_basics" / "REPORT.md").write_text("written meanwhile")
        assert call(sandbox, "benchmark", "answer").value == {"returned": 42}
        assert sandbox.read_text("lab1_gpu_basics/REPORT.md") is None
        assert sandbox.submission_sha256 == before
        sandbox.set_submission(folder)
        assert call(sandbox, "benchmark", "answer").value == {"returned": 7}


def test_no_room_for_the_copy_is_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copying, "copy", full)
    with pytest.raises(SandboxError, match=r"no space for a copy .* \(No space left on device\); .*TMPDIR=/path"):
        Sandbox(folder, preload=("numpy",)).__enter__()


@pytest.mark.parametrize("name", ["helper.pyc", "helper.so", "fast.cpython-312-x86_64-linux-gnu.so", "paths.pth"])
def test_code_that_nobody_can_read_is_left_behind(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "lab1_gpu_basics" / name).write_bytes(b"\x7fELF")
    assert f"lab1_gpu_basics/{name}" not in copied(folder, tmp_path)


def test_a_folder_that_is_exchanged_for_a_link_after_the_scan_leads_nowhere(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "benchmark.py").write_text("of somebody else")
    entries = copying.scan(folder)
    (folder / "lab1_gpu_basics").rename(tmp_path / "away")
    (folder / "lab1_gpu_basics").symlink_to(secret)
    with pytest.raises(SubmissionError, match="cannot be read"):
        copying.copy(entries, tmp_path / "copy")


def test_the_mark_that_editors_of_windows_write_is_no_part_of_a_text(folder: Path) -> None:
    (folder / "lab1_gpu_basics" / "REPORT.md").write_text("# Report", encoding="utf-8-sig")
    with Sandbox(folder, preload=("numpy",)) as sandbox:
        assert sandbox.read_text("lab1_gpu_basics/REPORT.md") == "# Report"


def test_a_report_of_megabytes_is_not_read(folder: Path) -> None:
    report = folder / "lab1_gpu_basics" / "REPORT.md"
    report.write_text("<!-- " * 300_000)
    with Sandbox(folder, preload=("numpy",)) as sandbox:
        assert sandbox.read_text("lab1_gpu_basics/REPORT.md") is None
