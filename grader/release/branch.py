"""The branch `solutions` of the course's own checkout: as it is committed, with every task of `labs/` solved.

The checkout has a folder of the same name. Without the branch `git checkout solutions` means that folder: git exits
with 0, stays where it is, and discards what was edited there. With the branch it means the branch. Not for the
students' repository, which has a branch of this name as well (`course.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradebox.authoring.release.stubs import ReleaseError
from grader.release import contents
from grader.release.repository import Repository

NAME = "solutions"
_SOLVED = "Solve every task"


@dataclass(frozen=True)
class Made:
    """What became of the branch."""

    commit: str
    is_new: bool
    """Whether there was something to commit."""


def make(course: Path, name: str = NAME) -> Made:
    """Make or update the branch `name` in the checkout `course`. Only git's objects are written, no file is touched.

    Raises:
        ReleaseError: `course` is no git checkout, the branch is the current one, `solutions/` holds work that is not
            committed, or the branch was not made by this function. Nothing was changed then.
    """
    if not (course / ".git").exists():
        raise ReleaseError(f"{course} is no git checkout: a branch needs one; clone the course with git")
    repository = Repository(course)
    if repository.current_branch() == name:
        raise ReleaseError(f"you are on the branch {name}; go back first: git switch main")
    head = repository.resolve("HEAD")
    if head is None:
        raise ReleaseError(f"{course} has no commit yet: commit the course first")
    if edited := repository.edited("solutions"):
        raise ReleaseError(f"solutions/ holds work that is not committed: {', '.join(edited)}; commit it first")
    before = repository.tip(name)
    if before is not None and not repository.message(before).startswith(_SOLVED):
        raise ReleaseError(f"there is a branch {name} that this command has not made; name another one: --branch NAME")
    solved = contents.filled_in(course)
    tree = repository.tree_with(head, solved)
    if before is not None and repository.resolve(f"{before}^{{tree}}") == tree:
        return Made(before, is_new=False)
    parents = [before, head] if before is not None and before != head else [head]
    message = f"{_SOLVED}\n\nMade by gpulabs release --branch {name} from {head}.\n"
    return Made(repository.commit_tree(name, tree, parents, message), is_new=True)
