"""How students call a lab's folder: `lab1_gpu_basics`, `lab1-gpu-basics-main`, `Lab 1`, `gpu basics`.

Says which lab is meant; looks at names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradebook.intake.names import Refused
from gradebox.course.rubric import Lab
from gradebox.sandbox import copying

_NUMBERED = re.compile(r"(?P<word>[^\W\d_]+)[\s_.-]*0*(?P<number>[1-9][0-9]*)(?![0-9])", re.IGNORECASE)
_COPY = re.compile(r"(?:[ _-]*(?:\(\d+\)|copy|main|master|final|submission))+$", re.IGNORECASE)


@dataclass(frozen=True)
class LabNames:
    """The packages of a course's labs, and the one that a class grades, where it is one."""

    packages: tuple[str, ...] = ()
    single: str | None = None

    @classmethod
    def of(cls, labs: Iterable[Lab], graded: Iterable[int] = ()) -> LabNames:
        """`graded` are the numbers of the labs that the class grades."""
        packages = {lab.number: lab.package for lab in labs}
        chosen = [packages[number] for number in graded if number in packages]
        return cls(tuple(packages.values()), chosen[0] if len(chosen) == 1 else None)

    @property
    def example(self) -> str:
        """A folder's name to tell people."""
        return self.single or next(iter(self.packages), "lab1_gpu_basics")

    def meant(self, name: str) -> str | None:
        """The package that a folder of this name most likely is; None where it says nothing."""
        exact = name.replace("-", "_")
        if exact in self.packages:
            return exact
        if (found := _NUMBERED.match(name)) is not None:
            lab = f"{found['word']}{found['number']}".casefold()
            for package in self.packages:
                if package.partition("_")[0].casefold() == lab:
                    return package
        plain = _plain(_COPY.sub("", name))
        return next((one for one in self.packages if plain and plain == _plain(one.partition("_")[2])), None)

    def renamed(self, names: Iterable[str]) -> Mapping[str, str]:
        """What these folders, which lie side by side, must be called: by the name that they have.

        A folder that is spelt as its lab is that lab, and others that begin alike stay what they are.

        Raises:
            Refused: two could be the same lab.
        """
        names = list(names)
        exact = {name.replace("-", "_") for name in names} & set(self.packages)
        found: dict[str, str] = {}
        for name in sorted(names):
            package = self.meant(name)
            if package is None or package in exact:
                continue
            if (other := next((one for one, meant in found.items() if meant == package), None)) is not None:
                raise Refused(f"holds both {other!r} and {name!r} for one lab; keep one of them, called {package}")
            found[name] = package
        return found


def looks_like_a_lab(name: str, names: LabNames) -> bool:
    """Whether a folder of this name is a lab, however it is spelt."""
    return copying.is_lab(name) or names.meant(name) is not None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()
