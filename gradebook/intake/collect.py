"""Take in what a class handed in: find each submission, put its pieces together, and keep a copy by its content.

Not for grading. It refuses unusable files with a reason for the student, and never passes them over.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gradebook.command_name import command
from gradebook.intake import archives, commits, doubts, handed_in, lab_folders, pieces, times, zip_and_tar
from gradebook.intake.accepted_files import Budget, CannotStore, Names, Refused, Undecided, clause, sentence
from gradebook.intake.commits import Chosen
from gradebook.intake.handed_in import HandedIn, IntakeError
from gradebook.intake.lab_folders import LabNames
from gradebook.intake.owners import Owners, Theirs
from gradebook.intake.pieces import Piece
from gradebook.intake.repositories import CouldNotFetch, Repository, not_taken
from gradebook.intake.times import Stamped, Times
from gradebook.repository_names import repository_name
from gradebook.results import Student
from gradebook.roster import Roster, folded
from gradebook.settings import IntakeLimits, Settings
from gradebox.common.texts import printable
from gradebox.sandbox import SubmissionError, copying

STORE = "submissions"
"""The folder next to a gradebook where the copies lie."""
_CHECKOUT = "repository"
_TABLE, _ROSTER, _PLATFORM = "the table", "the roster", "the platform"
_PUSHES, _COMMITS = "pushes as the server recorded them", "the commits' own times"
"""What may say when something was handed in."""


class Store:
    """The copies of submissions, each in a folder named by its content, so that equal ones are kept and graded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, content: str) -> Path:
        """The folder to grade."""
        return self._folder / content / "labs"

    def keep(self, entries: Sequence[copying.Entry], limits: IntakeLimits) -> str:
        """Copy these files and return their digest.

        Raises:
            Refused: they cannot be graded as they are.
        """
        try:
            names, budget = Names(limits.files), Budget(limits.bytes)
            for entry in entries:
                names.file(entry.target)
                budget.take(entry.size_bytes)
            self._folder.mkdir(parents=True, exist_ok=True)
            (draft := self._folder / f".new-{uuid.uuid4().hex}").mkdir()
            try:
                content = copying.write(tuple(entries), draft / "labs")
                if not self.path(content).is_dir():
                    draft.rename(self._folder / content)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        except SubmissionError as error:
            raise not_taken(error) from None
        return content


class Intake:
    """Takes in the submissions of one class."""

    def __init__(
        self,
        settings: Settings,
        roster: Roster | None,
        store: Store,
        room: Path,
        rev: str | None,
        names: LabNames | None = None,
        known_times: Times | None = None,
        graded_before: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            settings: of the class.
            roster: who is in it.
            store: where the copies go.
            room: a folder for what is in the making.
            rev: one commit, tag or branch of every repository.
            names: of the course's labs; without them only folders that are spelt right are labs.
            known_times: what a table of the class says about when students handed in.
            graded_before: by student, the commit that an earlier run took in.
        """
        self._settings = settings
        self._roster = roster
        self._store = store
        self._room = room
        self._rev = rev
        self._names = names or LabNames()
        self._times = known_times or Times()
        self._graded_before = graded_before or {}
        self._sources: Counter[str] = Counter()
        self._torn: Counter[str] = Counter()
        """Teams of which several members handed in different work, and how many."""
        self._stamped: list[Stamped] = []
        self._tabled: list[Stamped] = []
        """What has a time by a table or the roster, and a mark of its platform."""
        self._earlier: list[HandedIn] = []
        """Attempts that later ones have replaced."""
        self.passed_over: list[str] = []
        """What lay among the submissions and is none."""
        self._owners = Owners(roster)
        self._entries = {entry.student: entry for entry in roster.entries} if roster else {}

    @property
    def notices(self) -> list[str]:
        """What an instructor should look at."""
        return self._owners.notices

    def take_all(self, source: Path, announce: Callable[[str], None]) -> list[Student]:
        """Every student: of the submissions in `source`, and of the roster.

        Args:
            announce: is called with each submission's name before it is taken.

        Raises:
            IntakeError: there is no such folder, archive or list, or nothing in it.
        """
        with self._unpacked(source) as folder:
            by_key: dict[str, list[Theirs]] = {}
            for submission in self._owners.of_students(handed_in.find(folder, self._settings.zone, source)):
                for person in submission.people:
                    for key in self._owners.keys(person, submission.platform):
                        theirs = by_key.setdefault(key, [])
                        if all(other.handed_in is not submission for other in theirs):
                            theirs.append(Theirs(person, submission))
            doubts.check_depth(self._owners.unmatched(by_key), self._roster, source, by_key)
            self.passed_over = handed_in.passed_over(folder)
            self._earlier = handed_in.earlier_attempts(folder, self._settings.zone)
            self._owners.compare_beginnings(by_key)
            self._owners.notices += doubts.shared_repositories(by_key, self._roster)
            self._owners.say_namesakes()
            self._owners.set_apart_namesakes(by_key)
            students = []
            for key, ones in by_key.items():
                announce(key)
                mates = [other for other in by_key if other != key and _share(by_key[other], ones)]
                students.append(replace(self._take(key, ones), teammates=tuple(sorted(mates))))
            graded = {student.student: by_key[student.student] for student in students if student.content}
            self._owners.notices += doubts.about_attempts(graded, self._earlier, self._settings)
        doubts.check_contents(students, self._store.path, self._roster, source)
        times.check_files(self._stamped, self._settings)
        self._say_sources()
        self._owners.notices += doubts.sections(self._torn)
        self._owners.notices += times.notices(self._tabled, self._stamped, self._times, self._roster, self._settings)
        absent = [entry for key, entry in self._entries.items() if key not in by_key]
        students += [doubts.without_work(entry, self._roster, self.passed_over, self._times) for entry in absent]
        places = {key: place for place, key in enumerate(self._entries)}
        return sorted(students, key=lambda student: (places.get(student.student, len(places)), student.student))

    def _take(self, key: str, theirs: list[Theirs]) -> Student:
        # What is nobody's may be called as a student is: it has no row of the roster.
        entry = self._entries.get(key)
        several: dict[tuple[str, str, str | None], list[HandedIn]] = {}
        for owned in theirs:
            thing = owned.handed_in
            kind = (thing.platform, thing.key if thing.platform else thing.address or thing.label, thing.rev)
            several.setdefault(kind, []).append(thing)
        student = Student(
            student=key,
            name=entry.name if entry else "",
            columns=entry.columns if entry else {},
            status="refused",
            submitted_at=entry.submitted_at if entry else None,
            team=entry.team if entry else "",
        )
        names = ", ".join(sorted(owned.handed_in.label for owned in theirs))
        try:
            if not student.team:
                return self._taken_once(student, list(several.values()), names)
            return self._taken_of_team(student, list(several.values()), names)
        except Refused as refusal:
            reason = printable(str(refusal), lines=False)
            if (earlier := doubts.attempt_before(theirs, self._earlier)) is None:
                return replace(student, status=refusal.status, reason=reason)
            of = f", of {self._settings.local(at):%Y-%m-%d %H:%M %Z}," if (at := earlier.submitted_at) else ""
            self._owners.notices.append(
                f"{key}: the last attempt cannot be graded, and {earlier.label} came before it. If that one should "
                "count, remove what came later from the submissions and run the command again"
            )
            return replace(student, status="undecided", reason=f"{reason}; an earlier attempt{of} may count instead")
        except CouldNotFetch as failure:
            status: Literal["no_repository", "could_not_fetch"]
            status = "no_repository" if failure.nowhere else "could_not_fetch"
            return replace(student, status=status, reason=printable(str(failure), lines=False))
        except CannotStore as error:
            raise IntakeError(str(error)) from None
        except OSError as error:
            raise IntakeError(f"{key} cannot be taken in: {error.filename or ''} {error.strerror}") from None

    def _taken_once(self, student: Student, several: list[list[HandedIn]], names: str) -> Student:
        """What a student handed in; of several only if they are the same, such as an archive next to its files."""
        if len(several) == 1:
            return self._taken(student, several[0])
        with contextlib.suppress(Refused):
            taken = [self._taken(student, ones) for ones in several if ones[0].address is None]
            if len(taken) == len(several) and len({result.content for result in taken}) == 1:
                return taken[0]
        raise Undecided(f"handed in more than once: {names}; keep one of them")

    def _taken_of_team(self, student: Student, several: list[list[HandedIn]], names: str) -> Student:
        """What the members handed in, where those of them that can be graded are the same."""
        taken, remarks, refusals = list[Student](), list[str](), list[Refused]()
        lost: list[tuple[str, str]] = []
        failures: list[CouldNotFetch] = []
        for ones in several:
            try:
                result = self._taken(student, ones)
                if taken and result.reason and result.reason != taken[0].reason:
                    remarks.append(f"of {self._whose(ones)}: {result.reason}")
                taken.append(result)
            except Refused as refusal:
                refusals.append(refusal)
                lost.append((self._whose(ones), str(refusal).removeprefix(f"{ones[0].label!r} ")))
            except CouldNotFetch as failure:
                failures.append(failure)
                lost.append((self._whose(ones), str(failure)))
        if not taken:
            reasons = "; ".join(sentence(whose, reason) for whose, reason in lost)
            if failures:  # what could not be fetched may be what counts, whatever the others handed in
                raise CouldNotFetch(reasons, nowhere=all(failure.nowhere for failure in failures))
            raise (Undecided if any(isinstance(each, Undecided) for each in refusals) else Refused)(reasons)
        if len({result.content for result in taken}) > 1:
            self._torn[student.team] = max(len({result.content for result in taken}), self._torn[student.team])
            raise Undecided(
                f"the team {student.team!r} handed in more than once, and not the same: {names}; keep one of them"
            )
        remarks += [f"{whose} does not count: {clause(reason)}" for whose, reason in lost]
        reasons_told = filter(None, (taken[0].reason, printable("; ".join(remarks), lines=False)))
        return replace(taken[0], status="partly" if failures else taken[0].status, reason="; ".join(reasons_told))

    def _whose(self, ones: Sequence[HandedIn]) -> str:
        """How to call what was handed in, and whose it is by the roster's key."""
        labels = ", ".join(part.label for part in ones)
        people = [person for part in ones for person in part.people]
        keys = [self._roster.called(person.handles) or person.key if self._roster else person.key for person in people]
        return f"{labels!r} of {', '.join(dict.fromkeys(keys))}"

    def _taken(self, student: Student, ones: list[HandedIn]) -> Student:
        limits = self._settings.limits
        self._room.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="taking-", dir=self._room) as temporary:
            work = Path(temporary)
            chosen, submodules, here = None, list[str](), list[str]()
            if ones[0].kind == "repository":
                chosen, submodules, here = self._checked_out(student, ones[0], work)
            parts = [_piece(part, work) for part in ones]
            with commits.naming(submodules):
                submission = pieces.assemble(parts, work / "unpacked", limits, self._names)
            content = self._store.keep(submission.entries, limits)
        submitted_at, source = self._handed_in_at(student, chosen, ones)
        if submitted_at is not None:
            self._sources[source] += 1
            is_canvas = source in (_TABLE, _ROSTER) and all(part.platform == "Canvas" for part in ones)
            late = any(part.late for part in ones)
            self._tabled.append(Stamped(student.student, ones[0].label, submitted_at, late, is_canvas))
        alone = lab_folders.without_code(self._names.checked(entry.target for entry in submission.entries))
        remarks = [*commits.remarks(chosen, submodules), *here, *submission.remarks, *alone]
        if chosen is not None and chosen.pushed_at is not None and source == _PUSHES:
            moment = f"{self._settings.local(chosen.pushed_at):%Y-%m-%d %H:%M %Z}"
            remarks[:0] = [f"commit {chosen.commit.id[:10]} was pushed at {moment}, by the server's clock"]
        if submitted_at is None and any(part.late for part in ones):
            remarks.append(f"{ones[0].platform} marked it as late")
        return replace(
            student,
            status="partly" if alone else "taken",
            submitted_at=submitted_at and self._settings.local(submitted_at),
            reason=printable("; ".join(remarks), lines=False),
            commit=chosen.commit.id if chosen else None,
            content=content,
            taken_at=datetime.now(UTC).replace(microsecond=0),
        )

    def _handed_in_at(
        self, student: Student, chosen: Chosen | None, ones: Sequence[HandedIn]
    ) -> tuple[datetime | None, str]:
        """When it was handed in, and what says so."""
        known = self._times.of.get(student.student)
        if chosen is not None:
            if chosen.pushed_at is not None:
                return chosen.pushed_at, _PUSHES
            until = self._settings.in_time_until(student.student) if chosen.later or chosen.elsewhere else None
            if self._times.is_last_push and known and until and known > until:
                self._owners.notices.append(
                    f"{student.student}: the last push, of {self._settings.local(known):%Y-%m-%d %H:%M %Z}, may have "
                    "brought commits that are not graded, so the graded commit's own time counts. A table of all "
                    f"pushes says when that one came: {command()} export github-pushes"
                )
                known = None
        if known is not None:
            return known, _TABLE
        if student.submitted_at is not None:
            return student.submitted_at, _ROSTER
        if chosen is not None:
            return chosen.commit.time, _COMMITS
        return self._time(student.student, ones), _PLATFORM

    def _say_sources(self) -> None:
        """What said when things were handed in, where a repository is among them: its own times are its owner's."""
        if self._settings.deadline is None or not (self._sources[_COMMITS] or self._sources[_PUSHES]):
            return
        parts = ", ".join(f"{count} by {source}" for source, count in self._sources.most_common())
        more = f" (which students can set; {command()} export github-pushes asks GitHub)"
        self._owners.notices.append(f"times of submission: {parts}{more if self._sources[_COMMITS] else ''}")

    def _checked_out(self, student: Student, submission: HandedIn, work: Path) -> tuple[Chosen, list[str], list[str]]:
        """The commit that counts, with its files in `work`; submodules, which are not there; what to say of others."""
        limits = self._settings.limits
        repository = self._repository(submission)
        deadline = self._settings.in_time_until(student.student)
        name = repository_name(submission.address or submission.label)
        known = (self._times.pushes.get(folded(handle)) for handle in (name, student.student))
        pushes = next(filter(None, known), ())
        chosen = commits.choose(repository, submission.rev or self._rev, deadline, self._settings.git, pushes)
        before = self._graded_before.get(student.student, "")
        others = {name for name, commit in self._graded_before.items() if commit == chosen.commit.id}
        was_anothers = bool(others - {student.student})  # the roster gave this repository to somebody else
        # One that was there and belongs to no branch any more, because somebody pushed by force.
        if before and before != chosen.commit.id and not was_anothers and not repository.contains(before, before):
            why = (
                "is not in this clone, which is shallow (git clone --depth): it may be older than the clone's first "
                "commit, or replaced"
                if repository.is_shallow
                else "is not in the repository any more, because its history was rewritten"
            )
            self._owners.notices.append(
                f"{student.student}: commit {before[:10]}, which an earlier run graded, {why}. Commit "
                f"{chosen.commit.id[:10]} of {self._settings.local(chosen.commit.time):%Y-%m-%d %H:%M %Z} counts now; "
                f"if the earlier one should count, give its points back with {command()} review --override"
            )
        (work / _CHECKOUT).mkdir()
        submodules = repository.extract(chosen.commit, work / _CHECKOUT, files=limits.files, limit_bytes=limits.bytes)
        is_tip = not chosen.later and bool(chosen.branch) and chosen.branch == repository.head
        has_tree = submission.path is not None and (submission.path / ".git").is_dir()
        here = commits.uncommitted(submission.path, work / _CHECKOUT) if submission.path and is_tip and has_tree else []
        return chosen, submodules, here

    def _repository(self, submission: HandedIn) -> Repository:
        room = self._room / "repositories"
        if submission.path is not None:
            return Repository.of_folder(submission.path, room)
        assert submission.address is not None
        return Repository.of_address(submission.address, room, self._settings.git.protocols)

    def _time(self, student: str, ones: Sequence[HandedIn]) -> datetime | None:
        """When it was handed in: the platform's word, else files' times where the settings say that these mean it."""
        moments = [part.submitted_at for part in ones if part.submitted_at is not None]
        if moments or not self._settings.times_of_files:
            return max(moments, default=None)
        newest = [(at, part) for part in ones if part.path is not None and (at := handed_in.newest(part.path))]
        of_canvas, late = all(part.platform == "Canvas" for part in ones), any(part.late for part in ones)
        self._stamped += [Stamped(student, part.label, at, late, of_canvas) for at, part in newest]
        return max((at for at, _ in newest), default=None)

    @contextlib.contextmanager
    def _unpacked(self, source: Path) -> Iterator[Path]:
        """The folder of submissions, or the list; an archive of a whole class is unpacked meanwhile."""
        if not (source.is_file() and zip_and_tar.has_suffix(source.name)):
            yield source
            return
        self._room.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="class-", dir=self._room) as temporary:
            try:
                zone = self._settings.zone
                archives.unpack(source, Path(temporary), files=100_000, limit_bytes=16 * 2**30, zone=zone)
            except Refused as refusal:
                raise IntakeError(f"{source} {refusal}; or unpack it yourself, and name the folder") from None
            except CannotStore as error:
                raise IntakeError(str(error)) from None
            items = list(Path(temporary).iterdir())
            # One student's folder is no wrapper: the names in it are the student's to choose.
            is_wrapped = (
                len(items) == 1
                and items[0].is_dir()
                and not handed_in.is_named_by_a_platform(items[0])
                and not lab_folders.holds_labs(items[0])
                and not lab_folders.holds_labs(Path(temporary))
            )
            yield items[0] if is_wrapped else Path(temporary)


def _share(ones: Sequence[Theirs], others: Sequence[Theirs]) -> bool:
    return any(owned.handed_in is other.handed_in for owned in ones for other in others)


def _piece(submission: HandedIn, work: Path) -> Piece:
    name = submission.name or submission.label
    if submission.kind == "repository":
        return Piece("folder", work / _CHECKOUT, name)
    if submission.kind == "lacking" or submission.path is None:
        raise CouldNotFetch(
            f"{submission.label} is in the platform's list, and not in this download: download it again"
        )
    return Piece(submission.kind, submission.path, name, of_canvas=submission.platform == "Canvas")
