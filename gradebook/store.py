"""The gradebook of a class on disk: every grading that was ever made, and which one counts for which criterion.

One SQLite file (WAL), written by one process at a time, committed after every grading: a run that is killed loses what
was in the making and nothing else. A grading is never changed or deleted. It counts for a criterion as long as nothing
that decided the outcome has changed: content of the submission, code of the checks, seed, device. Points are counted
when the gradebook is read (`grading/class_summary.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from gradebook import text_files
from gradebook.command_name import command
from gradebook.results import GradebookError, Grading, Student, Task
from gradebook.versions import grader_digest
from gradebox.common.texts import printable
from gradebox.report.document import from_document, to_document
from gradebox.run.grade import Grade

FILE = "gradebook.sqlite"
SCHEMA_VERSION = 1
_LOCK, _DECISIONS_LOCK = ".lock", ".decisions.lock"
_EMPTY = "the gradebook is empty: its first run was stopped before it knew the class; run it again"
_RESTORE = (
    "restore it from a copy. Without a copy, grade into another folder: overrides.toml, excused.toml and reviews.toml "
    "have your decisions, and every feedback page has the seed"
)
_LOST = f"although an earlier run wrote exports: {_RESTORE}"
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rubrics (digest TEXT PRIMARY KEY, version TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE students (
    student TEXT PRIMARY KEY, name TEXT NOT NULL, columns TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
    submitted_at TEXT, commit_id TEXT, content TEXT
);
CREATE TABLE gradings (
    id INTEGER PRIMARY KEY,
    content TEXT NOT NULL, students TEXT NOT NULL, criteria TEXT NOT NULL, labs TEXT NOT NULL,
    rubric_version TEXT NOT NULL, rubric_digest TEXT NOT NULL,
    grader_version TEXT NOT NULL, grader_digest TEXT NOT NULL,
    seed INTEGER NOT NULL, device TEXT NOT NULL, isolation TEXT NOT NULL,
    started TEXT NOT NULL, ended TEXT NOT NULL, seconds REAL NOT NULL, peak_bytes INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('graded', 'could_not_grade')), reason TEXT NOT NULL,
    retry INTEGER NOT NULL, result TEXT
);
CREATE TABLE outcomes (
    content TEXT NOT NULL, criterion TEXT NOT NULL, digest TEXT NOT NULL, seed INTEGER NOT NULL, device TEXT NOT NULL,
    grading INTEGER NOT NULL REFERENCES gradings (id),
    PRIMARY KEY (content, criterion, digest, seed, device)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked of every submission of a class; stored, so that a gradebook can be read without this code."""

    title: str
    labs: tuple[int, ...]
    device: str
    seed: int
    rubric_version: str
    rubric_digest: str
    grader_version: str
    digests: Mapping[str, str]
    """By criterion: what its outcomes depend on, see `versions.py`."""
    settings: Mapping[str, Any]
    """How the class was described, see `grade_class.py`."""


@dataclass(frozen=True)
class Recorded:
    """A grading as the gradebook has it."""

    id: int
    outcome: str
    reason: str
    retry: bool
    seconds: float
    isolation: str
    grade: Grade | None


class Gradebook:
    """An open gradebook. Use as a context manager; writing takes the lock (`locked=True`)."""

    def __init__(self, folder: Path, *, locked: bool) -> None:
        """Open the gradebook in `folder`; with `locked`, make one where there is none.

        Raises:
            GradebookError: there is none, another run holds it, or another version wrote it.
        """
        self._lock = -1
        self.folder = folder
        path = folder / FILE
        if locked:
            self._lock = _lock(folder)
        elif not path.is_file():
            raise GradebookError(
                f"there is no gradebook in {folder}; {command()} class SUBMISSIONS --out "
                f"{shlex.quote(str(folder))} makes one"
            )
        try:
            self._database = _connect(path)
            self._database.execute("PRAGMA synchronous = FULL")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and locked:
                if any((folder / "exports").glob("*.csv")):
                    raise GradebookError(f"{path} is empty, {_LOST}")
                self._database.execute("PRAGMA journal_mode = WAL")
                with self._transaction():
                    for statement in _SCHEMA.split(";"):
                        self._database.execute(statement)
                    self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version == 0:
                lost = any((folder / "exports").glob("*.csv"))
                raise GradebookError(f"{path} is empty, {_LOST}" if lost else _EMPTY)
            elif version != SCHEMA_VERSION:
                raise GradebookError(
                    f"{path} was written by another version of this program (its format is {version}, ours is "
                    f"{SCHEMA_VERSION}); grade with that version, or into another folder"
                )
        except sqlite3.DatabaseError as error:
            self.close()
            raise GradebookError(
                f"{path} cannot be opened: {error}. Close other programs that use it, or {_RESTORE}"
            ) from None
        except GradebookError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.close()
        # A full disk and a lock are an OperationalError, for others to handle.
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise GradebookError(f"{self.folder / FILE} is damaged: {error}. To go on, {_RESTORE}") from None

    def close(self) -> None:
        """Let go of file and lock."""
        if hasattr(self, "_database"):
            self._database.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- the plan and the students ----------------------------------------------------------------------------------

    @property
    def seed(self) -> int | None:
        """The seed of the class; None before it has one."""
        value = self._meta("seed")
        return None if value is None else int(value)

    def plan(self) -> Plan:
        """What the last run asked.

        Raises:
            GradebookError: there was none.
        """
        text = self._meta("plan")
        if text is None:
            raise GradebookError(_EMPTY)
        values = json.loads(text)
        return Plan(**{**values, "labs": tuple(values["labs"])})

    def begin(
        self, plan: Plan, rubric_text: str, students: Sequence[Student], known: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Store what is asked from now on, who is in the class, and by what they have been known (`identity.py`)."""
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('identities', ?)", (json.dumps(list(known)),))
            self._database.execute("INSERT OR IGNORE INTO meta VALUES ('seed', ?)", (str(plan.seed),))
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('plan', ?)", (json.dumps(vars(plan)),))
            row = (plan.rubric_digest, plan.rubric_version, rubric_text)
            self._database.execute("INSERT OR IGNORE INTO rubrics VALUES (?, ?, ?)", row)
            taken = {student.student: student.taken_at.isoformat() for student in students if student.taken_at}
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('taken', ?)", (json.dumps(taken),))
            teams = {student.student: (student.team, student.teammates) for student in students}
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('teams', ?)", (json.dumps(teams),))
            self._database.execute("DELETE FROM students")
            self._database.executemany(
                "INSERT INTO students VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [_row(student) for student in students]
            )

    def students(self) -> list[Student]:
        """Everybody in the order of the roster; who is not in it by key."""
        taken = json.loads(self._meta("taken") or "{}")
        teams = json.loads(self._meta("teams") or "{}")
        rows = self._database.execute("SELECT * FROM students ORDER BY rowid")
        return [
            Student(
                student=key, name=name, columns=json.loads(columns), status=status, reason=reason,
                submitted_at=datetime.fromisoformat(submitted_at) if submitted_at else None,
                commit=commit, content=content,
                taken_at=datetime.fromisoformat(taken[key]) if key in taken else None,
                team=teams[key][0] if key in teams else "", teammates=tuple(teams[key][1]) if key in teams else (),
            )
            for key, name, columns, status, reason, submitted_at, commit, content in rows
        ]  # fmt: skip

    def identities(self) -> list[Mapping[str, Any]]:
        """By what students have been known, as `identity.stored` gives it."""
        return list(json.loads(self._meta("identities") or "[]"))

    def rubric_text(self, digest: str) -> str:
        """The `rubric.toml` with this digest."""
        return str(self._database.execute("SELECT text FROM rubrics WHERE digest = ?", (digest,)).fetchone()[0])

    # --- gradings ---------------------------------------------------------------------------------------------------

    def numbers(self, plan: Plan, content: str) -> dict[str, int]:
        """By criterion: the number of the grading that counts for this submission, where one does."""
        rows = self._database.execute(
            "SELECT criterion, digest, grading FROM outcomes WHERE content = ? AND seed = ? AND device = ?",
            (content, plan.seed, plan.device),
        ).fetchall()
        return {criterion: grading for criterion, digest, grading in rows if plan.digests.get(criterion) == digest}

    def counting(self, plan: Plan, content: str) -> dict[str, Recorded]:
        """By criterion: the grading that counts for this submission; criteria still to be graded are not there."""
        valid = self.numbers(plan, content)
        gradings = {number: self._recorded(number) for number in set(valid.values())}
        return {criterion: gradings[number] for criterion, number in valid.items()}

    def graded(self, plan: Plan) -> list[str]:
        """The submissions of which gradings count, those included that have been replaced since."""
        rows = self._database.execute(
            "SELECT DISTINCT content FROM outcomes WHERE seed = ? AND device = ? ORDER BY content",
            (plan.seed, plan.device),
        )
        return [row[0] for row in rows]

    def record(self, plan: Plan, task: Task, grading: Grading) -> int:
        """Add a grading, which counts for the task's criteria from now on; on disk when this returns. Its number."""
        # The path of the copy says nothing later.
        grade = grading.grade and replace(grading.grade, submission=task.students[0])
        values = (
            task.content, json.dumps(task.students), json.dumps(task.criteria), json.dumps(task.labs),
            plan.rubric_version, plan.rubric_digest, plan.grader_version, grader_digest(plan.digests),
            task.seed, task.device, grade.isolation if grade else "",
            grading.started.isoformat(), grading.ended.isoformat(),
            round((grading.ended - grading.started).total_seconds(), 3), grading.peak_bytes,
            "graded" if grade else "could_not_grade", printable(grading.problem), int(task.retry),
            json.dumps(to_document(grade), ensure_ascii=False) if grade else None,
        )  # fmt: skip
        with self._transaction():
            cursor = self._database.execute(f"INSERT INTO gradings VALUES (NULL{', ?' * len(values)})", values)
            rows = [
                (task.content, name, plan.digests[name], task.seed, task.device, cursor.lastrowid)
                for name in task.criteria
            ]
            self._database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", rows)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def share(self, plan: Plan, grading: int, shares: Iterable[tuple[str, str]]) -> None:
        """Let a grading count for more: pairs of a submission and a criterion, where none counts yet."""
        rows = [(content, name, plan.digests[name], plan.seed, plan.device, grading) for content, name in shares]
        with self._transaction():
            self._database.executemany("INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", rows)

    def discard(self, contents: Collection[str] | None, criteria: Collection[str] | None) -> None:
        """Let no grading count any more for these submissions and criteria (None: all): they are graded again."""
        clauses, values = ["1"], list[str]()
        for column, names in (("content", contents), ("criterion", criteria)):
            if names is not None:
                clauses.append(f"{column} IN ({', '.join('?' * len(names))})")
                values += names
        again = json.dumps(sorted(self.asked_for | set(contents or ())))
        with self._transaction():
            self._database.execute(f"DELETE FROM outcomes WHERE {' AND '.join(clauses)}", values)
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('asked for', ?)", (again,))

    @property
    def asked_for(self) -> frozenset[str]:
        """Submissions that somebody has had graded again: nobody else's grading counts for them, nor theirs for others.

        They stay so, even if the run is stopped.
        """
        return frozenset(json.loads(self._meta("asked for") or "[]"))

    def sharing(self, contents: Collection[str]) -> set[str]:
        """Other submissions for which gradings of these count as well."""
        held = ", ".join("?" * len(contents))
        rows = self._database.execute(
            f"SELECT DISTINCT content FROM outcomes WHERE content NOT IN ({held}) AND grading IN "
            f"(SELECT grading FROM outcomes WHERE content IN ({held}))",
            (*contents, *contents),
        )
        return {row[0] for row in rows}

    def history(self) -> list[dict[str, Any]]:
        """Every grading ever made, in order, with its result as a document."""
        cursor = self._database.execute("SELECT * FROM gradings ORDER BY id")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            for name in ("students", "criteria", "labs", "result"):
                row[name] = json.loads(row[name]) if row[name] is not None else None
        return rows

    def criteria(self) -> set[str]:
        """All that were ever graded here."""
        return set().union(*(json.loads(of) for (of,) in self._database.execute("SELECT criteria FROM gradings")))

    def handed_in(self) -> list[tuple[str, str, datetime]]:
        """Every student, by the key of that time, with each submission of theirs that was graded, and when."""
        rows = self._database.execute("SELECT students, content, started FROM gradings ORDER BY started").fetchall()
        return [(key, content, datetime.fromisoformat(at)) for keys, content, at in rows for key in json.loads(keys)]

    def _recorded(self, number: int) -> Recorded:
        outcome, reason, retry, seconds, isolation, result = self._database.execute(
            "SELECT outcome, reason, retry, seconds, isolation, result FROM gradings WHERE id = ?", (number,)
        ).fetchone()
        grade = from_document(json.loads(result)) if result else None
        return Recorded(number, outcome, reason, bool(retry), seconds, isolation, grade)

    def _meta(self, key: str) -> str | None:
        row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # with a full disk SQLite has rolled back by itself
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _row(student: Student) -> tuple[str | None, ...]:
    submitted_at = student.submitted_at.isoformat() if student.submitted_at else None
    columns = json.dumps(dict(student.columns), ensure_ascii=False)
    return (
        student.student, student.name, columns, student.status, student.reason,
        submitted_at, student.commit, student.content,
    )  # fmt: skip


@contextlib.contextmanager
def deciding(folder: Path) -> Iterator[bool]:
    """Let one command at a time change what is decided about a class, and write the exports that follow.

    Two graders may decide at once: the second reads what the first has written, and the exports have both. It is true
    if a command before was stopped in the middle, so that the exports may be older than the decisions. A folder without
    a gradebook is left alone.
    """
    if not (folder / FILE).is_file():
        yield False
        return
    path = folder / _DECISIONS_LOCK
    with text_files.lock(path):
        before = path.read_bytes()
        path.write_bytes(b"under way\n")
        try:
            yield bool(before)
        except ValueError:  # refused, and so nothing is decided
            path.write_bytes(before)
            raise
        path.write_bytes(b"")


def _connect(path: Path) -> sqlite3.Connection:
    """A connection, also for people who may only read the folder."""
    if os.access(path.parent, os.W_OK):
        return sqlite3.connect(path, isolation_level=None, timeout=60)
    # SQLite makes files next to the database, unless it is promised that nobody writes.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, isolation_level=None, timeout=60)


def _lock(folder: Path) -> int:
    """Hold the folder until the descriptor is closed or we end, however we end."""
    try:
        if not folder.exists():
            text_files.make_private(folder)
        (folder / FILE).touch()  # SQLite would make a file that a group cannot write, whatever the umask says
        return text_files.locked(folder / _LOCK, wait=False)
    except BlockingIOError:
        raise GradebookError(f"another run is grading into {folder}; wait for it, or stop it first") from None
    except OSError as error:
        raise GradebookError(f"{folder} cannot be written: {text_files.cause(error)}") from None
