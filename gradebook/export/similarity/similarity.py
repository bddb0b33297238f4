"""Which submissions are alike, module by module, beyond what everybody was given: a hint for a person, never a verdict.

Fingerprints by winnowing (Schleimer, Wilkerson, Aiken: "Winnowing", SIGMOD 2003) come from the library copydetect,
which reads Python's tokens: other names, comments and spaces change nothing. Lines of the stub count for nobody.
Short tasks with one natural solution look alike without any copying, so each figure has the median of its module.
"""

from __future__ import annotations

import bisect
import functools
import importlib.util
import io
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradebook.export.similarity import moved
from gradebook.roster import folded
from gradebook.text_files import some
from gradebox.sandbox import SubmissionError, copying

NOISE_CHARACTERS = 25
"""Copies shorter than this, in copydetect's shortened text, are not looked for; its own default."""
_LEAST_OWN = 2 * NOISE_CHARACTERS
"""Passages that a student must have written in a module: one short line more in the stub makes fewer."""
MAX_FILE_BYTES, MAX_BYTES = 2**17, 2**20
"""Of a file, and of all files of a student: many times what a lab needs. A larger file takes long to compare, and no
person would read it; it is named instead."""
_BARE = "too little code that is not in the stubs"
_MAX_EXCERPT_LINES = 24
OF_EACH_MODULE = 5
"""So many pairs of each module get their passages, however alike those of other modules are."""


class SimilarityError(ValueError):
    """Nothing can be compared; the message is one line that says what to do."""


@dataclass(frozen=True)
class Passage:
    """Lines of one student that are alike, and which of them."""

    student: str
    first_line: int
    lines: tuple[str, ...]
    alike: frozenset[int]
    """Line numbers."""


@dataclass(frozen=True)
class Pair:
    """One module of two students."""

    module: str
    students: tuple[str, str]
    shares: tuple[float, float]
    """Part of each one's own code, without the stub, that is alike (0 to 1)."""
    median: float
    """Of all pairs of this module: how alike any two are."""
    identical: bool
    passages: tuple[Passage, Passage] | None = None
    archive: str = ""
    """Where the second one is from, if that is an earlier year."""
    files: tuple[str, str] | None = None
    """Their files, if these have different names; `module` then names both."""

    @property
    def paths(self) -> tuple[str, str]:
        """The file of each of both students."""
        return self.files or (self.module, self.module)

    @property
    def same_student(self) -> bool:
        """Whether somebody repeats the course, as far as the key shows it."""
        return bool(self.archive) and folded(self.students[1]) == folded(f"{self.archive}: {self.students[0]}")

    @property
    def share(self) -> float:
        """The larger of both shares: the smaller one falls when something is added."""
        return max(self.shares)


def compare(
    submissions: Mapping[str, Path],
    stubs: Path,
    *,
    threshold: float,
    excerpts: int,
    labs: Sequence[str] | None = None,
    left_out: Callable[[str, str], None] = lambda student, what: None,
    earlier: Mapping[str, Mapping[str, Path]] | None = None,
) -> list[Pair]:
    """All pairs of students with at least `threshold` alike in a module, the most alike first.

    Submissions of earlier years are compared with those of the class, not with each other, and have no part in the
    median.

    Args:
        submissions: the folder with the lab packages, by student.
        stubs: what everybody was given.
        threshold: share, 0 to 1.
        excerpts: so many pairs, from the first, get their passages, and the first of each module.
        labs: packages to compare; None for all.
        left_out: called with a student, and the files that are too large, or why nothing of the student is compared.
        earlier: submissions of other years, by the year's name and the student's.

    Raises:
        SimilarityError: copydetect is not installed, or there are fewer than two submissions with code of their own.
    """
    detector = _library()
    archive = {
        f"{year}: {student}": (year, folder)
        for year, those in (earlier or {}).items()
        for student, folder in those.items()
    }
    least = 1 if archive else 2
    if len(submissions) < least:
        raise SimilarityError("there are fewer than two submissions to compare")
    everybody = {**submissions, **{name: folder for name, (_, folder) in archive.items()}}
    texts = {
        student: _modules(folder, labs, functools.partial(left_out, student)) for student, folder in everybody.items()
    }
    years = {name: year for name, (year, _) in archive.items()}
    pairs: list[Pair] = []
    prints: dict[moved.File, Any] = {}
    medians: dict[str, float] = {}
    of_stub = functools.cache(lambda path: _fingerprint(detector, _source(path)).hashes)
    known = {
        module: _known(of_stub, stubs, module) for module in sorted({name for own in texts.values() for name in own})
    }
    for module in known:
        those = {student: own[module] for student, own in texts.items() if module in own}
        prints |= {(student, module): _fingerprint(detector, text, known[module]) for student, text in those.items()}
        rough = _rough(module, those, prints, years)
        of_class = [share for (_, other), share in rough.items() if other not in years]
        medians[module] = statistics.median(of_class or [0.0])
        pairs += _pairs(detector, module, those, prints, rough, medians[module], threshold, years)
    given = {module for module in known if (stubs / module).is_file()}
    pairs += _moved(detector, prints, given, medians, threshold, years)
    bare = [
        student
        for student in submissions
        if not any(len(prints[student, module].hashes) >= _LEAST_OWN for module in texts[student])
    ]
    if len(submissions) - len(bare) < least:
        raise SimilarityError(f"nothing was compared: {some(bare)}: {_BARE}")
    for student in bare:
        left_out(student, _BARE)
    pairs.sort(key=lambda pair: (-pair.share, -sum(pair.shares), pair.median, pair.module, pair.students))
    of_module: Counter[str] = Counter()
    shown = []
    for number, pair in enumerate(pairs):
        of_module[pair.module] += 1
        is_shown = number < excerpts or of_module[pair.module] <= OF_EACH_MODULE
        shown.append(_with_passages(detector, pair, texts, known) if is_shown else pair)
    return shown


def _library() -> Any:
    try:
        import copydetect
    except ImportError:
        raise SimilarityError(
            "comparing submissions needs copydetect: pip install 'copydetect>=0.5,<1' (the extra `class` brings it)"
        ) from None
    return copydetect


def _modules(folder: Path, labs: Sequence[str] | None, left_out: Callable[[str], None]) -> dict[str, str]:
    """The Python files of the labs as text, by their path in our layout; the smallest first, as far as MAX_BYTES go."""
    try:
        entries = copying.scan(folder)
    except SubmissionError:
        return {}
    texts: dict[str, str] = {}
    taken, large = 0, []
    for entry in sorted(entries, key=lambda entry: (entry.size_bytes, entry.target)):
        package, below, _ = entry.target.partition("/")
        if not entry.target.endswith(".py") or not below or (labs is not None and package not in labs):
            continue
        taken += entry.size_bytes
        if entry.size_bytes > MAX_FILE_BYTES or taken > MAX_BYTES:
            large.append(entry)
        else:
            texts[entry.target] = _source(entry.source)
    if large:
        more = f" and {len(large) - 1} more" if len(large) > 1 else ""
        left_out(f"{large[-1].target} ({large[-1].size_bytes:,} bytes){more}: too large for code that somebody wrote")
    return texts


def _fingerprint(library: Any, text: str, known: Set[int] = frozenset()) -> Any:
    """What copydetect makes of a file, without the passages whose hashes are known.

    They are taken out here: the library's own way needs every passage of a file to be there once only.
    """
    made = library.CodeFingerprint("module.py", NOISE_CHARACTERS, 1, language="python", fp=io.StringIO(text))
    if known:
        made.hashes = made.hashes - known
        made.hash_idx = {value: places for value, places in made.hash_idx.items() if value not in known}
        length = len(made.filtered_code)
        made.token_coverage = library.utils.get_token_coverage(made.hash_idx, NOISE_CHARACTERS, length)
    return made


def _known(of_stub: Callable[[Path], Set[int]], stubs: Path, module: str) -> Set[int]:
    """The fingerprints of what everybody was given in this module's lab, in whichever file students wrote it."""
    lab = stubs / module.partition("/")[0]
    return frozenset().union(*map(of_stub, sorted(lab.rglob("*.py"))))


def _rough(
    module: str, texts: Mapping[str, str], prints: Mapping[moved.File, Any], years: Mapping[str, str]
) -> dict[tuple[str, str], float]:
    """How alike any two are who have written something."""
    sets = {student: frozenset(prints[student, module].hashes) for student in texts}
    # The others have written nothing, or next to nothing: one more line in the stub is nobody's work.
    written = sorted(student for student, hashes in sets.items() if len(hashes) >= _LEAST_OWN)
    own = [student for student in written if student not in years]
    old = [student for student in written if student in years]
    return {
        (first, other): len(sets[first] & sets[other]) / min(len(sets[first]), len(sets[other]))
        for first, other in (*itertools.combinations(own, 2), *itertools.product(own, old))
    }


def _pairs(
    library: Any,
    module: str,
    texts: Mapping[str, str],
    prints: Mapping[moved.File, Any],
    rough: Mapping[tuple[str, str], float],
    median: float,
    threshold: float,
    years: Mapping[str, str],
) -> Iterator[Pair]:
    for (first, other), share in rough.items():
        if share < 0.5 * threshold:
            continue
        _, shares, _ = library.compare_files(prints[first, module], prints[other, module])
        pair = Pair(
            module=module,
            students=(first, other),
            shares=(min(1.0, float(shares[0])), min(1.0, float(shares[1]))),
            median=median,
            identical=texts[first] == texts[other],
            archive=years.get(other, ""),
        )
        if pair.share >= threshold:
            yield pair


def _moved(
    library: Any,
    prints: Mapping[moved.File, Any],
    given: Set[str],
    medians: Mapping[str, float],
    threshold: float,
    years: Mapping[str, str],
) -> Iterator[Pair]:
    """Code that is in a file of a student's own, and with another student in a file of another name."""
    sets = {file: frozenset(made.hashes) for file, made in prints.items()}
    for match in moved.find(sets, given, years.keys(), least=_LEAST_OWN, share=0.5 * threshold):
        first, other = sorted((match.own, match.other), key=lambda file: (file[0] in years, file[0]))
        _, shares, _ = library.compare_files(prints[first], prints[other])
        pair = Pair(
            module=f"{first[1]} and {other[1]}",
            students=(first[0], other[0]),
            shares=(min(1.0, float(shares[0])), min(1.0, float(shares[1]))),
            median=medians[match.other[1]],
            identical=False,
            archive=years.get(other[0], ""),
            files=(first[1], other[1]),
        )
        if pair.share >= threshold:
            yield pair


def _with_passages(
    library: Any, pair: Pair, texts: Mapping[str, Mapping[str, str]], known: Mapping[str, Set[int]]
) -> Pair:
    both = [texts[student][path] for student, path in zip(pair.students, pair.paths, strict=True)]
    prints = [_fingerprint(library, text, known[path]) for text, path in zip(both, pair.paths, strict=True)]
    _, _, slices = library.compare_files(*prints)
    passages = tuple(
        _passage(student, text, alike) for student, text, alike in zip(pair.students, both, slices, strict=True)
    )
    return replace(pair, passages=(passages[0], passages[1]))


def _passage(student: str, text: str, slices: Any) -> Passage:
    """The lines around the longest copy, with the lines of every copy among them marked."""
    lines = text.split("\n")
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))  # where each line's successor begins
    spans = sorted(zip(slices[0].tolist(), slices[1].tolist(), strict=True)) if len(slices) else []
    alike = {line for start, stop in spans for line in range(_line_at(ends, start), _line_at(ends, stop - 1) + 1)}
    longest = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    first = max(1, _line_at(ends, longest[0]) - 1)
    last = min(len(lines), first + _MAX_EXCERPT_LINES - 1)
    return Passage(student, first, tuple(lines[first - 1 : last]), frozenset(alike & set(range(first, last + 1))))


def _line_at(ends: Sequence[int], position: float) -> int:
    return bisect.bisect_right(ends, max(0, int(position))) + 1


def _source(path: Path) -> str:
    """The text of a module in the encoding that it declares, as Python reads it."""
    content = path.read_bytes()
    try:
        return importlib.util.decode_source(content)
    except (SyntaxError, UnicodeDecodeError):
        return content.decode("utf-8", errors="replace")
