"""The run of `gpulabs class`: take in, plan, grade what is open, record each grading as it comes, write the exports.

Whoever stops it, at any moment, loses only what was being graded; the same command goes on from there.
"""

from __future__ import annotations

import difflib
import hashlib
import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from gradebook import identity, text_files, versions
from gradebook.command_name import command
from gradebook.export import FOLDER as EXPORTS
from gradebook.export import changes, everything, reviews
from gradebook.grading import (
    class_summary,
    excused,
    held_back,
    moodle_status,
    run_before,
    unknown_names,
    without_effect,
)
from gradebook.grading.description import ClassRequest, described, of_file
from gradebook.grading.engine import OpenEngine
from gradebook.grading.manual_grading import FOLDER as HANDS
from gradebook.grading.manual_grading import ready, reports
from gradebook.grading.open_work import OpenWork
from gradebook.grading.progress import ClassProgress
from gradebook.intake import doubtful_rows, roster_files, strangers, times, zip_and_tar
from gradebook.intake.collect import STORE, Intake, Store
from gradebook.intake.handed_in import IntakeError
from gradebook.intake.lab_folders import LabNames
from gradebook.results import ClassResult, GradebookError, Student, Task
from gradebook.roster import Roster, RosterError
from gradebook.settings import Settings
from gradebook.store import Gradebook, Plan, deciding
from gradebox.common import resources
from gradebox.run.input_generator import new_seed
from gradebox.run.overrides import Override
from gradebox.sandbox import devices


def grade_class(request: ClassRequest, open_engine: OpenEngine, console: Console) -> ClassResult:
    """Carry out a request and return where the class stands then.

    Raises:
        ValueError: something that was named cannot be used; the message is one line. So is that of `RubricError`,
            `DeviceError` and `EngineError`.
    """
    if request.submissions is None:
        Gradebook(request.out, locked=False).close()  # there must be one, and it is not made here
    else:
        run_before.check_room(request.out, request.submissions, (STORE, EXPORTS))
    with Gradebook(request.out, locked=True) as gradebook:
        run = _Run(request, gradebook, console)
        run.prepare()
        run.grade(open_engine)
        with deciding(request.out):
            result, before = class_summary.of(gradebook), changes.exported(request.out)
            everything.write(result, request.out, configuration=run.settings.exports, say=run.say)
        run.say(changes.text(before, changes.exported(request.out), result.command("review")))
    return result


class _Run:
    """One run on one gradebook."""

    def __init__(self, request: ClassRequest, gradebook: Gradebook, console: Console) -> None:
        self._request = request
        self._gradebook = gradebook
        self._progress = ClassProgress(console)
        self._room = request.out.resolve() / ".work"
        self._store = Store(request.out / STORE)
        self._course = request.course
        self._rubric = request.course.rubric
        self._rubric_text = self._rubric.to_text()
        self._known = identity.records(gradebook.identities(), gradebook.students())
        self.settings, self._description = described(request, gradebook, self._progress.say)

    def prepare(self) -> None:
        """Decide what is asked, take the submissions in, and write both down."""
        shutil.rmtree(self._room, ignore_errors=True)  # of a run that was killed
        plan = self._plan()
        # Else a mistake in them would take every student's score, of earlier runs as well.
        if self._request.loads and (self._gradebook.seed is None or self._gradebook.plan().digests != plan.digests):
            self._request.loads(self._course.folder, plan.labs)
        students = self._taken_before() if self._request.submissions is None else self._take_in(plan)
        self._directory = identity.Directory(students, self._known)
        files = excused.load(self._request.out), held_back.load(self._request.out)
        decisions = unknown_names.resolve(self.settings, self._overrides(), self._directory, *files)
        self.settings = decisions.settings
        criteria_here = self._criteria(plan)
        given = decisions.overrides, students, criteria_here, decisions.excused
        unused = without_effect.notices(self._request, self.settings, students)
        in_vain = unknown_names.notices(self.settings, *given)
        for text in (*unused, *decisions.of_gone, *in_vain, *moodle_status.notices(self.settings, students)):
            self._progress.say(f"note: {text}")
        contents, criteria = self._to_discard(students, plan)
        self._check_copies(students, contents)
        self._gradebook.begin(plan, self._rubric_text, students, identity.stored(self._known))
        if self._request.regrade:
            shared = self._gradebook.sharing(contents or ())
            if others := [student.student for student in students if student.content in shared]:
                self._progress.say(
                    f"note: {', '.join(others)} had the same lab graded with what is graded again, and keep that "
                    "grading; name them too, if they should be graded again"
                )
            self._gradebook.discard(contents, criteria)
        self._plan_now, self._students = plan, students

    def grade(self, open_engine: OpenEngine) -> None:
        """Grade everything that is open; then once more, alone, what a busy machine left open."""
        seconds, jobs = self.settings.limits.seconds_per_submission, self._request.jobs or self._usual_jobs()
        work = OpenWork(self._gradebook, self._plan_now, self._course, self._store, self._students, seconds)
        try:
            self._carry_out(work, work.shared_tasks(), open_engine, jobs, always=True)
            # What was not certain enough for all is graded for each; then once more what a busy machine left open.
            self._carry_out(work, work.tasks(), open_engine, jobs)
            self._carry_out(work, work.busy_tasks(), open_engine, 1)
        finally:
            self._progress.close()
            shutil.rmtree(self._room, ignore_errors=True)

    def say(self, notice: str) -> None:
        """Say what an instructor should know, if it is not empty."""
        if notice:
            self._progress.say(f"note: {notice}")

    def _usual_jobs(self) -> int:
        device = devices.parse(self._plan_now.device, self._course.devices)
        return resources.graders(device.memory_bytes, on_hardware=bool(device.hardware))

    def _carry_out(
        self, work: OpenWork, tasks: Sequence[Task], open_engine: OpenEngine, jobs: int, *, always: bool = False
    ) -> None:
        if tasks or always:
            self._progress.open(len(tasks), work.done(tasks))
        if not tasks:
            return
        engine = open_engine(min(jobs, len(tasks)), self._room, self._plan_now.device)
        try:
            for task, grading in engine.run(tasks, self._progress.started):
                if grading.grade is not None or not task.retry:  # a second look that fails takes nothing away
                    number = self._gradebook.record(self._plan_now, task, grading)
                    work.share(number, task.content, task.criteria, grading.grade)
                self._progress.finished(task, grading)
        finally:
            engine.close()

    def _plan(self) -> Plan:
        request, points = self._request, self._rubric
        before = self._gradebook.plan() if self._gradebook.seed is not None else None
        stored = before if request.submissions is None else None
        # What the command says goes before what its file says, and that before what the last run was told.
        said = self.settings if request.configuration or stored is None else None
        again = run_before.labs_again(self._gradebook, self.settings, points) if stored else None
        with of_file(self._description, not request.labs):  # a file without labs has all of them
            labs = points.select(request.labs or (said.labs if said else again))
        if before is not None and before.labs != tuple(lab.number for lab in labs):
            was, now = (", ".join(map(str, numbers)) for numbers in (before.labs, [lab.number for lab in labs]))
            self._progress.say(
                f"note: this class was graded for lab {was}, and is now for lab {now}: scores and exports are of these"
            )
        if (written := [row.available for lab in labs for row in lab.criteria]) and not any(written):
            raise IntakeError(f"lab {', '.join(str(lab.number) for lab in labs)} is not available yet")
        seed = self._gradebook.seed
        if None not in (seed, request.seed) and seed != request.seed:
            raise GradebookError(f"this class is graded with seed {seed}; use another --out for seed {request.seed}")
        device = request.device or (said and said.device) or (stored.device if stored else None) or "auto"
        if request.elsewhere and device == "auto":
            raise GradebookError(
                "others grade than this machine: say --device cuda, or a virtual GPU, --device vgpu:T4"
            )
        run_before.check_course(before, versions.digests(self._course), request.out)
        self._overrides()  # a mistake in it should not wait until all is graded, nor one in what was decided
        reviews.load(request.out)
        excused.load(request.out)
        held_back.load(request.out)
        with of_file(self._description):
            everything.options(self.settings.exports)  # nor one here
        if not (request.elsewhere and device == "cuda"):
            with of_file(self._description, not request.device):
                device = devices.parse(device, self._course.devices).name
        self._prepare_reports()
        return Plan(
            title=self.settings.title or _title(Path(self._description["submissions"]).name),
            labs=tuple(lab.number for lab in labs),
            device=device,
            seed=next((value for value in (seed, request.seed) if value is not None), new_seed()),
            rubric_version=points.version,
            rubric_digest=hashlib.sha256(self._rubric_text.encode()).hexdigest(),
            grader_version=versions.grader_version(self._course),
            digests=versions.digests(self._course),
            settings=self._description,
        )

    def _prepare_reports(self) -> None:
        """If people grade reports, put the course's rubrics into the class's folder, once.

        Raises:
            ManualGradingError: the course or the class cannot grade them so.
        """
        by_hand, out = self.settings.by_hand, self._request.out
        if not by_hand.reports:
            return
        if ready.copy_to(out, self._course):
            self._progress.say(
                f"note: people grade the reports: {out / HANDS / reports.FILE} says how, and "
                f"{command()} manual grade {shlex.quote(str(out))} --as NAME opens the page"
            )
        graded_reports = reports.load(out, by_hand)
        assert graded_reports is not None
        reports.check_weights(graded_reports, self._rubric, by_hand)

    def _overrides(self) -> tuple[Override, ...]:
        former = self._gradebook.criteria()
        return class_summary.given_overrides(self.settings, self._request.out, self._rubric, former)

    def _taken_before(self) -> list[Student]:
        """The students as they were taken in; a note where the roster says something else by now."""
        students, file = self._gradebook.students(), self.settings.roster
        try:
            roster = roster_files.load(file, self.settings.teams, self.settings.zone) if file else None
        except RosterError:
            return students  # it is not needed here
        entries = identity.recognise(roster, self._known).roster.entries if roster else ()
        then = {student.student: (dict(student.columns), student.team) for student in students if student.columns}
        now = {entry.student: (dict(entry.columns), entry.team) for entry in entries}
        changed = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
        if entries and changed:
            more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
            where = f"{file} and {self.settings.teams}" if self.settings.teams else str(file)
            self._progress.say(
                f"note: the roster ({where}) has changed for {', '.join(changed[:5])}{more}: give the submissions "
                "again, so that it counts"
            )
        return students

    def _take_in(self, plan: Plan) -> list[Student]:
        assert self._request.submissions is not None
        file = self.settings.roster
        if self.settings.teams and not file:
            raise IntakeError("teams needs a roster, which says who is in the class: name one with --roster")
        known_by = roster_files.load(file, self.settings.teams, self.settings.zone) if file else None
        if known_by is not None and known_by.strangers:
            why = strangers.why(known_by, known_by.strangers)
            text = f"in {self.settings.teams}, but not in {file}: {', '.join(known_by.strangers)}{why}"
            self._progress.say(f"note: {text}")
        if known_by is not None:
            recognised = identity.recognise(known_by, self._known)
            known_by, self._known = recognised.roster, recognised.records
            for text in (*recognised.notices, *doubtful_rows.notices(known_by, self._request.out)):
                self._progress.say(f"note: {text}")
        names = LabNames.of(self._rubric.labs, plan.labs, self._course.folder)
        known = {student.student: student for student in self._gradebook.students()}
        commits = {key: student.commit for key, student in known.items() if student.commit}
        settings = self._with_extensions(known_by)
        known_times = self._times(known_by, settings)
        intake = Intake(settings, known_by, self._store, self._room, self._request.commit, names, known_times, commits)
        try:
            students = intake.take_all(self._request.submissions, self._progress.intake)
        finally:
            self._progress.close()
        unknown = [student.student for student in students if file and not student.columns]
        for text in strangers.notices(known_by, unknown, self._known, file):
            self._progress.say(text)
        run_before.check_class(list(known), [student.student for student in students], self._request.out)
        passed_over = [f"no submissions, so not graded: {', '.join(intake.passed_over)}"] if intake.passed_over else []
        for text in dict.fromkeys([*passed_over, *intake.notices]):
            self._progress.say(f"note: {text}")
        for text in run_before.notices(self.settings, known, students, self._store.path, names.graded):
            self._progress.say(f"note: {text}")
        named = [self._with_former_name(student) for student in students]
        here = {(student.content, known[student.student].team) for student in named if student.student in known}
        keys = {student.student for student in named}
        if known_by is None and (
            lost := sorted(key for key, student in known.items() if student.content and key not in keys)
        ):
            self._progress.say(
                f"note: no longer in the class, because these submissions do not have them: {text_files.some(lost)}. "
                "Give all submissions each time, or a roster"
            )
        reasons: dict[str, list[str]] = {}
        taken = [self._or_kept(student, run_before.earlier(student, known, named), here, reasons) for student in named]
        for reason, names_of in reasons.items():
            self._progress.say(f"{text_files.some(names_of, most=20)}: {reason}")
        return taken

    def _with_former_name(self, student: Student) -> Student:
        """The student; with the name of an earlier roster, if this one does not have them any more."""
        if student.name or student.columns:
            return student
        return replace(student, name=next((r.now("name") for r in self._known if r.student == student.student), ""))

    def _times(self, known_by: Roster | None, settings: Settings) -> times.Times:
        """What a table of the class says about when students handed in."""
        if self.settings.times is None:
            return times.Times()
        table = times.load(self.settings.times, known_by, self.settings.zone)
        if table.strangers:
            more = f" and {len(table.strangers) - 5} more" if len(table.strangers) > 5 else ""
            why = strangers.why(known_by, table.strangers) if known_by else ""
            text = f"in {self.settings.times}, but nobody's: {', '.join(table.strangers[:5])}{more}{why}"
            self._progress.say(f"note: {text}")
        until = {name: settings.in_time_until(name) for name in table.of}
        twice = [name for name, end in until.items() if end is not None and table.first[name] <= end < table.of[name]]
        if twice:
            text = "a row in time and a late one, which counts; remove the row that should not count"
            self._progress.say(f"note: {self.settings.times} has of {text_files.some(twice)} {text}")
        return table

    def _with_extensions(self, known_by: Roster | None) -> Settings:
        """The settings with the keys of who has an extension, as far as the roster knows them."""
        students = [
            Student(student=entry.student, name=entry.name, columns=entry.columns, status="missing", team=entry.team)
            for entry in (known_by.entries if known_by else ())
        ]
        return unknown_names.with_extensions(self.settings, identity.Directory(students, self._known), strict=False)

    def _or_kept(
        self, student: Student, earlier: Student | None, here: Collection[tuple[object, str]], why: dict[str, list[str]]
    ) -> Student:
        """The student; where nothing could be fetched or found, with what an earlier run took in, and why in `why`.

        `here` are the contents that were found, with the team that had each: what a member of a team had stays with it.
        """
        if student.content is not None and earlier is not None and earlier.content == student.content:
            student = replace(student, taken_at=earlier.taken_at or student.taken_at)
        teams = earlier is not None and earlier.team != "" and (earlier.content, earlier.team) in here
        if student.status == "missing" and earlier is not None and earlier.content is not None and not teams:
            student = replace(student, reason="handed in before, and is not in these submissions")
        elif student.status not in ("could_not_fetch", "no_repository"):
            return student
        why.setdefault(student.reason, []).append(student.student)
        if earlier is None or earlier.content is None or not self._store.path(earlier.content).is_dir():
            return student
        read_at = earlier.taken_at and self.settings.local(earlier.taken_at)
        when = f"that were read on {read_at:%Y-%m-%d %H:%M %Z}" if read_at else "of an earlier run"
        commit = f" (commit {earlier.commit[:10]})" if earlier.commit else ""
        return replace(
            student,
            status="kept",
            reason=f"{student.reason}; the files {when}{commit} count",
            submitted_at=student.submitted_at or earlier.submitted_at,
            commit=earlier.commit,
            content=earlier.content,
            taken_at=earlier.taken_at,
        )

    def _to_discard(self, students: Sequence[Student], plan: Plan) -> tuple[Collection[str] | None, list[str] | None]:
        """The submissions and criteria that `--regrade` names.

        Raises:
            IntakeError: it names neither.
        """
        contents = {student.student: student.content for student in students}
        of_lab = {lab.id: [row.id for row in lab.criteria if row.available] for lab in self._rubric.select(plan.labs)}
        criteria, named = list[str](), list[str]()
        here = {*of_lab, *(row for rows in of_lab.values() for row in rows)}
        elsewhere = {*plan.digests, *(lab.id for lab in self._rubric.labs)} - here
        for name in self._request.regrade:
            if name in elsewhere:
                labs = ", ".join(map(str, plan.labs))
                raise IntakeError(f"--regrade {name}: this class is for lab {labs}, and does not grade that: use --lab")
            try:
                if name in here:
                    criteria += of_lab.get(name, [name])
                else:
                    named += self._directory.keys(name)
            except identity.UnknownStudentError as error:
                near = difflib.get_close_matches(name, plan.digests, n=1)
                criterion = f" (did you mean {near[0]!r}?)" if near else ""
                raise IntakeError(f"--regrade {name}: it is no criterion{criterion} and no lab, and {error}") from None
        named_contents = [content for name in named if (content := contents[name]) is not None]
        return named_contents if named else None, criteria or None

    def _check_copies(self, students: Sequence[Student], contents: Collection[str] | None) -> None:
        """Raise IntakeError if something is to be graded again whose copy is gone: its score would be lost."""
        lost = [
            student.student
            for student in students
            if self._request.regrade
            and student.content is not None
            and (contents is None or student.content in contents)
            and not self._store.path(student.content).is_dir()
        ]
        if lost:
            raise IntakeError(
                f"the copies of what these students handed in are no longer in {self._request.out / STORE}: "
                f"{text_files.some(lost)}. Their scores stay as they are; give the submissions to grade them again"
            )

    def _criteria(self, plan: Plan) -> list[str]:
        return [
            criterion.id for lab in self._rubric.select(plan.labs) for criterion in lab.criteria if criterion.available
        ]


def _title(name: str) -> str:
    """The class's name, where nobody gave it one: that of its folder, its archive or its list without the suffix."""
    return Path(name).stem if name.lower().endswith((".csv", ".toml")) else zip_and_tar.stem(name) or name
