"""Where labs lie in a folder that somebody handed in, and how students call a lab's folder.

Labs lie in the folder itself, in its `labs`, or in the folders around them. They are called `lab1_gpu_basics`,
`lab1-gpu-basics-main`, `Lab 1` or `gpu basics`. Not for what is taken from there (`pieces.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from gradebook.intake import platforms, zip_and_tar
from gradebook.intake.accepted_files import Undecided
from gradebook.intake.repositories import is_repository
from gradebook.text_files import some
from gradebox.course.rubric import Lab
from gradebox.sandbox import copying

# --- where labs lie ---------------------------------------------------------------------------------------------------

_DEPTH = 24
"""So many folders around everything are looked through; `copying.scan` takes as many."""
_VERSION = re.compile(r"Version (\d{1,6})")
"""What Microsoft Teams calls the folder of an attempt."""
IsLab = Callable[[str], bool]
"""Whether a folder of this name is a lab."""


def holds_labs(folder: Path) -> bool:
    """Whether lab folders lie in it, or in its folder `labs`."""
    return _labs_at(folder, copying.is_lab) is not None


def without_code(files: Sequence[str]) -> list[str]:
    """What to say of labs that hold no code and no report, but what programs write; nothing of others."""
    if not files or any(
        PurePath(file).suffix.lower() in (".py", ".md", "") for file in files
    ):  # a Dockerfile has no suffix
        return []
    return [f"has no code, only {some([repr(file) for file in files], 3)}: hand in all of the lab's folder"]


def is_one_submission(source: Path) -> bool:
    """Whether a folder holds labs. A submission has each lab once; many `lab1-ada-main.zip` are repositories."""
    labs = [path for path in source.iterdir() if _is_lab(path)]
    heads = {re.split("[-_]", path.name)[0] for path in labs}
    return any(path.is_dir() for path in labs) or 0 < len(labs) == len(heads)


def _is_lab(path: Path) -> bool:
    """Whether it is a lab, and not a submission that is called like one: a classroom names repositories `lab1-ada`."""
    if not copying.is_lab(path.name):
        return False
    if not path.is_dir() or path.is_symlink():
        return True
    labs = [folder.name for folder in path.iterdir() if copying.is_lab(folder.name) and folder.is_dir()]
    return not is_repository(path) and not any(name != path.name for name in labs)


def place_of(top: Path, is_lab: IsLab) -> Path | None:
    """The folder in which labs lie: `top`, its `labs`, or one below it; where there is but one, also below that.

    Raises:
        Undecided: there are several.
    """
    for folder in (top, *wrappers(top)):
        if (place := _labs_at(folder, is_lab)) is not None:
            return place
        found_below = [(path, labs) for path in inner(folder) if (labs := _labs_at(path, is_lab)) is not None]
        if len(found_below) > 1:
            names = ", ".join(repr(path.name) for path, _ in found_below)
            raise Undecided(f"holds labs in several folders, {names}; hand in one of them")
        if found_below:
            return found_below[0][1]
    return None


def _labs_at(folder: Path, is_lab: IsLab) -> Path | None:
    for place in (folder, folder / "labs"):
        if not place.is_symlink() and any(is_lab(path.name) for path in folders(place)):
            return place
    return None


def packed(place: Path, is_lab: IsLab) -> Path | None:
    """The only lab in `place`, if there is nothing in it but archives: somebody has packed what should be in it."""
    labs = [path for path in folders(place) if is_lab(path.name)]
    if len(labs) != 1 or folders(labs[0]):
        return None
    names = [path.name for path in files(labs[0]) if not is_hidden(path)]
    return labs[0] if names and all(map(zip_and_tar.has_suffix, names)) else None


def versions(top: Path) -> list[Path]:
    """The folders `Version 1`, `Version 2`, ... in the only folder in `top`, in this order; none for another form."""
    assignments = inner(top)
    if len(assignments) != 1 or any(not is_hidden(path) for path in files(top)):
        return []
    numbered = {path: match for path in inner(assignments[0]) if (match := _VERSION.fullmatch(path.name))}
    if len(numbered) < len(inner(assignments[0])) or any(not is_hidden(path) for path in files(assignments[0])):
        return []
    return sorted(numbered, key=lambda path: int(numbered[path][1]))


_SUBMITTY = "user_assignment_settings.json"
"""Where Submitty says which of the versions, folders called by their numbers, is the one that counts."""


def counting(top: Path) -> tuple[Path, str]:
    """Where in a student's folder a platform keeps what counts, and what to say of the rest; else the folder itself.

    Raises:
        Undecided: a platform has several versions, and says of none that it counts.
    """
    top = next((path for path in inner(top) if path.name == platforms.SAKAI_ATTACHMENTS), top)
    if (active := _active_version(top)) is not None:
        others = sorted((path.name for path in inner(top) if path.name.isdecimal() and path != active), key=int)
        said = f"version {active.name} counts, which is active on Submitty, and not {', '.join(others)}"
        return active, said if others else ""
    numbered = versions(top)
    if not numbered:
        return top, ""
    others = [repr(path.name) for path in numbered[:-1]]
    return numbered[-1], f"{numbered[-1].name!r} counts, and earlier ones do not: {', '.join(others)}" if others else ""


def _active_version(top: Path) -> Path | None:
    """The version that counts by Submitty's own file; None if there is none. Raises `Undecided` as `counting` does."""
    names = [path.name for path in inner(top) if path.name.isdecimal()]
    try:
        active = json.loads((top / _SUBMITTY).read_text(encoding="utf-8"))["active_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if names and str(active) not in names:
        raise Undecided(
            f"has versions {', '.join(sorted(names, key=int))}, and Submitty says that {active!r} is active: choose "
            "one there, or remove the others"
        )
    return top / str(active) if names else None


def code_of(top: Path) -> Path | None:
    """Where the code of a lab lies that has no folder of its own; None where there is none."""
    places = [place for folder in (top, *wrappers(top)) for place in (folder / "labs", folder)]
    return next((place for place in places if not place.is_symlink() and place.is_dir() and holds_code(place)), None)


def holds_code(folder: Path) -> bool:
    """Whether modules lie in it."""
    return any(path.suffix == ".py" for path in files(folder))


def wrappers(top: Path) -> list[Path]:
    """The one folder in `top`, where it is the only one, the one folder in that, and so on, a few times."""
    folders_around: list[Path] = []
    while len(folders_around) < _DEPTH and len(below := inner(folders_around[-1] if folders_around else top)) == 1:
        folders_around.append(below[0])
    return folders_around


def around(top: Path) -> list[Path]:
    """The files in `top` and in the folders that are around everything, without hidden ones."""
    return [path for folder in (top, *wrappers(top)) for path in files(folder) if not is_hidden(path)]


def innermost(lab: Path, stands_for_it: IsLab) -> Path:
    """`lab`, or the folder in it that stands for it and has its code: as where an archive of it was unpacked into a
    folder of its own name."""
    here = lab
    for _ in range(_DEPTH):
        below = [path for path in inner(here) if stands_for_it(path.name)]
        if len(below) != 1 or holds_code(here):
            break
        here = below[0]
    return here if holds_code(here) else lab


def inner(folder: Path) -> list[Path]:
    """The folders in it, without what systems and tools leave there."""
    return [path for path in folders(folder) if not is_hidden(path) and not (path / "pyvenv.cfg").exists()]


def folders(folder: Path) -> list[Path]:
    """All folders in it; none where it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def files(folder: Path) -> list[Path]:
    """The files in it; without links."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def is_hidden(path: PurePath) -> bool:
    """Whether systems and tools made it, and people do not see it."""
    return path.name in copying.LEFT_BEHIND or path.name.startswith((".", "__MACOSX"))


# --- how labs are called ----------------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"(?P<word>[^\W\d_]+)[\s_.-]*0*(?P<number>[1-9][0-9]*)(?![0-9])", re.IGNORECASE)
_COPY = re.compile(r"(?:[ _-]*(?:\(\d+\)|copy|main|master|final|submission))+$", re.IGNORECASE)


@dataclass(frozen=True)
class LabNames:
    """The packages of a course's labs, and the one that a class grades, where it is one."""

    packages: tuple[str, ...] = ()
    single: str | None = None
    results: bool = False
    """Whether this one keeps what its programs write in a folder `results`."""
    graded: tuple[str, ...] = ()
    """Those that the class grades; empty: all."""
    unreported: tuple[str, ...] = ()
    """Those for which nothing reads a report, so that no other file is one under another name."""
    by_hand: tuple[str, ...] = ()
    """Those that people alone grade, who read any file."""

    @classmethod
    def of(cls, labs: Iterable[Lab], graded: Iterable[int] = (), course: Path | None = None) -> LabNames:
        """`graded` are the numbers of the labs that the class grades; `course` is the folder with their checks."""
        by_number = {lab.number: lab for lab in labs}
        chosen = [by_number[number] for number in graded if number in by_number]
        packages = tuple(lab.package for lab in chosen)
        silent = [lab.package for lab in by_number.values() if course is not None and not _has_report(course / lab.id)]
        by_hand = tuple(lab.package for lab in by_number.values() if not lab.criteria)
        names = cls(
            tuple(lab.package for lab in by_number.values()), graded=packages, unreported=tuple(silent), by_hand=by_hand
        )
        if len(chosen) != 1:
            return names
        results = course is not None and _keeps_results(course / chosen[0].id)
        return replace(names, single=packages[0], results=results)

    def checked(self, targets: Iterable[str]) -> list[str]:
        """Of files, by path below `labs`, those that people do not grade alone."""
        return [target for target in targets if target.partition("/")[0] not in self.by_hand]

    def place(self, name: str) -> str:
        """The place in the lab of a file that was handed in alone: files that programs write are in `results`."""
        return f"{_RESULTS}/{name}" if self.results and PurePath(name).suffix.lower() in _WRITTEN else name

    def not_graded(self, folders: Iterable[str]) -> str:
        """What to say of a submission that has other labs than those that the class grades; empty if it has one."""
        wanted = self.graded or self.packages
        here = sorted(name for name in set(folders) if name in self.packages or copying.is_lab(name))
        if not here or not wanted or set(here) & set(wanted):
            return ""
        graded, there = " and ".join(wanted), " and ".join(here)
        is_there = "which is" if len(wanted) == 1 else "which are"
        return f"this class grades {graded}, {is_there} not in the submission: it has {there}"

    @property
    def example(self) -> str:
        """A folder's name for messages."""
        return self.single or next(iter(self.packages), "lab1_gpu_basics")

    def meant(self, name: str) -> str | None:
        """The package that a folder of this name most likely is; None where it says nothing."""
        exact = name.replace("-", "_")
        if exact in self.packages:
            return exact
        if (match := _NUMBERED.match(name)) is not None:
            lab = f"{match['word']}{match['number']}".casefold()
            for package in self.packages:
                if package.partition("_")[0].casefold() == lab:
                    return package
        plain = _plain(_COPY.sub("", name))
        return next(
            (package for package in self.packages if plain and plain == _plain(package.partition("_")[2])), None
        )

    def renamed(self, names: Iterable[str]) -> Mapping[str, str]:
        """What these folders, which lie side by side, must be called: by the name that they have.

        A folder that is spelt as its lab is that lab, and others that begin alike stay what they are.

        Raises:
            Refused: two could be the same lab.
        """
        names = list(names)
        exact = {name.replace("-", "_") for name in names} & set(self.packages)
        lab_of: dict[str, str] = {}
        for name in sorted(names):
            package = self.meant(name)
            if package is None or package in exact:
                continue
            if (other := next((folder for folder, meant in lab_of.items() if meant == package), None)) is not None:
                raise Undecided(f"holds both {other!r} and {name!r} for one lab; keep one of them, called {package}")
            lab_of[name] = package
        return lab_of


_RESULTS = "results"
_WRITTEN = (".json", ".jsonl", ".csv", ".png", ".jpg", ".jpeg", ".svg", ".npz", ".pt")


def _keeps_results(lab: Path) -> bool:
    """Whether the checks of a lab read files of its folder `results`."""
    return any(f"{_RESULTS}/" in text for text in _sources(lab))


def _has_report(lab: Path) -> bool:
    """Whether anything of a lab is about a report."""
    return any("REPORT.md" in text for text in _sources(lab))


def _sources(lab: Path) -> Iterator[str]:
    for path in sorted(lab.rglob("*")):
        if path.suffix in (".py", ".toml") and path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def looks_like_a_lab(name: str, names: LabNames) -> bool:
    """Whether a folder of this name is a lab, however it is spelt."""
    return copying.is_lab(name) or names.meant(name) is not None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()
