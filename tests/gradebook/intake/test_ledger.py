"""A ledger of what is handed in: of any download, however it is packed and spelt, every file counts or is named.

Downloads are drawn at random. Which files may go without a word is written down here, apart from our own code: what a
lab may hold, where it lies in one; pictures, data and texts next to the labs; and what systems and tools leave behind.
"""

from __future__ import annotations

import io
import random
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import grader
from gradebook.intake.collect import Intake, Store
from gradebook.intake.lab_folders import LabNames
from gradebook.results import Student
from gradebook.settings import Settings

SPELT = {
    "lab1_gpu_basics": ("lab1_gpu_basics", "lab1-gpu-basics", "Lab 1", "gpu basics", "lab1-gpu-basics-main",
                        "LAB1_GPU_BASICS", "Lab1_final", "lab01", "lab 1 (2)"),
    "lab2_mixed_precision": ("lab2_mixed_precision", "lab2-mixed-precision", "Lab2", "mixed_precision"),
}  # fmt: skip
MODULES = {"lab1_gpu_basics": ("benchmark.py", "profiler.py"), "lab2_mixed_precision": ("amp.py", "stability.py")}
# In a lab they are read, or written by it; next to the labs nobody misses them.
ORDINARY = ("plot.png", "results.json", "notes.txt", "data.csv", "trace.json.gz", "model.pt", "README.md",
            "requirements.txt", "image.heic", "screen.mov", "script.sh", "benchmark", "kernel.cu", "essay.md",
            "old.zip.bak", "settings.toml")  # fmt: skip
CODE = ("helper.py", "main.py")
MISTAKES = ("REPORT.docx", "report.pdf", "lab1.ipynb", "benchmark (1).py", "Copy of benchmark.py", "REPORT (1).md",
            "Report.md", "my_report.txt", "report.odt", "benchmark.py.txt", "benchmark.PY", "REPORT.MD", "code.7z",
            "slides.pptx", "benchmark.pyc", "Lab1.rar", "notes.doc", "answers.xlsx", "REPORT.txt", "report", "fast.so",
            "damaged.zip", "benchmark.py.bak")  # fmt: skip
HIDDEN = ("__MACOSX/._x", ".DS_Store", "__pycache__/a.cpython-311.pyc", ".git/config", ".ipynb_checkpoints/a.ipynb",
          "desktop.ini", "Thumbs.db")  # fmt: skip
ATTEMPT = "Lab 1_ada_attempt_2026-03-01-23-59-00"
BRIGHTSPACE = "7-42 - Ada Lovelace - Mar 1, 2026 1159 PM"
ATTACHED = ("lovelaceada_", "Ada Lovelace_17_assignsubmission", ATTEMPT, BRIGHTSPACE)
"""How platforms begin the names of what a student attached."""
PREFIX = re.compile(rf"lovelaceada_17_[0-9]+_|{re.escape(ATTEMPT)}_")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064x\nsize 12345\n"
Files = dict[str, bytes]


class Student1:
    """Somebody who hands in something at random, each file with a content of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.labs = self.random.choice([["lab1_gpu_basics"], list(MODULES)])
        self._count = 0

    def content(self) -> bytes:
        self._count += 1
        return POINTER % self._count if self.random.random() < 0.03 else f"# file {self._count}\n".encode()

    def drawn(self, *counts: int) -> Files:
        names = self.random.sample((*ORDINARY, "REPORT.md", *CODE, *MISTAKES), self.random.choice(counts))
        return {name: self.content() for name in names}

    def hidden(self) -> Files:
        return {self.random.choice(HIDDEN): self.content()} if self.random.random() < 0.2 else {}

    def lab(self) -> Files:
        lab = self.random.choice(self.labs)
        modules = self.random.sample(MODULES[lab], self.random.choice((1, 2)))
        files = {name: self.content() for name in modules} | self.drawn(0, 0, 1, 2) | self.hidden()
        if self.random.random() < 0.15:
            files["more/deep.py"] = self.content()
        # As it comes out of an archive that was unpacked into a folder of its name, or of somebody's project.
        spelt = self.random.choice(SPELT[lab])
        around = self.random.choice([""] * 8 + [f"{spelt}/", "src/"])
        return {f"{spelt}/{around}{name}": content for name, content in files.items()}

    def tree(self, depth: int = 0) -> Files:
        files: Files = {}
        kind = self.random.random()
        if kind < 0.75:
            for _ in range(self.random.choice((1, 1, 2))):
                files |= self.lab()
        elif kind < 0.9:
            files |= {name: self.content() for name in MODULES[self.labs[0]]}
        files = self.drawn(0, 0, 1, 2) | self.hidden() | files or self.drawn(1)
        if depth < 2 and self.random.random() < 0.2:
            name = self.random.choice(("inner.zip", "labs.tar.gz", "lab2.zip", "submission.tgz"))
            files[name] = packed(name, self.tree(depth + 1))
        around = self.random.choice(
            [""] * 6 + ["labs/", "submission/", "course-main/course-main/", "a/b/c/", "labs/x/"]
        )
        files = {f"{around}{name}": content for name, content in files.items()}
        return files | self.drawn(1, 2) if around and self.random.random() < 0.2 else files

    def attachment(self) -> tuple[str, bytes]:
        if self.random.random() < 0.6:
            name = self.random.choice(("labs.zip", "lab1.zip", "submission.tar.gz", "Lab 1.zip", "work.tgz"))
            return name, packed(name, self.tree())
        name = self.random.choice((*MODULES[self.labs[0]], *ORDINARY, "REPORT.md", *CODE, *MISTAKES))
        return name, self.content()

    def download(self) -> Files:
        """What a platform makes of it."""
        attachments = dict(self.attachment() for _ in range(self.random.choice((1, 2, 3))))
        files: Files
        match self.random.choice(("Canvas", "Moodle", "Blackboard", "Brightspace", "Gradescope", "folder", "archive")):
            case "Canvas":
                numbered = enumerate(attachments.items(), start=4711)
                files = {f"lovelaceada_17_{number}_{name}": content for number, (name, content) in numbered}
                if self.random.random() < 0.15:
                    files["lovelaceada_17_text.html"] = self.content()
            case "Moodle":
                folder = "Ada Lovelace_17_assignsubmission_file"
                files = {f"{folder}/{name}": content for name, content in attachments.items()}
            case "Blackboard":
                files = {f"{ATTEMPT}_{name}": content for name, content in attachments.items()}
                files[f"{ATTEMPT}.txt"] = b"Name: Ada Lovelace (ada)\n\nSubmission Field:\n"
            case "Brightspace":
                files = {f"{BRIGHTSPACE}/{name}": content for name, content in attachments.items()}
                files["index.html"] = b"<html></html>"
            case "Gradescope":
                files = {f"submission_1/{name}": content for name, content in self.tree().items()}
                files["submission_metadata.yml"] = METADATA
            case "folder":
                tree = self.tree() if self.random.random() < 0.7 else attachments
                files = {f"ada/{name}": content for name, content in tree.items()}
            case _:
                name = self.random.choice(("ada.zip", "ada.tar.gz"))
                files = {name: packed(name, self.tree())}
        return files


METADATA = b"""submission_1:
  :submitters:
  - :name: Ada Lovelace
    :sid: '17'
    :email: ada@example.edu
  :created_at: 2026-03-01 12:00:00 Z
"""


def packed(name: str, files: Files) -> bytes:
    data = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(data, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
    else:
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def files_of(name: str, content: bytes) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Every file in it, with the names of what it lies in, outermost first."""
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                inner = {info.filename: archive.read(info) for info in archive.infolist()}
        elif name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                members = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
                inner = {path: file.read() for path, file in members if file is not None}
        else:
            raise zipfile.BadZipFile
    except (zipfile.BadZipFile, tarfile.TarError):
        yield (name,), content
        return
    for path, inner_content in inner.items():
        for names, leaf in files_of(path, inner_content):
            yield (name, *names), leaf


def may_go_without_a_word(names: tuple[str, ...], copy: str | None) -> bool:
    """By the rules above. `copy` is where its content stands in what is graded."""
    name = names[-1].rpartition("/")[2]
    if any(hidden.partition("/")[0] in names[-1].split("/") for hidden in HIDDEN):
        return True
    if copy is not None:
        folder = copy.rpartition("/")[0]
        modules = (module for ones in MODULES.values() for module in ones)
        known = (*ORDINARY, *CODE, *modules, "deep.py", "REPORT.md")
        return name in ORDINARY or (folder.partition("/")[0] in MODULES and PREFIX.sub("", name) in known)
    is_attached = len(names) == 1 and names[0].startswith(ATTACHED)
    return name in ORDINARY and not is_attached


def is_named(names: tuple[str, ...], reason: str) -> bool:
    """Whether the student reads of it, or of what it is packed in."""
    said = [PREFIX.sub("", name.rpartition("/")[2]) for name in names]
    folders = [f"'{folder}/'" for folder in names[-1].split("/")[:-1]]
    return any(word in reason for word in (f"{said[-1]}'", *folders)) or any(
        re.search(rf"{re.escape(name)}' (?:does not count|\(an archive)", reason) for name in said[:-1]
    )


def taken_in(student: Student1, folder: Path) -> list[tuple[Student, Files]]:
    source, store = folder / "source", Store(folder / "store")
    for name, content in student.download().items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    names = LabNames.of(grader.course().rubric.labs, range(1, len(student.labs) + 1))
    pairs = []
    for entry in Intake(Settings(), None, store, folder / "room", None, names).take_all(source, lambda name: None):
        top = store.path(entry.content) if entry.content else None
        paths = [path for path in top.rglob("*") if path.is_file()] if top else []
        pairs.append((entry, {path.relative_to(top).as_posix(): path.read_bytes() for path in paths if top}))
    return pairs


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.night) for part in (1, 2, 3))])
def test_every_file_counts_or_is_named(part: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    begin = int(pytestconfig.getoption("seed")) * 1000 + part * 60
    taken = refused = 0
    for seed in range(begin, begin + 60):
        folder = tmp_path / str(seed)
        (folder / "source").mkdir(parents=True)
        for student, copied in taken_in(Student1(seed), folder):
            if student.status in ("refused", "undecided"):
                assert re.search(r"'|nothing at all|keep one of them|no git repository", student.reason), (
                    seed,
                    student.reason,
                )
                refused += 1
                continue
            taken += 1
            places = {content: target for target, content in copied.items()}
            for content, target in places.items():
                if content.startswith(POINTER[:40]):
                    named = repr(target) in student.reason or re.search(r" and \d+ more", student.reason)
                    assert named, f"seed {seed}: nothing is said of the pointer {target}: {student.reason}"
            for path in sorted((folder / "source").rglob("*")):
                if not path.is_file() or path.name in ("submission_metadata.yml", "index.html", f"{ATTEMPT}.txt"):
                    continue
                for names, content in files_of(path.relative_to(folder / "source").as_posix(), path.read_bytes()):
                    silent = may_go_without_a_word(names, places.get(content))
                    assert silent or is_named(names, student.reason) or re.search(r" and \d+ more", student.reason), (
                        f"seed {seed}: nothing is said of {' in '.join(reversed(names))}: {student.reason}"
                    )
    assert taken > 25
    assert refused > 5
