"""Repositories of strangers: which commit is graded, and that nothing in them is obeyed."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gradebook.intake.collect import Intake, Store
from gradebook.intake.handed_in import find
from gradebook.intake.roster_files import load
from gradebook.results import Student
from gradebook.settings import GitSettings, Settings

DEADLINE = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Repository:
    """A student's repository with a working tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, **environment: str) -> str:
        who = {f"GIT_{role}_{what}": "student 17" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *arguments],
            env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, **environment},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, text: str, day: int) -> str:
        """A commit on the `day` of March 2026, at noon."""
        lab = self.folder / "lab1_gpu_basics"
        lab.mkdir(exist_ok=True)
        (lab / "benchmark.py").write_text(text)
        self.git("add", "--all")
        when = f"2026-03-{day:02}T12:00:00+00:00"
        self.git("commit", "--quiet", "--message", text, GIT_COMMITTER_DATE=when, GIT_AUTHOR_DATE=when)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "source" / "ada")


def take(tmp_path: Path, settings: Settings | None = None, rev: str | None = None, where: str = "source") -> Student:
    intake = Intake(settings or Settings(), None, Store(tmp_path / "store"), tmp_path / "room", rev)
    (student,) = intake.take_all(tmp_path / where, lambda name: None)
    return student


def text_of(tmp_path: Path, student: Student) -> str:
    assert student.content is not None, student.reason
    return (Store(tmp_path / "store").path(student.content) / "lab1_gpu_basics" / "benchmark.py").read_text()


def test_the_last_commit_is_graded_and_not_the_working_tree(repository: Repository, tmp_path: Path) -> None:
    repository.commit("first", 1)
    last = repository.commit("second", 2)
    (repository.folder / "lab1_gpu_basics" / "benchmark.py").write_text("never committed")
    student = take(tmp_path)
    assert text_of(tmp_path, student) == "second"
    assert (student.commit, student.submitted_at) == (last, datetime(2026, 3, 2, 12, tzinfo=UTC))


def test_the_last_commit_before_the_deadline_is_graded(repository: Repository, tmp_path: Path) -> None:
    in_time = repository.commit("in time", 1)
    repository.commit("late", 2)
    assert take(tmp_path, Settings(deadline=DEADLINE)).commit == in_time


def test_work_on_another_branch_and_submodules_are_named(repository: Repository, tmp_path: Path) -> None:
    repository.commit("main", 1)
    repository.git("branch", "merged")
    repository.git("checkout", "--quiet", "-b", "my-work")
    inner = Repository(tmp_path / "inner")
    inner.commit("inner", 1)
    repository.commit("work", 2)
    repository.git("checkout", "--quiet", "main")
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(inner.folder), "helpers")
    repository.commit("with a submodule", 3)
    student = take(tmp_path, Settings(deadline=datetime(2026, 3, 4, tzinfo=UTC)))
    assert text_of(tmp_path, student) == "with a submodule"
    assert "'helpers' is a submodule, which is another repository and not fetched" in student.reason
    assert "the branch 'my-work' has commits that 'main' does not have, and only 'main' counts" in student.reason
    assert "merged" not in student.reason
    assert "my-work" not in take(tmp_path, rev="my-work").reason, "an instructor has chosen"


def test_what_came_after_the_deadline_is_said(repository: Repository, tmp_path: Path) -> None:
    in_time = repository.commit("in time", day=1)
    assert take(tmp_path, Settings(deadline=DEADLINE)).reason == ""
    repository.commit("late", day=2)
    repository.commit("later", day=3)
    reason = take(tmp_path, Settings(deadline=DEADLINE)).reason
    assert reason == (
        f"commit {in_time[:10]} was the last in time; 2 later ones came after the deadline and were not graded"
    )


def test_an_extension_moves_the_deadline(repository: Repository, tmp_path: Path) -> None:
    repository.commit("in time", 1)
    late = repository.commit("late", 2)
    extended = Settings(deadline=DEADLINE, extensions={"ada": DEADLINE.replace(day=3)})
    assert take(tmp_path, extended).commit == late


def test_who_has_only_late_commits_is_graded_by_the_last_one(repository: Repository, tmp_path: Path) -> None:
    repository.commit("late", 2)
    later = repository.commit("later", 3)
    assert take(tmp_path, Settings(deadline=DEADLINE)).commit == later


def test_a_class_may_take_the_latest_commit_whenever_it_is_from(repository: Repository, tmp_path: Path) -> None:
    repository.commit("in time", 1)
    late = repository.commit("late", 2)
    assert take(tmp_path, Settings(deadline=DEADLINE, git=GitSettings(only_in_time=False))).commit == late


def test_another_branch_or_a_tag_may_be_named(repository: Repository, tmp_path: Path) -> None:
    on_main = repository.commit("on main", 1)
    repository.git("tag", "submission")
    repository.git("switch", "--quiet", "--create", "work")
    on_work = repository.commit("on work", 2)
    assert take(tmp_path, Settings(git=GitSettings(branch="work"))).commit == on_work
    assert take(tmp_path, rev="submission").commit == on_main


@pytest.mark.parametrize(
    ("settings", "rev", "message"),
    [
        (GitSettings(branch="gone"), None, "has no branch 'gone', which counts, but 'main': push the work to 'gone'"),
        (GitSettings(), "v1", "has no commit, tag or branch v1, but a tag 'V1': push it"),
        (GitSettings(), "--output=/tmp/x", "has no commit, tag or branch --output"),
    ],
)
def test_what_is_not_there_is_said(
    repository: Repository, tmp_path: Path, settings: GitSettings, rev: str | None, message: str
) -> None:
    repository.git("tag", "V1", repository.commit("first", 1))
    assert message in take(tmp_path, Settings(git=settings), rev).reason


def test_a_repository_without_commits_is_refused(repository: Repository, tmp_path: Path) -> None:
    assert "has no commits on a branch of its own" in take(tmp_path).reason


def test_a_bare_repository_is_graded_too(repository: Repository, tmp_path: Path) -> None:
    repository.commit("first", 1)
    repository.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare" / "ada.git"))
    student = take(tmp_path, where="bare")
    assert (student.student, text_of(tmp_path, student)) == ("ada", "first")


@pytest.mark.parametrize("form", ["csv", "toml"])
def test_a_list_of_addresses_is_fetched(repository: Repository, tmp_path: Path, form: str) -> None:
    first = repository.commit("first", 1)
    repository.commit("second", 2)
    address = repository.folder.as_uri()
    (tmp_path / "list.csv").write_text(f"student,repository,commit\nada,{address},{first}\n")
    (tmp_path / "list.toml").write_text(f"[[submission]]\nstudent='ada'\nrepository='{address}'\ncommit='{first}'\n")
    student = take(tmp_path, Settings(git=GitSettings(protocols=("file",))), where=f"list.{form}")
    assert (student.student, text_of(tmp_path, student)) == ("ada", "first")


def test_a_second_look_at_an_address_finds_new_commits(repository: Repository, tmp_path: Path) -> None:
    repository.commit("first", 1)
    (tmp_path / "list.csv").write_text(f"student,repository\nada,{repository.folder}\n")
    settings = Settings(git=GitSettings(protocols=("file",)))
    take(tmp_path, settings, where="list.csv")
    repository.commit("second", 2)
    assert text_of(tmp_path, take(tmp_path, settings, where="list.csv")) == "second"


@pytest.mark.parametrize("address", ["file:///etc", "ext::sh -c touch% /tmp/x", "--upload-pack=touch x"])
def test_an_address_may_use_only_the_protocols_of_the_class(tmp_path: Path, address: str) -> None:
    (tmp_path / "LIST.CSV").write_text(f"student,repository\nada,{address}\n")
    student = take(tmp_path, where="LIST.CSV")
    assert (student.status, student.content) == ("no_repository", None)
    assert student.reason.startswith("no repository at ")


def test_a_folder_with_a_repository_is_recognised(repository: Repository, tmp_path: Path) -> None:
    assert [submission.kind for submission in find(tmp_path / "source")] == ["repository"]


HOSTILE = """\
[core]
	fsmonitor = touch {marker}
	hooksPath = {hooks}
	sshCommand = touch {marker}
	pager = touch {marker}
[uploadpack]
	packObjectsHook = touch {marker};
[filter "x"]
	smudge = touch {marker}
	clean = touch {marker}
[log]
	showSignature = true
[gpg]
	program = {hooks}/post-checkout
[alias]
	fetch = !touch {marker}
"""


def test_nothing_that_a_repository_configures_is_executed(repository: Repository, tmp_path: Path) -> None:
    (repository.folder / ".gitattributes").write_text("* filter=x\n")
    repository.commit("first", 1)
    marker, hooks = tmp_path / "marker", repository.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-upload-pack", "pre-upload-pack", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (hooks / name).chmod(0o755)
    with (repository.folder / ".git" / "config").open("a") as file:
        file.write(HOSTILE.format(marker=marker, hooks=hooks))
    assert text_of(tmp_path, take(tmp_path)) == "first"
    assert not marker.exists()


def test_our_own_variables_do_not_lead_git_elsewhere(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("first", 1)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert text_of(tmp_path, take(tmp_path)) == "first"


def test_objects_of_another_repository_are_refused(repository: Repository, tmp_path: Path) -> None:
    repository.commit("first", 1)
    other = Repository(tmp_path / "other")
    other.commit("somebody else's", 1)
    (repository.folder / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (repository.folder / ".git" / "objects" / "info" / "alternates").write_text(f"{other.folder}/.git/objects\n")
    assert "uses the objects of another repository" in take(tmp_path).reason


@pytest.mark.parametrize("what", [".git", ".git/refs/heads/main", ".git/objects"])
def test_links_inside_of_a_repository_are_refused(repository: Repository, tmp_path: Path, what: str) -> None:
    repository.commit("first", 1)
    moved = tmp_path / "moved"
    (repository.folder / what).rename(moved)
    (repository.folder / what).symlink_to(moved)
    reason = take(tmp_path).reason
    assert "has a link inside .git" in reason or ".git leads to another folder" in reason


def test_a_git_file_that_points_elsewhere_is_refused(repository: Repository, tmp_path: Path) -> None:
    repository.commit("first", 1)
    (repository.folder / ".git").rename(tmp_path / "moved")
    (repository.folder / ".git").write_text(f"gitdir: {tmp_path}/moved\n")
    assert ".git leads to another folder" in take(tmp_path).reason


def test_a_committed_link_is_refused(repository: Repository, tmp_path: Path) -> None:
    (repository.folder / "notes").symlink_to("/etc/passwd")
    repository.commit("first", 1)
    assert "'notes' is a link; commit the file itself" in take(tmp_path).reason


def test_submodules_are_left_out(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first", 1)
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},module")
    repository.git("commit", "--quiet", "--message", "with a submodule")
    assert text_of(tmp_path, take(tmp_path)) == "first"
    repository.git("rm", "--cached", "-r", "--quiet", "lab1_gpu_basics")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},lab1_gpu_basics")
    repository.git("commit", "--quiet", "--message", "git init in the lab")
    reason = take(tmp_path).reason
    assert (reason.startswith("holds no lab"), "'lab1_gpu_basics' is a submodule" in reason) == (True, True)


def test_few_objects_that_make_a_huge_tree_are_refused(repository: Repository, tmp_path: Path) -> None:
    blob = subprocess.run(
        ["git", "-C", str(repository.folder), "hash-object", "-w", "--stdin"],
        input=b"x", capture_output=True, check=True,
    ).stdout.decode().strip()  # fmt: skip
    kind, mode, below = "blob", "100644", blob
    for _ in range(8):
        lines = "".join(f"{mode} {kind} {below}\t{number}\n" for number in range(10))
        below = subprocess.run(
            ["git", "-C", str(repository.folder), "mktree"], input=lines.encode(), capture_output=True, check=True
        ).stdout.decode().strip()  # fmt: skip
        kind, mode = "tree", "040000"
    commit = repository.git("commit-tree", "-m", "bomb", below)
    repository.git("update-ref", "refs/heads/main", commit)
    assert "far too many files" in take(tmp_path).reason


def test_two_commits_of_one_repository_are_two_submissions(repository: Repository, tmp_path: Path) -> None:
    first, second = repository.commit("first", 1), repository.commit("second", 2)
    (tmp_path / "roster.csv").write_text("student,ID\nada,17\n")
    rows = f"ada,{repository.folder},{first}\n17,{repository.folder},{second}\n"
    (tmp_path / "list.csv").write_text(f"student,repository,commit\n{rows}")
    intake = Intake(Settings(), load(tmp_path / "roster.csv"), Store(tmp_path / "store"), tmp_path / "room", None)
    (student,) = intake.take_all(tmp_path / "list.csv", lambda name: None)
    assert (student.status, student.reason.partition(":")[0]) == ("undecided", "handed in more than once")


def test_a_commit_that_is_checked_out_leaves_the_branch_to_be_graded(tmp_path: Path, repository: Repository) -> None:
    """As instructors check out the last commit before a deadline, and some tools every repository."""
    repository.commit("one", 1)
    repository.git("branch", "feedback")
    repository.commit("two", 2)
    repository.git("checkout", "--quiet", "--detach", "HEAD~1")
    student = take(tmp_path)
    assert "two" in text_of(tmp_path, student)
    assert "names no branch as its own (its HEAD is a commit), so 'main' counts" in student.reason
    repository.git("branch", "--move", "main", "mine")
    student = take(tmp_path)
    assert (student.status, "has several branches ('feedback', 'mine')" in student.reason) == ("undecided", True)
    repository.git("branch", "--delete", "--force", "feedback")
    assert "so 'mine' counts" in take(tmp_path).reason


def test_a_graded_commit_that_is_pushed_away_is_named(tmp_path: Path, repository: Repository) -> None:
    first = repository.commit("one", 1)

    def notices(**others: str) -> list[str]:
        intake = Intake(
            Settings(deadline=DEADLINE), None, Store(tmp_path / "store"), tmp_path / "room", None,
            graded_before={"ada": first, **others},
        )  # fmt: skip
        intake.take_all(tmp_path / "source", lambda name: None)
        return [text for text in intake.notices if "which an earlier run graded" in text]

    repository.commit("two", 2)
    assert notices() == []
    repository.git("reset", "--quiet", "--hard", first)
    repository.git("commit", "--quiet", "--amend", "--message", "new", GIT_COMMITTER_DATE="2026-03-05T12:00:00+00:00")
    (text,) = notices()
    assert text.startswith(f"ada: commit {first[:10]}, which an earlier run graded, is not in the repository any more")
    assert "of 2026-03-05 12:00 UTC counts now" in text
    # The roster gave Bob's repository to Ada: nobody has changed a history.
    assert notices(bob=repository.git("rev-parse", "HEAD")) == []


def test_a_shallow_clone_may_lack_what_was_in_time(tmp_path: Path, repository: Repository) -> None:
    first = repository.commit("one", 1)
    repository.commit("two", 5)
    for depth, said in (("1", True), ("2", False)):
        clone = tmp_path / f"depth{depth}" / "ada"
        repository.git("clone", "--quiet", "--depth", depth, f"file://{repository.folder}", str(clone))
        settings = Settings(deadline=DEADLINE)
        student = take(tmp_path, settings, where=clone.parent.name)
        assert ("the clone is shallow (git clone --depth) and has no earlier ones" in student.reason) == said
        intake = Intake(
            settings, None, Store(tmp_path / "store"), tmp_path / "room", None, graded_before={"ada": first}
        )
        intake.take_all(clone.parent, lambda name: None)
        assert not any("rewritten" in text for text in intake.notices), "nobody is accused of what a clone lacks"
        about_shallow = [text for text in intake.notices if "is not in this clone, which is shallow" in text]
        assert len(about_shallow) == said


def test_what_is_not_committed_is_named(tmp_path: Path, repository: Repository) -> None:
    repository.commit("one\n", 1)
    lab = repository.folder / "lab1_gpu_basics"
    (lab / "benchmark.py").write_bytes(b"one\r\n")
    (lab / "plot.png").write_bytes(b"new")
    (lab / ".venv").mkdir()
    (lab / ".venv" / "x.py").write_text("")
    (lab / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(lab / "pipe.py")
    assert take(tmp_path).reason == ""
    (lab / "REPORT.md").write_text("mine")
    name = "'lab1_gpu_basics/REPORT.md'"
    assert take(tmp_path).reason == f"{name} is not committed as it is in the folder, and only the commit counts"
    (lab / "benchmark.py").write_text("two")
    student = take(tmp_path)
    assert f"{name}, 'lab1_gpu_basics/benchmark.py' are not committed as they are" in student.reason
    assert "one" in text_of(tmp_path, student)
    repository.git("add", "--all")
    repository.commit("three", 5)
    (lab / "benchmark.py").write_text("four")
    assert "not committed" not in take(tmp_path, Settings(deadline=DEADLINE)).reason, "an earlier commit counts anyway"


def test_a_later_commit_of_the_future_is_named(repository: Repository, tmp_path: Path) -> None:
    """A clock was wrong, and the work may have been in time; unless a push says when it came."""
    repository.commit("first", 1)
    (repository.folder / "lab1_gpu_basics" / "benchmark.py").write_text("second")
    for year in (2061, 2062):
        when = f"{year}-01-01T00:00:00+00:00"
        repository.git("commit", "--quiet", "--allow-empty", "--all", "--message", "x", GIT_COMMITTER_DATE=when)
        student = take(tmp_path, Settings(deadline=DEADLINE))
        assert text_of(tmp_path, student) == "first"
        assert (
            "which is in the future, so the clock of the computer was wrong: its work may have been" in student.reason
        )
    repository.git("reset", "--quiet", "--hard", "HEAD~2")
    repository.commit("late", 9)
    assert "in the future" not in take(tmp_path, Settings(deadline=DEADLINE)).reason


def set_up(repository: Repository, text: str, day: int) -> None:
    """What GitHub's own program commits."""
    (repository.folder / "README.md").write_text(text)
    repository.git("add", "--all")
    when = f"2026-03-{day:02}T12:00:00+00:00"
    repository.git(
        "commit", "--quiet", "--message", text, GIT_AUTHOR_NAME="github-classroom[bot]", GIT_COMMITTER_DATE=when
    )


def test_what_a_platform_committed_by_itself_is_nobodys_work_in_time(tmp_path: Path, repository: Repository) -> None:
    """As after a rebase, or where somebody began after the deadline: late work goes before the stubs."""
    set_up(repository, "first", day=1)
    last = repository.commit("mine", day=2)
    student = take(tmp_path, Settings(deadline=DEADLINE))
    assert (student.commit, text_of(tmp_path, student)) == (last, "mine")
    assert "only commits of the platform itself were in time, so the last one counts" in student.reason


def test_a_platforms_commit_after_work_in_time_leaves_that_in_time(tmp_path: Path, repository: Repository) -> None:
    repository.commit("mine", day=1)
    set_up(repository, "feedback", day=1)
    repository.commit("later", day=2)
    student = take(tmp_path, Settings(deadline=DEADLINE))
    assert text_of(tmp_path, student) == "mine"
    assert "1 later one came after the deadline" in student.reason
