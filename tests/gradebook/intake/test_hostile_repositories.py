"""Repositories made to lead git elsewhere: to a classmate's files, to a command, or out of time and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradebook.intake.handed_in import find
from gradebook.intake.repositories import Repository as OurCopy
from gradebook.settings import GitSettings, Settings
from tests.gradebook.intake.test_repositories import Repository, take, text_of

THEIRS = "the classmate's answer"


@pytest.fixture
def classmate(tmp_path: Path) -> Repository:
    """A repository whose path and last commit the attacker knows."""
    repository = Repository(tmp_path / "elsewhere" / "bob")
    repository.commit(THEIRS, 1)
    return repository


@pytest.fixture
def ada(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "source" / "ada")
    repository.commit("my own", 1)
    return repository


def git_folder(repository: Repository) -> Path:
    return repository.folder / ".git"


def bare(folder: Path, classmate: Repository) -> Path:
    """An empty bare repository whose branch is the classmate's last commit."""
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
    (folder / "refs" / "heads" / "main").write_text(classmate.git("rev-parse", "HEAD") + "\n")
    return folder


def borrow(git: Path, classmate: Repository, name: str = "alternates") -> None:
    (git / "objects" / "info").mkdir(exist_ok=True)
    (git / "objects" / "info" / name).write_text(f"{git_folder(classmate)}/objects\n")


def decoy(folder: Path) -> None:
    """A `.git` that looks right at first sight, and that git passes over."""
    (folder / ".git" / "objects" / "info").mkdir(parents=True)
    (folder / ".git" / "refs").mkdir()


def bare_behind_a_decoy(source: Path, classmate: Repository) -> None:
    borrow(bare(source / "ada", classmate), classmate)
    decoy(source / "ada")


def bare_behind_an_empty_decoy(source: Path, classmate: Repository) -> None:
    borrow(bare(source / "ada", classmate), classmate)
    (source / "ada" / ".git").mkdir()


def bare_behind_a_decoy_with_a_wrong_head(source: Path, classmate: Repository) -> None:
    bare_behind_a_decoy(source, classmate)
    (source / "ada" / ".git" / "HEAD").write_text("nothing that git would take\n")


def http_alternates(source: Path, classmate: Repository) -> None:
    borrow(bare(source / "ada", classmate), classmate, "http-alternates")


def a_repository_inside_of_git(source: Path, classmate: Repository) -> None:
    """Git, told to open `ada/.git`, tries `ada/.git/.git` first."""
    bare(source / "ada" / ".git", classmate)
    borrow(bare(source / "ada" / ".git" / ".git", classmate), classmate)


def commondir(source: Path, classmate: Repository) -> None:
    git = bare(source / "ada" / ".git", classmate)
    (git / "commondir").write_text(f"{git_folder(classmate)}\n")


def commondir_behind_a_decoy(source: Path, classmate: Repository) -> None:
    git = bare(source / "ada", classmate)
    (git / "commondir").write_text(f"{git_folder(classmate)}\n")
    decoy(git)


def links_behind_a_decoy(source: Path, classmate: Repository) -> None:
    git = bare(source / "ada", classmate)
    shutil.rmtree(git / "objects")
    (git / "objects").symlink_to(git_folder(classmate) / "objects")
    decoy(git)


def gitdir_file(source: Path, classmate: Repository) -> None:
    (source / "ada").mkdir(parents=True)
    (source / "ada" / ".git").write_text(f"gitdir: {git_folder(classmate)}\n")


def gitdir_link(source: Path, classmate: Repository) -> None:
    (source / "ada").mkdir(parents=True)
    (source / "ada" / ".git").symlink_to(git_folder(classmate))


def worktree(source: Path, classmate: Repository) -> None:
    classmate.git("worktree", "add", "--quiet", "-b", "mine", str(source / "ada"))


def head_elsewhere(source: Path, classmate: Repository) -> None:
    git = bare(source / "ada" / ".git", classmate)
    (git / "HEAD").write_text(f"ref: refs/heads/../../../../../{git_folder(classmate)}/HEAD\n")


def shared_clone(source: Path, classmate: Repository) -> None:
    classmate.git("clone", "--quiet", "--shared", ".", str(source / "ada"))


@pytest.mark.parametrize(
    "make",
    [
        bare_behind_a_decoy,
        bare_behind_an_empty_decoy,
        bare_behind_a_decoy_with_a_wrong_head,
        http_alternates,
        a_repository_inside_of_git,
        commondir,
        commondir_behind_a_decoy,
        links_behind_a_decoy,
        gitdir_file,
        gitdir_link,
        worktree,
        head_elsewhere,
        shared_clone,
    ],
)
def test_the_files_of_a_classmate_do_not_come_out(
    tmp_path: Path, classmate: Repository, make: Callable[[Path, Repository], None]
) -> None:
    (tmp_path / "source").mkdir()
    make(tmp_path / "source", classmate)
    student = take(tmp_path)
    assert (student.status, student.content) == ("refused", None)
    assert student.reason


@pytest.mark.parametrize("place", ["objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags"])
def test_a_linked_folder_is_refused(tmp_path: Path, ada: Repository, classmate: Repository, place: str) -> None:
    shutil.rmtree(git_folder(ada) / place, ignore_errors=True)
    (git_folder(ada) / place).symlink_to(git_folder(classmate) / place)
    assert "has a link inside .git" in take(tmp_path).reason


@pytest.mark.parametrize("place", ["HEAD", "packed-refs", "refs/heads/main", "shallow"])
def test_a_linked_file_is_refused(tmp_path: Path, ada: Repository, classmate: Repository, place: str) -> None:
    (git_folder(classmate) / "packed-refs").touch()
    (git_folder(ada) / place).unlink(missing_ok=True)
    (git_folder(ada) / place).symlink_to(git_folder(classmate) / place)
    if place == "shallow":
        (git_folder(classmate) / place).touch()
    assert "has a link inside .git" in take(tmp_path).reason


def test_a_linked_pack_is_refused(tmp_path: Path, ada: Repository, classmate: Repository) -> None:
    classmate.git("gc", "--quiet")
    for pack in (git_folder(classmate) / "objects" / "pack").iterdir():
        (git_folder(ada) / "objects" / "pack" / pack.name).symlink_to(pack)
    (git_folder(ada) / "refs" / "heads" / "main").write_text(classmate.git("rev-parse", "HEAD") + "\n")
    assert "has a link inside .git" in take(tmp_path).reason


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path, ada: Repository) -> None:
    (git_folder(ada) / "refs" / "heads" / "main").unlink()
    os.mkfifo(git_folder(ada) / "refs" / "heads" / "main")
    assert "no file where one should be" in take(tmp_path).reason


CONFIGURATION = """\
[core]
	repositoryformatversion = 1
	worktree = {theirs}
	fsmonitor = touch {marker}
	alternateRefsCommand = touch {marker}
[include]
	path = {included}
[includeIf "gitdir:/"]
	path = {included}
[extensions]
	partialClone = origin
	worktreeConfig = true
	preciousObjects = true
[remote "origin"]
	url = file://{theirs}/.git
	promisor = true
	uploadpack = touch {marker}; git-upload-pack
"""


def test_no_configuration_of_a_repository_counts(tmp_path: Path, ada: Repository, classmate: Repository) -> None:
    marker, included = tmp_path / "marker", tmp_path / "included"
    included.write_text(f"[uploadpack]\n\tpackObjectsHook = touch {marker};\n")
    words = {"theirs": classmate.folder, "marker": marker, "included": included}
    (git_folder(ada) / "config").write_text(CONFIGURATION.format(**words))
    (git_folder(ada) / "config.worktree").write_text(CONFIGURATION.format(**words))
    assert text_of(tmp_path, take(tmp_path)) == "my own"
    assert not marker.exists()


def test_objects_that_a_server_would_have_are_not_asked_for(
    tmp_path: Path, ada: Repository, classmate: Repository
) -> None:
    marker = tmp_path / "marker"
    words = {"theirs": classmate.folder, "marker": marker, "included": tmp_path / "included"}
    (git_folder(ada) / "config").write_text(CONFIGURATION.format(**words))
    (git_folder(ada) / "refs" / "heads" / "main").write_text(classmate.git("rev-parse", "HEAD") + "\n")
    assert take(tmp_path).status == "refused"
    assert not marker.exists()


def test_grafts_and_replacements_do_not_count(tmp_path: Path, ada: Repository) -> None:
    first = ada.git("rev-parse", "HEAD")
    other = ada.commit("another answer", 2)
    ada.git("reset", "--quiet", "--hard", first)
    ada.git("replace", first, other)
    (git_folder(ada) / "info").mkdir(exist_ok=True)
    (git_folder(ada) / "info" / "grafts").write_text(f"{first} {other}\n")
    student = take(tmp_path)
    assert (student.commit, text_of(tmp_path, student)) == (first, "my own")


def test_an_object_under_a_false_name_is_refused(tmp_path: Path, ada: Repository) -> None:
    """A commit that was in time must not stand for other work later."""
    in_time = ada.git("rev-parse", "HEAD")
    blob = ada.git("rev-parse", "HEAD:lab1_gpu_basics/benchmark.py")
    file = git_folder(ada) / "objects" / blob[:2] / blob[2:]
    file.unlink()
    file.write_bytes(zlib.compress(b"blob 12\0written late"))
    assert take(tmp_path, rev=in_time).status == "refused"


def test_names_of_branches_lead_nowhere(tmp_path: Path, ada: Repository) -> None:
    commit = ada.git("rev-parse", "HEAD")
    names = ("refs/heads/../../../x", "refs/heads/a..b", "refs/heads/.hidden", "refs/heads/x.lock", "HEAD", "../x")
    lines = "".join(f"{commit} {name}\n" for name in (*names, "refs/replace/x", "refs/heads/main"))
    (git_folder(ada) / "packed-refs").write_text(lines)
    assert text_of(tmp_path, take(tmp_path)) == "my own"


def test_a_decoy_does_not_hide_a_bare_repository_that_stands_by_itself(tmp_path: Path, ada: Repository) -> None:
    ada.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare" / "ada"))
    (tmp_path / "bare" / "ada" / ".git").mkdir()
    assert text_of(tmp_path, take(tmp_path, where="bare")) == "my own"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda git: (git / "HEAD").write_text("ref: refs/heads/.invalid\n"), "reftable"),
        (lambda git: (git / "refs" / "heads" / "main").write_text(64 * "a"), "SHA-256"),
        (lambda git: (git / "HEAD").unlink(), ".git is no git repository"),
    ],
    ids=["reftable", "SHA-256", "no HEAD"],
)
def test_what_git_cannot_read_here_is_said(
    tmp_path: Path, ada: Repository, prepare: Callable[[Path], object], reason: str
) -> None:
    prepare(git_folder(ada))
    assert reason in take(tmp_path).reason


@pytest.mark.parametrize("options", [["--no-local"], ["--local"], ["--depth=1", "--no-local"], ["--bare"]], ids=str)
def test_an_honest_clone_is_graded_however_it_was_made(tmp_path: Path, ada: Repository, options: list[str]) -> None:
    ada.commit("my second", 2)
    url = ada.folder.as_uri() if "--no-local" in options else "."
    ada.git("clone", "--quiet", *options, url, str(tmp_path / "cloned" / "ada"))
    student = take(tmp_path, where="cloned")
    assert (student.commit, text_of(tmp_path, student)) == (ada.git("rev-parse", "HEAD"), "my second")


def test_packed_branches_and_objects_are_graded(tmp_path: Path, ada: Repository) -> None:
    ada.git("gc", "--quiet", "--aggressive")
    ada.git("pack-refs", "--all")
    assert text_of(tmp_path, take(tmp_path)) == "my own"


def test_a_hook_that_is_a_link_is_no_reason_to_refuse(tmp_path: Path, ada: Repository) -> None:
    (git_folder(ada) / "hooks").mkdir(exist_ok=True)
    (git_folder(ada) / "hooks" / "pre-commit").symlink_to("/usr/bin/true")
    assert text_of(tmp_path, take(tmp_path)) == "my own"


def test_a_partial_clone_that_lacks_files_is_told_what_to_do(tmp_path: Path, ada: Repository) -> None:
    ada.commit("my second", 2)
    ada.git("config", "uploadpack.allowFilter", "true")
    url = ada.folder.as_uri()
    ada.git("clone", "--quiet", "--no-checkout", "--filter=blob:none", url, str(tmp_path / "cloned" / "ada"))
    assert "hand in a clone without --filter" in take(tmp_path, where="cloned").reason


def test_a_folder_that_a_list_names_is_looked_at_as_closely(tmp_path: Path, classmate: Repository) -> None:
    borrow(bare(tmp_path / "ada", classmate), classmate)
    decoy(tmp_path / "ada")
    settings = Settings(git=GitSettings(protocols=("file",)))
    for address in (str(tmp_path / "ada"), (tmp_path / "ada").as_uri()):
        (tmp_path / "list.csv").write_text(f"student,repository\nada,{address}\n")
        assert "uses the objects of another" in take(tmp_path, settings, where="list.csv").reason


def test_a_name_that_git_would_complete_is_no_folder(tmp_path: Path, classmate: Repository) -> None:
    """Git, asked for `ada`, would open `ada.git`."""
    classmate.git("clone", "--quiet", "--shared", "--bare", ".", str(tmp_path / "ada.git"))
    settings = Settings(git=GitSettings(protocols=("file",)))
    (tmp_path / "list.csv").write_text(f"student,repository\nada,{tmp_path}/ada\n")
    student = take(tmp_path, settings, where="list.csv")
    assert (student.status, student.content) == ("no_repository", None)
    assert "there is no such folder" in student.reason


def test_too_many_files_and_bytes_are_refused(tmp_path: Path, ada: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebook.intake.plain_copy.MAX_BYTES", 10)
    assert "GiB inside .git" in take(tmp_path).reason
    monkeypatch.setattr("gradebook.intake.plain_copy.MAX_FILES", 2)
    assert "more than 2 files inside .git" in take(tmp_path).reason


def test_git_gets_no_more_memory_than_it_needs(
    tmp_path: Path, ada: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada.folder / "large.bin").write_bytes(bytes(64 * 2**20))
    ada.commit("with a large file", 2)
    monkeypatch.setattr("gradebook.intake.repositories._MEMORY_BYTES", 24 * 2**20)
    student = take(tmp_path)
    assert student.status == "could_not_fetch"  # a person looks: it may be our machine
    assert "git failed on this machine" in student.reason


def test_a_folder_without_git_is_not_taken_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "source" / "ada" / "lab1_gpu_basics").mkdir(parents=True)
    assert [submission.kind for submission in find(tmp_path / "source")] == ["folder"]


def test_the_copy_is_gone_afterwards(tmp_path: Path, ada: Repository) -> None:
    OurCopy.of_folder(ada.folder, tmp_path / "room")
    assert sorted(path.suffix for path in (tmp_path / "room").iterdir()) == ["", ".git"]
