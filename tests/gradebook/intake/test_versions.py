"""Where platforms keep versions and attachments in a student's folder, and archives called as a lab is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.gradebook.intake.downloads import LAB, Downloads


def test_of_the_versions_that_teams_keeps_the_last_one_counts(downloads: Downloads) -> None:
    for version in (1, 2, 10):
        downloads.pack(f"Ada Lovelace/Lab 1/Version {version}/labs.zip", {f"{LAB}/a.py": b"%d" % version})
    downloads.put(f"Bob/Lab 1/Version 1/{LAB}/a.py", b"of bob")
    taken = downloads.take()
    assert downloads.files(taken["Ada Lovelace"]) == {f"{LAB}/a.py": b"10"}
    assert "'Version 10' counts, and earlier ones do not: 'Version 1', 'Version 2'" in taken["Ada Lovelace"].reason
    assert downloads.files(taken["Bob"]) == {f"{LAB}/a.py": b"of bob"}


def test_of_sakai_s_folder_the_attachments_count(downloads: Downloads) -> None:
    place = "Lovelace, Ada(al001)"
    downloads.pack(f"{place}/Submission attachment(s)/labs.zip", {f"{LAB}/a.py": b"ada"})
    for beside in ("timestamp.txt", "comments.txt", "Feedback Attachment(s)/a.pdf", f"{place}_submissionText.html"):
        downloads.put(f"{place}/{beside}")
    (downloads.put("Ross, Bob(br002)/Submission attachment(s)/x").parent / "x").unlink()
    downloads.put("Ross, Bob(br002)/timestamp.txt")
    taken = downloads.take()
    assert downloads.files(taken[place]) == {f"{LAB}/a.py": b"ada"}
    assert taken[place].reason == ""
    assert taken["Ross, Bob(br002)"].reason.startswith("holds no lab, nothing at all")


def test_of_submitty_s_versions_the_active_one_counts(downloads: Downloads) -> None:
    for student, active in (("ada", 1), ("chen", 10), ("dan", 0)):
        for version in (1, 2, 10):
            downloads.put(f"{student}/{version}/benchmark.py", b"x = %d" % version)
            downloads.put(f"{student}/{version}/.submit.timestamp", b"2026-10-24")
        settings = b'{"active_version": %d, "history": []}' % active
        downloads.put(f"{student}/user_assignment_settings.json", settings)
    taken = downloads.take(1)
    for student, version in (("ada", b"x = 1"), ("chen", b"x = 10")):
        assert downloads.files(taken[student])[f"{LAB}/benchmark.py"] == version
    assert "version 1 counts, which is active on Submitty, and not 2, 10" in taken["ada"].reason
    assert taken["dan"].status == "undecided"
    assert "has versions 1, 2, 10, and Submitty says that 0 is active: choose one there" in taken["dan"].reason


def test_of_autolab_s_versions_the_last_one_counts(downloads: Downloads) -> None:
    roster = "student,email\nada,a_l@uni.example\nbob,bob@uni.example\n"
    for version in (9, 10):
        downloads.pack(f"a_l@uni.example_{version}_handin.zip", {f"{LAB}/a.py": b"%d" % version})
        downloads.put(f"bob@uni.example_{version}_benchmark.py", b"x = %d" % version)
    downloads.put("annotated_bob@uni.example_10_handin.pdf")
    taken = downloads.take(1, roster=roster)
    assert downloads.files(taken["ada"]) == {f"{LAB}/a.py": b"10"}
    assert downloads.files(taken["bob"]) == {f"{LAB}/benchmark.py": b"x = 10"}
    assert sorted(downloads.intake.passed_over) == [
        "a_l@uni.example_9_handin.zip (an earlier attempt)",
        "annotated_bob@uni.example_10_handin.pdf",
        "bob@uni.example_9_benchmark.py (an earlier attempt)",
    ]


@pytest.mark.parametrize("labs", [(1, 2), (2,)])
def test_an_archive_in_a_submission_is_the_lab_that_it_is_called(downloads: Downloads, labs: tuple[int, ...]) -> None:
    """And no part of the class's only lab."""
    downloads.pack("chen/lab1.zip", {f"{LAB}/benchmark.py": b"one"})
    downloads.pack("chen/lab2.zip", {"train.py": b"two"})
    student = downloads.take(*labs)["chen"]
    expected = {f"{LAB}/benchmark.py": b"one", "lab2_mixed_precision/train.py": b"two"}
    assert downloads.files(student) == expected
    assert "the files of 'lab2.zip' counted as part of lab2_mixed_precision" in student.reason


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (b"20261024183000000", datetime(2026, 10, 24, 18, 30, tzinfo=UTC)),
        (b"2026-10-24T18:30:00Z\n", datetime(2026, 10, 24, 18, 30, tzinfo=UTC)),
        (b"yesterday", None),
    ],
)
def test_sakai_says_when(downloads: Downloads, text: bytes, moment: datetime | None) -> None:
    downloads.pack("Lovelace, Ada(al001)/Submission attachment(s)/labs.zip", {f"{LAB}/a.py": b"ada"})
    downloads.put("Lovelace, Ada(al001)/timestamp.txt", text)
    downloads.pack("Ross, Bob(br002)/labs.zip", {f"{LAB}/a.py": b"bob"})
    downloads.put("Ross, Bob(br002)/timestamp.txt", b"20200101000000000")  # the student's own file
    taken = downloads.take()
    assert taken["Lovelace, Ada(al001)"].submitted_at == moment
    assert taken["Ross, Bob(br002)"].submitted_at is None


def test_the_moment_in_front_of_a_file_s_name_is_no_part_of_it(downloads: Downloads) -> None:
    downloads.put("Lovelace_Ada_al001_4711/20261024183000_benchmark.py", b"x = 1\n")
    downloads.put("Ross_Bob_br002_4712/20261024183000_benchmark.py", b"x = 1\n")
    downloads.put("Ross_Bob_br002_4712/20261024190000_benchmark.py", b"x = 2\n")
    taken = downloads.take(1)
    assert downloads.files(taken["Lovelace_Ada_al001_4711"]) == {f"{LAB}/benchmark.py": b"x = 1\n"}
    reason = taken["Ross_Bob_br002_4712"].reason
    assert reason.startswith("holds 'lab1_gpu_basics/benchmark.py' twice")
