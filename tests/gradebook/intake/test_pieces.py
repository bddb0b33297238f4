"""What is in a download, however it is packed and spelt: it counts, or is named with a reason."""

from __future__ import annotations

import html
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gradebook.intake.collect import Intake, Store
from gradebook.settings import IntakeLimits, Settings
from tests.gradebook.conftest import SmallClass
from tests.gradebook.intake.downloads import CANVAS, CODE, LAB, MOODLE, Downloads
from tests.gradebook.intake.test_archives import zipped


@pytest.mark.parametrize(
    "spelling",
    [
        *("lab1-gpu-basics", "Lab1", "lab 1", "Lab_01", "LAB1_GPU_Basics", "lab1_gpu_basics (1)"),
        *("lab1-gpu-basics-main", "GPU basics", "gpu_basics_final", "lab1.gpu"),
    ],
)
def test_other_spellings_of_a_labs_folder_are_that_lab(downloads: Downloads, spelling: str) -> None:
    downloads.pack("ada.zip", {f"{spelling}/benchmark.py": CODE})
    downloads.pack("bob.zip", {f"{LAB}/benchmark.py": CODE})
    students = downloads.take(1, 2)
    assert students["ada"].content == students["bob"].content
    assert (f"the folder {spelling!r} was taken as {LAB}" in students["ada"].reason) == (spelling != "lab1-gpu-basics")


def test_a_lab_that_is_spelt_right_goes_before_another_spelling(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/lab1 old/benchmark.py", b"old")
    student = downloads.take()["ada"]
    assert downloads.files(student)[f"{LAB}/benchmark.py"] == CODE


def test_of_two_spellings_of_one_lab_none_is_chosen(downloads: Downloads) -> None:
    downloads.put("ada/Lab 1/benchmark.py")
    downloads.put("ada/Lab1/benchmark.py")
    ada = downloads.take()["ada"]
    assert ada.status == "undecided"
    assert ada.reason == ("holds both 'Lab 1' and 'Lab1' for one lab; keep one of them, called lab1_gpu_basics")


def test_archives_in_archives_are_unpacked(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "lab1.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    other = zipped(tmp_path / "lab2.zip", {"lab2_mixed_precision/amp.py": CODE}).read_bytes()
    middle = zipped(tmp_path / "middle.zip", {"hw/lab1.zip": inner, "hw/lab2.zip": other}).read_bytes()
    downloads.pack(f"{CANVAS}all.zip", {"middle.zip": middle})
    student = downloads.take(1, 2)["lovelaceada_17"]
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", "lab2_mixed_precision/amp.py"]


def test_every_archive_without_a_lab_is_named(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "essay.zip", {"essay.txt": b""}).read_bytes()
    downloads.pack("ada.zip", {"essay.zip": inner})
    assert downloads.take()["ada"].reason == (
        "'essay.zip' holds no lab, only 'essay.txt': hand in the lab's folder, as lab1_gpu_basics, with all that is in "
        "it"
    )


def test_archives_without_end_are_refused(downloads: Downloads, tmp_path: Path) -> None:
    content = zipped(tmp_path / "0.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    for number in range(1, 6):
        content = zipped(tmp_path / f"{number}.zip", {f"{number - 1}.zip": content}).read_bytes()
    downloads.put("ada.zip", content)
    assert downloads.take()["ada"].status == "refused"


def test_a_bomb_in_an_archive_is_refused(downloads: Downloads, tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "bomb.zip", {"labs/bomb": bytes(65 * 2**20)}).read_bytes()
    downloads.pack("ada.zip", {"bomb.zip": bomb})
    assert "is larger than 64 MiB" in downloads.take()["ada"].reason


def test_an_archive_beside_the_labs_is_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/lab2.zip", b"PK")
    student = downloads.take()["ada"]
    assert (student.status, student.reason) == (
        "taken",
        "nothing reads these files, so that they do not count: 'lab2.zip' (an archive, which stays packed)",
    )


UNREAD = "nothing reads these files, so that they do not count: "


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lab1.ipynb", "a notebook"),
        (f"{LAB}/lab1.ipynb", "a notebook"),
        ("notes/lab1.ipynb", "a notebook"),
        ("REPORT.md", "another report"),
        ("REPORT_final.md", "another report"),
        (f"{LAB}/lab1_report.md", "another report"),
        (f"{LAB}/results/REPORT.md", "another report"),
        ("report.docx", "a document"),
        ("report.PDF", "a document"),
        (f"{LAB}/report.pdf", "a document"),
        (f"{LAB}/notes.html", "a document"),
        ("slides.pptx", "a document"),
        (f"{LAB}/REPORT.txt", "another report"),
        (f"{LAB}/report", "another report"),
        (f"{LAB}/profiler.py.txt", "code whose name does not end in .py"),
        (f"{LAB}/profiler.PY", "code whose name does not end in .py"),
        (f"{LAB}/benchmark (1).py", "a copy"),
        (f"{LAB}/benchmark - Copy.py", "a copy"),
        (f"{LAB}/Kopie von benchmark.py", "a copy"),
        (f"{LAB}/benchmark - Copia (2).py", "a copy"),
        (f"{LAB}/benchmark - 副本.py", "a copy"),
        (f"{LAB}/benchmark.py~", "a copy"),
        (f"{LAB}/benchmark.py.lnk", "a shortcut, without the file itself"),
        (f"{LAB}/.benchmark.py.icloud", "a shortcut, without the file itself"),
        (f"{LAB}/benchmark copy.py", "a copy"),
        (f"{LAB}/benchmark copy 2.py", "a copy"),
        (f"{LAB}/old.zip", "an archive, which stays packed"),
        (f"{LAB}/old.7z", "an archive, which stays packed"),
        ("lab2.rar", "an archive, which stays packed"),
    ],
)
@pytest.mark.parametrize("top", ["ada", "ada/homework", "ada/labs"])
def test_what_nothing_reads_is_named(downloads: Downloads, top: str, name: str, kind: str) -> None:
    for path in (f"{top}/{LAB}/benchmark.py", f"{top}/{LAB}/REPORT.md", f"{top}/{name}"):
        downloads.put(path)
    student = downloads.take(1, 2)["ada"]
    assert (student.status, student.reason) == ("taken", f"{UNREAD}{name!r} ({kind})")


def test_what_lies_outside_of_the_folder_with_the_labs_is_named_too(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "lab1.zip", {f"{LAB}/benchmark.py": CODE, f"{LAB}/REPORT.md": b""}).read_bytes()
    downloads.put(f"ada/homework/{LAB}/benchmark.py")
    downloads.put(f"ada/homework/{LAB}/REPORT.md")
    downloads.put("ada/report.pdf")
    downloads.put("bob/lab1.zip", inner)
    downloads.put("bob/report.pdf")
    students = downloads.take(1, 2)
    assert {student.reason for student in students.values()} == {f"{UNREAD}'report.pdf' (a document)"}


def test_many_unread_files_are_counted(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    for number in range(10):
        downloads.put(f"ada/{LAB}/{number}.ipynb")
    reason = downloads.take()["ada"].reason
    assert reason.count("a notebook") == 6
    assert reason.endswith("(a notebook) and 4 more")


def test_a_tidy_submission_hears_nothing(downloads: Downloads) -> None:
    for name in (
        *("REPORT.md", "README.md", "benchmark.py", "reporting.py", "copy.py", "my_copy.py", "requirements.txt"),
        *("results/plot.png", "results/plot (1).png", "results/a.csv", "results/a.json", "results/trace.json.gz"),
        *("model.pt", ".ipynb_checkpoints/x.ipynb", ".hidden/x.pdf", "__pycache__/x.html", ".x.ipynb", "log.txt"),
        *("data/MNIST/raw/train-images-idx3-ubyte.gz",),
    ):
        downloads.put(f"ada/labs/{LAB}/{name}")
    for name in ("README.md", "notes.txt", ".hg/x.pdf", "__MACOSX/x.ipynb", ".venv/x.html"):
        downloads.put(f"ada/{name}")
    for name in ("labs/kernels_exercise/REPORT.md", "labs/lab5_production/REPORT.md", "grade-report/grade.html"):
        downloads.put(f"ada/{name}")
    assert downloads.take()["ada"].reason == ""


def test_the_courses_own_notebooks_are_not_named_in_its_whole_tree(downloads: Downloads) -> None:
    downloads.put(f"ada/labs/{LAB}/benchmark.py")
    downloads.put(f"ada/labs/{LAB}/REPORT.md")
    downloads.put("ada/notebooks/lab1.ipynb")
    assert downloads.take()["ada"].reason == f"{UNREAD}'notebooks/lab1.ipynb' (a notebook)"
    for name in ("gradebox/__init__.py", "labkit/__init__.py", "labkit/monitoring/page.html"):
        downloads.put(f"ada/{name}")
    assert downloads.take()["ada"].reason == ""
    downloads.put("ada/report/report.pdf")
    assert downloads.take()["ada"].reason == f"{UNREAD}'report/report.pdf' (a document)"


def test_a_submission_that_is_called_labs_is_ordinary(downloads: Downloads) -> None:
    downloads.put(f"labs/{LAB}/benchmark.py")
    assert downloads.take()["labs"].reason == ""


@pytest.mark.parametrize("name", [f"{LAB}/report.pdf", "report.pdf", f"{LAB}/REPORT_final.md"])
def test_a_report_that_is_not_read_as_one_is_said(downloads: Downloads, name: str) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put(f"ada/{name}")
    said = f"; lab1_gpu_basics has no REPORT.md, and reports are read as REPORT.md only: write {name!r} as that"
    assert downloads.take()["ada"].reason.endswith(said)


def test_a_document_among_files_alone_does_not_count_as_part_of_the_lab(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}benchmark.py")
    downloads.put(f"{CANVAS[:-2]}2_report.pdf")
    student = downloads.take()["lovelaceada_17"]
    assert student.reason.split("; ")[:2] == [
        "'benchmark.py' counted as part of lab1_gpu_basics, the lab of this class",
        f"{UNREAD}'lab1_gpu_basics/report.pdf' (a document)",
    ]


BROKEN = b"PK\x03\x04 and no more"


@pytest.mark.parametrize("place", ["lovelaceada_17_{number}_{name}", f"{MOODLE}file/{{name}}", "ada/{name}"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BROKEN, "'lab2.zip' does not count: it is damaged, or no archive at all"),
        (b"Rar!\x1a\x07\x00", "'lab2.zip' does not count: it is a RAR archive, whatever its name says"),
    ],
    ids=["damaged", "RAR"],
)
def test_of_several_attachments_the_damaged_one_is_named_and_the_others_count(
    downloads: Downloads, place: str, content: bytes, words: str
) -> None:
    downloads.pack(place.format(number=4711, name="lab1.zip"), {f"{LAB}/benchmark.py": CODE})
    downloads.put(place.format(number=4712, name="lab2.zip"), content)
    downloads.pack(place.format(number=4713, name="lab3.zip"), {"lab3_distributed/a.py": CODE})
    (student,) = downloads.take(1, 2, 3).values()
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", "lab3_distributed/a.py"]
    assert student.reason.startswith(words)


def test_a_file_alone_counts_beside_a_damaged_archive(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}benchmark.py")
    downloads.put("lovelaceada_17_4712_rest.zip", BROKEN)
    student = downloads.take()["lovelaceada_17"]
    assert list(downloads.files(student)) == [f"{LAB}/benchmark.py"]
    assert "'rest.zip' does not count: it is damaged, or no archive at all" in student.reason


def test_attachments_of_which_none_can_be_read_are_refused_and_each_is_named(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}lab1.zip", BROKEN)
    downloads.put("lovelaceada_17_4712_lab2.zip", BROKEN)
    downloads.pack("lovelaceada_17_4713_essay.zip", {"essay.txt": b""})
    student = downloads.take(1, 2)["lovelaceada_17"]
    assert student.status == "refused"
    for words in ("'lab1.zip' is damaged", "'lab2.zip' is damaged", "'essay.zip' holds no lab, only 'essay.txt'"):
        assert words in student.reason


def test_a_damaged_attachment_is_named_to_the_student_and_to_the_instructor(small_class: SmallClass) -> None:
    zipped(small_class.submissions / f"{CANVAS}lab1.zip", {f"{LAB}/benchmark.py": CODE})
    (small_class.submissions / "lovelaceada_17_4712_rest.zip").write_bytes(BROKEN)
    (row,) = small_class.grade().students
    assert row.status == "graded"
    for name in ("class.html", "grades.csv", "feedback/lovelaceada_17.html", "feedback/lovelaceada_17.md"):
        text = html.unescape((small_class.out / "exports" / name).read_text().replace("\\", ""))
        assert "'rest.zip' does not count: it is damaged, or no archive at all" in text, name


def test_of_several_attachments_the_one_with_labs_in_two_places_is_named(downloads: Downloads) -> None:
    downloads.pack(f"{CANVAS}lab1.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.pack("lovelaceada_17_4712_all.zip", {f"old/{LAB}/a.py": CODE, f"new/{LAB}/a.py": CODE})
    assert downloads.take()["lovelaceada_17"].reason.startswith("'all.zip' holds labs in several folders, 'new', 'old'")


@pytest.mark.parametrize("place", ["ada/{}.zip", "{}.zip"])
def test_archives_that_are_not_opened_are_not_said_to_hold_no_lab(
    downloads: Downloads, tmp_path: Path, place: str
) -> None:
    content = zipped(tmp_path / "0.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    for number in range(1, 4 if "/" in place else 5):
        content = zipped(tmp_path / f"{number}.zip", {f"{number - 1}.zip": content}).read_bytes()
    downloads.put(place.format("ada"), content)
    reason = downloads.take()["ada"].reason
    assert reason.endswith(
        "holds '0.zip', but archives in archives are opened only 3 deep: pack the labs' folders once, as one .zip"
    )
    assert "no lab" not in reason


@pytest.mark.parametrize("place", ["{}", f"{CANVAS}{{}}", f"{MOODLE}file/{{}}", "ada/{}"], ids=lambda place: place[:6])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("labs.7z", "is a .7z file, which the grader does not unpack: pack the labs as .zip or .tar.gz"),
        ("labs.RAR", "is a .rar file, which the grader does not unpack: pack the labs as .zip or .tar.gz"),
        ("lab1.ipynb", "is a notebook, and notebooks are not graded: hand in the lab's folder, as lab1_gpu_basics"),
    ],
)
def test_what_nothing_here_reads_is_named_with_what_to_do(
    downloads: Downloads, place: str, name: str, words: str
) -> None:
    downloads.put(place.format(name))
    (student,) = downloads.take().values()
    assert (student.status, f"{name!r}" in student.reason, words in student.reason) == ("refused", True, True)


def test_what_is_too_large_or_leads_elsewhere_is_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    os.truncate(downloads.put(f"ada/{LAB}/results/model.pt"), 17 * 2**20)
    os.truncate(downloads.put(f"ada/{LAB}/.venv/torch.bin"), 17 * 2**20)
    (downloads.folder / "ada" / LAB / "data").symlink_to("/")
    (downloads.folder / "ada" / LAB / "passwd").symlink_to("/etc/passwd")
    (downloads.folder / "ada" / LAB / "same.py").symlink_to("benchmark.py")
    student = downloads.take()["ada"]
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", f"{LAB}/same.py"]
    assert student.reason.split("; ") == [
        f"'{LAB}/data' is a link, and does not count",
        f"'{LAB}/passwd' is a link, and does not count",
        f"'{LAB}/results/model.pt' is larger than 16 MiB, and does not count",
    ]


def test_a_document_of_another_program_is_no_archive(downloads: Downloads) -> None:
    downloads.pack(f"{CANVAS}report.docx", {"word/document.xml": b""})
    reason = downloads.take()["lovelaceada_17"].reason
    assert reason == "'report.docx' is neither a zip nor a tar file; pack the labs as one of them"


def test_what_is_no_submission_is_named_too(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    (small_class.submissions / "notes.txt").touch()
    (small_class.submissions / ".DS_Store").touch()
    (small_class.submissions / "bob").symlink_to("ada")
    output = StringIO()
    small_class.grade(console=Console(file=output, width=200))
    assert "note: no submissions, so not graded: bob (a link), notes.txt" in output.getvalue()


def test_what_does_not_count_reaches_the_student_and_the_instructor(small_class: SmallClass) -> None:
    zipped(small_class.submissions / f"{CANVAS}labs.zip", {"Lab 1/benchmark.py": CODE})
    (small_class.submissions / "lovelaceada_17_text.html").write_text("<p>see the zip</p>")
    (row,) = small_class.grade().students
    assert row.status == "graded"
    for name in ("class.html", "grades.csv", "feedback/lovelaceada_17.html", "feedback/lovelaceada_17.md"):
        text = html.unescape((small_class.out / "exports" / name).read_text().replace("\\", ""))
        assert "a text was handed in, 'lovelaceada_17_text.html'" in text, name
        assert "the folder 'Lab 1' was taken as lab1_gpu_basics" in text, name


def test_limits_hold_for_all_pieces_together(downloads: Downloads, tmp_path: Path) -> None:
    for number in (1, 2):
        downloads.pack(f"lovelaceada_17_{number}_{number}.zip", {f"{LAB}/{number}.py": CODE})
    settings = Settings(limits=IntakeLimits(files=1))
    intake = Intake(settings, None, Store(tmp_path / "store"), tmp_path / "room", None)
    (student,) = intake.take_all(downloads.folder, lambda name: None)
    assert "more than 1 files" in student.reason


@pytest.mark.parametrize(
    "around", [f"{LAB}/{LAB}", f"{LAB}/src", "Lab 1/Lab 1/lab1", f"course-main/course-main/labs/{LAB}", f"a/b/c/{LAB}"]
)
def test_folders_around_a_labs_code_are_looked_through(downloads: Downloads, around: str) -> None:
    """As where an archive was unpacked into a folder of its name and packed again."""
    downloads.pack("ada.zip", {f"{around}/benchmark.py": CODE, f"{around}/results/a.json": b"{}"})
    student = downloads.take(1, 2)["ada"]
    assert downloads.files(student) == {f"{LAB}/benchmark.py": CODE, f"{LAB}/results/a.json": b"{}"}


def test_folders_around_something_else_stay(downloads: Downloads) -> None:
    downloads.pack("ada.zip", {f"{LAB}/results/a.json": b"{}", f"{LAB}/models/small/net.py": CODE, f"{LAB}/x.py": CODE})
    student = downloads.take()["ada"]
    assert set(downloads.files(student)) == {f"{LAB}/results/a.json", f"{LAB}/models/small/net.py", f"{LAB}/x.py"}


def test_code_beside_an_archive_of_moodle_is_the_lab_of_a_class_of_one_as_in_canvas(downloads: Downloads) -> None:
    folder = f"{MOODLE}file"
    downloads.pack(f"{folder}/lab1.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.put(f"{folder}/profiler.py", b"2\n")
    downloads.put(f"{folder}/.DS_Store")
    (student,) = downloads.take().values()
    assert downloads.files(student) == {f"{LAB}/benchmark.py": CODE, f"{LAB}/profiler.py": b"2\n"}
    assert student.reason == f"'profiler.py' counted as part of {LAB}, the lab of this class"


def test_files_in_no_folder_of_everybody_are_one_remark(downloads: Downloads) -> None:
    downloads.put("ada/benchmark.py", CODE)
    downloads.pack("bob.zip", {"benchmark.py": CODE})
    downloads.pack("eve/work.zip", {"benchmark.py": CODE})
    reasons = {name: student.reason for name, student in downloads.take().items()}
    assert reasons["ada"] == reasons["bob"] == f"files in no folder counted as part of {LAB}, the lab of this class"
    assert reasons["eve"] == f"the files of 'work.zip' counted as part of {LAB}, the lab of this class"


def test_what_lies_beside_packed_labs_is_named_in_a_class_of_several(downloads: Downloads) -> None:
    inner = zipped(downloads.folder.parent / "lab1.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    downloads.pack("ada.zip", {"lab1.zip": inner, "amp.py": CODE, "plot.png": b"\x89PNG", "fast.so": b""})
    assert downloads.take(1, 2)["ada"].reason == (
        "nothing reads these files, so that they do not count: 'amp.py' (code in no lab's folder), 'fast.so' (compiled "
        "code), 'plot.png' (in no lab's folder)"
    )


def test_a_module_beside_the_labs_is_named_unless_some_code_has_its_name(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py", b"from ..common import f\n")
    for name in ("common.py", "profiler.py"):
        downloads.put(f"ada/{name}")
    assert downloads.take()["ada"].reason == (
        "nothing reads these files, so that they do not count: 'profiler.py' (code in no lab's folder)"
    )


def test_a_second_folder_of_a_lab_is_named_as_it_is_called(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/lab1-gpu-basics-main/profiler.py")
    assert "'lab1-gpu-basics-main/' (code in no lab's folder)" in downloads.take()["ada"].reason


def test_a_copy_of_a_lab_in_another_folder_is_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put(f"ada/backup/{LAB}/benchmark.py", b"# older\n")
    student = downloads.take()["ada"]
    assert student.status == "taken"
    assert "'backup/' (code in no lab's folder)" in student.reason


def test_a_lab_that_is_a_link_is_named_as_that(downloads: Downloads) -> None:
    downloads.put(f"elsewhere/{LAB}/benchmark.py")
    lab = downloads.put("ada/note.txt").parent / LAB
    lab.symlink_to(downloads.folder / "elsewhere" / LAB)
    student = downloads.take()["ada"]
    assert f"holds no lab, but '{LAB}', which is a link, and links are not followed" in student.reason
    assert student.status == "undecided"  # so that no 0 goes out before somebody has looked


def test_a_folder_called_labs_that_holds_data_does_not_hide_the_code(downloads: Downloads) -> None:
    """In a class of one lab, whose files may lie in no folder of its own."""
    downloads.pack("ada.zip", {"benchmark.py": CODE, "labs/data.csv": b"1\n"})
    downloads.pack("bob.zip", {"labs/benchmark.py": CODE, "helper.py": CODE})
    students = downloads.take()
    assert set(downloads.files(students["ada"])) == {f"{LAB}/benchmark.py", f"{LAB}/labs/data.csv"}
    assert set(downloads.files(students["bob"])) == {f"{LAB}/benchmark.py"}
    assert "'helper.py' (code in no lab's folder)" in students["bob"].reason


def test_compiled_code_is_named_unless_it_is_a_cache(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put(f"ada/{LAB}/fast.so")
    downloads.put(f"ada/{LAB}/__pycache__/benchmark.cpython-311.pyc")
    assert downloads.take()["ada"].reason == f"'{LAB}/fast.so' is compiled code, and does not count"


def test_a_report_around_a_lab_in_its_own_name_is_the_labs(downloads: Downloads) -> None:
    for name in (f"{LAB}/REPORT.md", f"{LAB}/.gitignore", f"{LAB}/env/pyvenv.cfg", f"{LAB}/.github/w.yml"):
        downloads.put(f"ada/{name}", b"outside\n")
    for name in ("benchmark.py", ".gitignore"):
        downloads.put(f"ada/{LAB}/{LAB}/{name}")
    assert downloads.files(downloads.take(1, 2)["ada"]) == {
        f"{LAB}/REPORT.md": b"outside\n", f"{LAB}/.gitignore": CODE, f"{LAB}/benchmark.py": CODE,
    }  # fmt: skip


def test_a_labs_own_folder_keeps_its_name_for_who_imports_it(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/helpers/util.py")
    downloads.put("ada/lab2_mixed_precision/amp.py", f"from labs.{LAB}.helpers import util\n".encode())
    assert f"{LAB}/helpers/util.py" in downloads.files(downloads.take(1, 2)["ada"])


def test_two_files_that_would_be_one_are_named_as_lying_in_two_folders(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/REPORT.md", b"1\n")
    downloads.put(f"ada/{LAB}/{LAB}/REPORT.md", b"2\n")
    downloads.put(f"ada/{LAB}/{LAB}/benchmark.py")
    ada = downloads.take()["ada"]
    assert ada.status == "undecided"
    assert ada.reason == (f"holds '{LAB}/REPORT.md' twice, in different folders, and they differ; keep one")


def test_labs_of_which_each_lies_in_a_folder_of_its_name_are_all_taken(downloads: Downloads) -> None:
    downloads.put(f"ada/work/Lab1/{LAB}/benchmark.py")
    downloads.put("ada/work/Lab2/lab2_mixed_precision/amp.py")
    assert set(downloads.files(downloads.take(1, 2)["ada"])) == {f"{LAB}/benchmark.py", "lab2_mixed_precision/amp.py"}


def test_a_folder_that_a_lab_imports_is_not_said_to_count_for_nothing(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py", "from labs.lab1_shared import x\nimport größe\n".encode())
    downloads.put("ada/lab1_shared/x.py")
    downloads.put("ada/größe.py")
    downloads.put("ada/lab1_notes/n.txt")
    assert downloads.take()["ada"].reason == f"{UNREAD}'lab1_notes/' (in no lab's folder)"


def test_a_module_whose_name_is_no_text_refuses_its_student_alone(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    (downloads.folder / "ada" / os.fsdecode(b"\xff.py")).write_bytes(CODE)
    downloads.put(f"bob/{LAB}/benchmark.py")
    students = downloads.take()
    assert (students["ada"].status, students["bob"].status) == ("refused", "taken")
    assert "none of UTF-8" in students["ada"].reason


def test_folders_that_lie_too_deep_refuse_their_student_alone(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def shallow(top: str | os.PathLike[str]) -> object:
        if (Path(top) / "deep").exists():
            raise RecursionError
        return walk(top)

    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/deep/a/b.txt")
    downloads.put(f"bob/{LAB}/benchmark.py")
    monkeypatch.setattr(os, "walk", shallow)
    students = downloads.take()
    assert students["ada"].reason.startswith("holds folders that lie too deep in each other")
    assert students["bob"].status == "taken"


def test_only_what_canvas_numbered_loses_its_number(downloads: Downloads) -> None:
    inner = zipped(downloads.folder.parent / "lab.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    downloads.pack("ada.zip", {"lab.zip": inner, "plot-1.png": b"1", "plot-2.png": b"2"})
    assert {f"{LAB}/plot-1.png", f"{LAB}/plot-2.png"} < set(downloads.files(downloads.take()["ada"]))


def test_weights_are_no_compiled_code_and_many_files_of_it_are_one_remark(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put(f"ada/{LAB}/model.pth")
    for number in range(10):
        downloads.put(f"ada/{LAB}/lib/{number}.so")
    assert downloads.take()["ada"].reason == (
        f"'{LAB}/lib/0.so', '{LAB}/lib/1.so', '{LAB}/lib/2.so' and 7 more are compiled code, and do not count"
    )
