"""One submission from all that was handed in for it: folders, archives (also in archives), files alone, texts, links.

Finds the labs, however they are packed and spelt, and says of everything else that it does not count; an archive that
cannot be unpacked does not prevent reading the others. Not for whose it is (`platforms.py`), nor for which
paths are accepted (`accepted_files.py`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from gradebook.intake import archives, encodings, lab_folders, not_counted, zip_and_tar
from gradebook.intake.accepted_files import Refused, Undecided, clause, sentence
from gradebook.intake.lab_folders import LabNames, looks_like_a_lab
from gradebook.intake.not_counted import NOTEBOOK, OTHER_ARCHIVES
from gradebook.settings import IntakeLimits
from gradebox.sandbox import SubmissionError, copying
from gradebox.sandbox.copying import Entry

_NO_ARCHIVES = {".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".npz", ".pt", ".pth", ".whl", ".jar", ".epub"}
"""Files of other programs that are zip files inside."""
_ARCHIVES_START = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
_DEPTH = 3
"""So deep may archives lie in archives: a platform's, the student's, and one that they packed once more."""
_ARCHIVES = 20
_CODE = ("src", "code")
_TOO_DEEP = "holds folders that lie too deep in each other; hand in the labs' folders"
_AGAIN = re.compile(r"-[0-9]+(?=\.[^.]+$)")
"""What Canvas puts into the name of a file that is handed in again: `benchmark-1.py`."""


_UPLOADED = re.compile(r"20\d{12}_(?=[^/]+$)")
"""The moment that ILIAS puts in front of the name of a file: `20260301235900_benchmark.py`."""


@dataclass(frozen=True)
class Piece:
    """One thing that was handed in."""

    kind: Literal["folder", "archive", "file", "text", "link", "empty", "nameless"]
    path: Path
    name: str
    """As people know it."""
    of_canvas: bool = False
    """Whether Canvas named it, which numbers what is handed in again."""


@dataclass(frozen=True)
class Submission:
    """What can be graded, and what cannot."""

    entries: tuple[Entry, ...]
    remarks: tuple[str, ...] = ()
    """What was handed in and does not count, or counts as something else: for the student and the instructor."""


def kind_of(path: Path) -> Literal["folder", "archive", "file"]:
    """The kind of the file `path`, by its name, else by its first bytes."""
    if path.is_dir():
        return "folder"
    if zip_and_tar.has_suffix(path.name):
        return "archive"
    if path.suffix.lower() in (*_NO_ARCHIVES, *OTHER_ARCHIVES) or path.is_symlink():
        return "file"
    with path.open("rb") as file:
        start = file.read(262)
    return "archive" if start.startswith(_ARCHIVES_START) or start[257:] == b"ustar" else "file"


def assemble(pieces: Sequence[Piece], work: Path, limits: IntakeLimits, names: LabNames) -> Submission:
    """The submission that all pieces make together.

    Args:
        pieces: everything that was handed in, at least one.
        work: an empty folder, for what is unpacked.
        limits: of every archive.
        names: of the labs.

    Raises:
        Refused: there is no lab in it, or it cannot be known which files count.
    """
    try:
        return _Assembly(work, limits, names).of(pieces)
    except RecursionError:
        raise Refused(_TOO_DEEP) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise Refused(_TOO_DEEP) from None
        raise


class _Assembly:
    def __init__(self, work: Path, limits: IntakeLimits, names: LabNames) -> None:
        self._work = work
        self._limits = limits
        self._names = names
        self._unpacked = 0
        self._several = False
        self._entries: dict[str, tuple[Entry, str]] = {}
        """By target: the file, and what it was handed in with."""
        self._remarks: list[str] = []
        self._reasons: list[tuple[str, str]] = []
        """Why there is no lab in a piece, by its name."""
        self._unopened: list[tuple[str, str]] = []
        """Why an archive cannot be unpacked, by its name: nobody knows what is in it."""
        self._beside: list[str] = []
        """Files that lie outside of the folders that are graded."""
        self._loose: list[Piece] = []
        """Files that are next to archives with labs in them, in a class of one lab."""
        self._nowhere: list[str] = []
        """The same in a class of several labs, and next to archives without any."""

    def of(self, pieces: Sequence[Piece]) -> Submission:
        self._several = len(pieces) > 1
        for piece in pieces:
            if piece.kind in ("folder", "archive"):
                self._take(piece)
        self._take_files([*(piece for piece in pieces if piece.kind == "file"), *self._loose])
        words = [text for piece in pieces if (text := not_counted.no_files(piece.kind, piece.path, piece.name))]
        if not self._entries:
            count = max(len(pieces), len(self._reasons) + len(self._unopened))
            damaged = [sentence(name, reason) for name, reason in self._unopened]
            unnamed = {repr(pieces[0].name)} if count == 1 and pieces[0].kind != "file" else set()
            reasons = [*damaged, *self._why(unnamed), *words] or self._remarks
            # What was typed is for people to read, and a link may lead to what can be graded.
            kind = Undecided if {"text", "link", "nameless"} & {piece.kind for piece in pieces} else Refused
            raise kind("; ".join(reasons) or f"holds no file in {self._names.example}: hand in all that is in it")
        lost = (*self._unopened, *self._reasons)
        self._remarks += [f"{name} does not count: {clause(reason)}" for name, reason in lost]
        idle = not_counted.not_imported([entry for entry, _ in self._entries.values()], self._names)
        checked = self._names.checked(self._entries)
        self._remarks += not_counted.remarks(
            checked,
            self._beside,
            self._names.packages,
            idle=idle,
            nowhere=self._nowhere,
            unreported=self._names.unreported,
        )
        self._remarks += words
        if other := self._names.not_graded(target.partition("/")[0] for target in self._entries):
            self._remarks.append(other)
        entries = sorted((entry for entry, _ in self._entries.values()), key=lambda entry: entry.target)
        self._remarks += encodings.pointers(entries)
        readable, remarks = encodings.as_utf8(entries, self._work / "utf-8")
        not_texts = encodings.not_texts(readable)
        remarks += [*dict.fromkeys(not_texts.values()), *encodings.unfinished_merges(readable)]
        if not_counted.is_all(checked, not_texts):
            raise Undecided("; ".join([*self._remarks, *remarks, not_counted.NOTHING_ELSE]))
        return Submission(tuple(readable), (*self._remarks, *remarks))

    def _why(self, unnamed: Collection[str]) -> list[str]:
        return [reason if name in unnamed else f"{name} {reason}" for name, reason in self._reasons]

    def _take(self, piece: Piece) -> None:
        try:
            top = self._unpack(piece.path, piece.name) if piece.kind == "archive" else piece.path
            self._take_folder(top, piece.name, _DEPTH)
        except _Told:
            pass
        except _NoLab as refusal:
            self._reasons.append((repr(piece.name), str(refusal)))
        except Refused as refusal:
            if self._several and not refusal.names_file:
                refusal.args, refusal.names_file = (sentence(repr(piece.name), str(refusal)),), True
            raise

    def _unpack(self, archive: Path, name: str) -> Path:
        """The folder with what is in it; raises `_Unopened` where it cannot be unpacked."""
        self._unpacked += 1
        if self._unpacked > _ARCHIVES:
            raise Refused(f"holds more than {_ARCHIVES} archives; hand in one with all labs")
        target = self._work / str(self._unpacked)
        target.mkdir(parents=True)
        try:
            has_git = archives.unpack(archive, target, files=self._limits.files, limit_bytes=self._limits.bytes)
            if has_git and not any(target.iterdir()):
                raise Refused(not_counted.GIT_ALONE)
        except Refused as refusal:
            self._unopened.append((repr(name), str(refusal)))
            raise _Unopened from None
        if has_git:
            self._remarks.append(not_counted.GIT_BESIDE)
        return target

    # --- folders ----------------------------------------------------------------------------------------------------

    def _take_folder(self, top: Path, name: str, depth: int) -> None:
        """Take the labs below `top`; raises `_NoLab` where there are none."""
        top, said = lab_folders.counting(top)
        self._remarks += [said] if said else []
        place = self._place(top)
        archived = lab_folders.packed(place, self._looks_like_a_lab) if place and depth else None
        if archived is not None:
            self._take_folder(archived, name, depth)
            self._beside += not_counted.outside_of(top, archived)
            return
        if place is not None:
            self._take_labs(place, name)
            self._beside += not_counted.outside_of(top, place)
            return
        inner, loose = _apart(lab_folders.around(top))
        too_deep: list[tuple[Path, _TooDeep]] = []
        unopened: list[_Unopened] = []
        for path in inner if depth else ():
            try:
                self._take_folder(self._unpack(path, path.name), path.name, depth - 1)
            except _TooDeep as refusal:
                too_deep.append((path, refusal))
            except _Unopened as refusal:
                unopened.append(refusal)
            except _Told:
                pass
            except _NoLab as refusal:
                self._reasons.append((repr(path.name), str(refusal)))
        if inner and self._entries:
            self._reasons += [(repr(path.name), str(refusal)) for path, refusal in too_deep]
            if self._names.single:
                self._loose += [Piece("file", path, path.name) for path in loose]
            else:
                self._nowhere += [path.relative_to(top).as_posix() for path in loose]
            named = {path.relative_to(top).as_posix() for path in (*inner, *loose)}
            self._beside += [path for path in not_counted.outside_of(top) if path not in named]
            return
        # The name of an archive in a submission may say which lab is in it: `lab10.zip`.
        called = self._names.meant(zip_and_tar.stem(name)) if depth < _DEPTH else None
        lab = called or self._names.single
        code = lab_folders.code_of(top) if lab else None
        if code is not None:
            # The name of a whole submission is the student's own: without it, one line names all whom it is about.
            where = f"the files of {name!r}" if self._several or depth < _DEPTH else "files in no folder"
            of_class = ", the lab of this class" if lab == self._names.single else ""
            self._remarks.append(f"{where} counted as part of {lab}{of_class}")
            self._add(code, name, lambda target: f"{lab}/{_UPLOADED.sub('', target)}")
            self._beside += not_counted.outside_of(top, code)
            return
        packed = {path.relative_to(top).as_posix() for path in inner}
        self._nowhere += [path for path in not_counted.outside_of(top) if inner and path not in packed]
        if too_deep or unopened:
            raise too_deep[0][1] if too_deep else unopened[0]
        if inner and not depth:
            raise _TooDeep(
                f"holds {inner[0].name!r}, but archives in archives are opened only {_DEPTH} deep: pack the labs' "
                "folders once, as one .zip"
            )
        if inner:
            raise _Told
        raise _NoLab(not_counted.no_lab(top, self._names))

    def _place(self, top: Path) -> Path | None:
        """Where labs lie: folders that are spelt right go before others, unless they lie in several of these."""
        try:
            return lab_folders.place_of(top, copying.is_lab) or lab_folders.place_of(top, self._looks_like_a_lab)
        except Refused:
            return lab_folders.place_of(top, self._looks_like_a_lab)

    def _looks_like_a_lab(self, name: str) -> bool:
        return looks_like_a_lab(name, self._names)

    def _is_the_same(self, name: str, lab: str) -> bool:
        """Whether a folder in a lab's folder stands for it: it has the lab's name, or says that code is in it."""
        meant = self._names.meant(name) or name.replace("-", "_")
        return name in _CODE or meant == (self._names.meant(lab) or lab.replace("-", "_"))

    def _take_labs(self, place: Path, name: str) -> None:
        renamed = self._names.renamed(path.name for path in lab_folders.folders(place))
        for folder, package in renamed.items():
            if folder.replace("-", "_") != package:
                self._remarks.append(f"the folder {folder!r} was taken as {package}")

        within = {
            path.name.replace("-", "_"): inner for path in lab_folders.folders(place) if (inner := self._within(path))
        }

        def target(path: str) -> str | None:
            first, slash, rest = path.partition("/")
            if inner := within.get(first.replace("-", "_")):
                if not rest.startswith(inner) and any(map(lab_folders.is_hidden, map(PurePosixPath, rest.split("/")))):
                    return None  # of what was around the lab, there may be another one in it
                rest = rest.removeprefix(inner)
            # Files that `scan` has renamed already are spelt with underscores.
            known = renamed.get(first) or next((p for o, p in renamed.items() if o.replace("-", "_") == first), first)
            return f"{known}{slash}{rest}"

        self._add(place, name, target)

    def _within(self, lab: Path) -> str:
        """Where in a lab's folder its code lies, with `/` at the end, if it was packed into its own name."""
        if not self._looks_like_a_lab(lab.name):
            return ""
        here = lab_folders.innermost(lab, lambda name: self._is_the_same(name, lab.name))
        if here == lab:
            return ""
        where = here.relative_to(lab.parent).as_posix()
        self._remarks.append(f"the folder {where!r} was taken as {self._names.meant(lab.name) or lab.name}")
        return f"{here.relative_to(lab).as_posix()}/"

    def _add(self, folder: Path, name: str, target: Callable[[str], str | None]) -> None:
        """Take everything in `folder`, each file as `target` says, which is None for what does not matter."""
        self._remarks += not_counted.left_out(folder)
        for entry in _scanned(folder):
            if (place := target(entry.target)) is None:
                continue
            named = replace(entry, target=place)
            known = self._entries.setdefault(named.target, (named, name))
            if known[0] is not named and not _same(known[0], named):
                if known[1] == name:
                    raise Undecided(f"holds {named.target!r} twice, in different folders, and they differ; keep one")
                both = f"{known[1]!r} and {name!r} both hold {named.target!r}, and differ; hand in one of them"
                undecided = Undecided(both)
                undecided.names_file = True
                raise undecided

    # --- files alone ------------------------------------------------------------------------------------------------

    def _take_files(self, pieces: Sequence[Piece]) -> None:
        lab = self._names.single
        is_lab = bool(self._entries) or any(piece.name.endswith(".py") for piece in pieces)

        def is_fitting(piece: Piece) -> bool:
            return lab is not None and is_lab and piece.path.suffix.lower() not in (*OTHER_ARCHIVES, NOTEBOOK)

        fitting = [piece for piece in pieces if is_fitting(piece)]
        names = {piece.name for piece in fitting}
        taken = []
        for piece in fitting:
            plain = _AGAIN.sub("", piece.name) if piece.of_canvas else piece.name
            name = self._names.place(plain if plain not in names else piece.name)
            top = Path(os.path.realpath(piece.path.parent))
            status = piece.path.stat()
            entry = Entry(top, top / piece.path.name, f"{lab}/{name}", status.st_size, status.st_mtime_ns)
            if entry.size_bytes > copying.MAX_FILE_BYTES:
                self._reasons.append((repr(piece.name), f"is larger than {copying.MAX_FILE_BYTES // 2**20} MiB"))
                continue
            known = self._entries.setdefault(entry.target, (entry, piece.name))
            if known[0] is entry or _same(known[0], entry):
                if not_counted.is_read(entry.target):
                    taken.append(repr(piece.name))
            else:
                self._reasons.append((repr(piece.name), f"differs from {entry.target!r} in {known[1]!r}, which counts"))
        if taken:
            self._remarks.append(f"{not_counted.some(taken)} counted as part of {lab}, the lab of this class")
        is_beside = bool(self._entries)
        for piece in pieces:
            if not is_fitting(piece):
                self._reasons.append(
                    (repr(piece.name), not_counted.what_of(piece.path, self._names, is_beside=is_beside))
                )


def _apart(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Those that are archives, and the others."""
    packed = [path for path in files if zip_and_tar.has_suffix(path.name)]
    return packed, [path for path in files if path not in packed]


class _NoLab(Refused):
    """There is no lab in it; something else that was handed in may have one."""


class _Told(_NoLab):
    """The same of archives in it; which and why is written down already."""


class _Unopened(_Told):
    """There may be one, in an archive that cannot be unpacked."""


class _TooDeep(_NoLab):
    """There may be one, in archives that are not opened any more."""


def copy_of(folder: Path, work: Path, names: LabNames) -> tuple[Path, tuple[str, ...]]:
    """The labs of one folder, copied below the empty folder `work`, and what does not count of it.

    Raises:
        Refused, SubmissionError: they cannot be graded as they are.
    """
    submission = assemble([Piece("folder", folder, folder.name)], work / "unpacked", IntakeLimits(), names)
    copying.write(submission.entries, work / "labs")
    return work / "labs", submission.remarks


def _scanned(folder: Path) -> tuple[Entry, ...]:
    try:
        return copying.scan(folder, as_it_is=True)
    except SubmissionError as error:
        raise Refused(str(error).replace(f"{folder} ", "", 1)) from None


def _same(entry: Entry, other: Entry) -> bool:
    return entry.size_bytes == other.size_bytes and entry.source.read_bytes() == other.source.read_bytes()
