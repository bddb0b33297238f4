"""A Canvas of our own, as far as its documentation says what the parts of it do that grades are sent to.

Written from the pages of Canvas's API (OAuth, Pagination, Throttling, Object IDs and SIS IDs, Courses, Users, Sections,
Assignments, Submissions, Progress) and, where these are silent, from its source: `SubmissionsApiController#bulk_update`
(what refuses), `Submission.process_bulk_update` (what a job does, and how it fails), `RequestThrottle` (what it answers
when it throttles). Knows no code of the project. Left out are observers, provisional grades, rubrics, grading periods.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

TOKEN = "1234~a-secret-of-the-teacher"
TEACHER = 7
OTHER_TEACHER = 8


@dataclass
class Student:
    """A student of the course."""

    id: int
    name: str
    sis_user_id: str | None = None
    login_id: str | None = None
    email: str | None = None
    section: int = 31
    group: int | None = None


@dataclass
class StudentRecord:
    """What a student has in the assignment."""

    score: float | None = None
    excused: bool = False
    grader_id: int | None = None
    deducted: float = 0.0
    submitted_at: str | None = None
    comments: list[dict[str, Any]] = field(default_factory=list)
    gradings: int = 0


@dataclass
class Job:
    """Something that Canvas does after it has answered."""

    id: int
    grade_data: dict[str, dict[str, str]]
    looks: int
    """How often it is asked for before it has run."""
    state: str = "queued"
    message: str | None = None


@dataclass
class CanvasState:
    """One course with its assignments; a test reads and changes it as a teacher would by hand."""

    students: list[Student] = field(default_factory=list)
    left: list[Student] = field(default_factory=list)
    """Who is no longer in the course, and has a submission."""
    assignments: list[dict[str, Any]] = field(default_factory=list)
    sections: dict[int, str] = field(default_factory=lambda: {31: "Monday", 32: "Friday"})
    records: dict[int, StudentRecord] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    per_page: int = 2
    """The most it gives on a page, whatever is asked."""
    sees_sis: bool = True
    """Whether the owner of the token may read SIS data in lists."""
    may_grade: bool = True
    looks: int = 2
    breaks: str = ""
    """What a job says that breaks down after its first student."""
    answers: list[Callable[[BaseHTTPRequestHandler], bool]] = field(default_factory=list)
    """Each takes the next request instead of Canvas; it returns whether Canvas goes on to answer."""
    requests: list[str] = field(default_factory=list)
    after_update: Callable[[], None] | None = None
    """Runs when an update has been queued, and before that is answered."""

    def by_hand(self, student: str, score: float | None, *, excused: bool = False) -> None:
        """A teacher grades somebody on Canvas."""
        records = self.of(student)
        records.score, records.excused, records.grader_id = score, excused, OTHER_TEACHER

    def of(self, student: str) -> StudentRecord:
        return self.records[next(person.id for person in self.students if person.login_id == student)]

    def comments(self, student: str) -> list[str]:
        return [comment["comment"] for comment in self.of(student).comments]

    def run_jobs(self) -> None:
        """Everything that is queued is carried out."""
        for job in self.jobs.values():
            if job.state in ("queued", "running"):
                self.run(job)

    def run(self, job: Job) -> None:
        """What `Submission.process_bulk_update` does."""
        missing = []
        for count, (key, data) in enumerate(job.grade_data.items()):
            if self.breaks and count == 1:
                job.state, job.message = "failed", self.breaks
                return
            student = self.find(key)
            if student is None or student.id not in self.records:
                missing.append(key)
                continue
            if "posted_grade" in data or "excuse" in data:
                self._grade(student, data)
            if "text_comment" in data:
                self.records[student.id].comments.append(
                    {"id": 1, "author_id": TEACHER, "comment": data["text_comment"].replace("\n", "\r\n")}
                )
        job.state = "failed" if missing else "completed"
        if missing:
            ids = ", ".join(f"'{missed}'" for missed in missing)
            job.message = f"Couldn't find User(s) with API ids {ids}"

    def _grade(self, student: Student, data: dict[str, str]) -> None:
        assignment = self.assignments[0]
        together = assignment.get("group_category_id") and not assignment.get("grade_group_students_individually")
        for member in self.students:
            if member is student or (together and member.group is not None and member.group == student.group):
                records = self.records[member.id]
                records.gradings += 1
                records.grader_id = TEACHER
                if data.get("excuse") == "true":
                    records.score, records.excused = None, True
                else:
                    records.score, records.excused = float(data["posted_grade"]), False

    def find(self, key: str) -> Student | None:
        """A student by number, or by `sis_user_id:...` and the like (Object IDs and SIS IDs)."""
        kind, _, value = key.rpartition(":")
        field_of = {"": "id", "sis_user_id": "sis_user_id", "sis_login_id": "login_id"}.get(kind)
        if field_of is None:
            return None
        return next((student for student in self.students if str(getattr(student, field_of)) == value), None)


@contextmanager
def canvas(state: CanvasState) -> Iterator[str]:
    """Its address, as long as it is there."""

    class Handler(_Handler):
        pass

    Handler.state = state
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: CanvasState

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def _handle(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        self.state.requests.append(f"{method} {self.path}")
        if self.state.answers and not self.state.answers.pop(0)(self):
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.reply(
                401, {"errors": [{"message": "Invalid access token."}]}, {"WWW-Authenticate": 'Bearer realm="x"'}
            )
            return
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api/v1/")
        for verb, pattern, answer in _ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                answer(
                    self, *match.groups(), parse_qsl(parts.query if method == "GET" else body, keep_blank_values=True)
                )
                return
        self._not_found()

    def reply(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(data, str) else "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.send_header("X-Request-Cost", "0.07")
        self.send_header("X-Rate-Limit-Remaining", "599.9")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def _not_found(self) -> None:
        self.reply(404, {"errors": [{"message": "The specified resource does not exist."}]})

    def _paged(self, rows: list[Any], query: list[tuple[str, str]]) -> None:
        """A page, and in `Link` where others are: absolute, opaque, and without `last`, which Canvas may leave out."""
        parameters = dict(query)
        per_page = min(int(parameters.get("per_page", 10)), self.state.per_page)
        start = int(parameters.get("page", "bookmark:0").removeprefix("bookmark:"))
        others = [(name, value) for name, value in query if name not in ("page", "per_page")]

        def link(at: int, rel: str) -> str:
            where = urlencode([*others, ("page", f"bookmark:{at}"), ("per_page", str(per_page))])
            return f'<http://{self.headers["Host"]}{urlsplit(self.path).path}?{where}>; rel="{rel}"'

        links = [link(start, "current"), link(0, "first")]
        if start + per_page < len(rows):
            links.insert(1, link(start + per_page, "next"))
        self.reply(200, rows[start : start + per_page], {"Link": ",".join(links)})

    # --- what is there ---------------------------------------------------------------------------------------------

    def course(self, named: str, query: list[tuple[str, str]]) -> None:
        if named not in ("42", "sis_course_id:CS-101"):
            self._not_found()
        else:
            self.reply(200, {"id": 42, "name": "GPU computing", "course_code": "CS-101", "workflow_state": "available"})

    def me(self, query: list[tuple[str, str]]) -> None:
        self.reply(200, {"id": TEACHER, "name": "A teacher", "short_name": "A teacher"})

    def users(self, query: list[tuple[str, str]]) -> None:
        assert ("enrollment_type[]", "student") in query
        self._paged([self._user(student, query) for student in self.state.students], query)

    def user(self, named: str, query: list[tuple[str, str]]) -> None:
        student = self.state.find(named)
        if student is None:
            self._not_found()
        else:
            self.reply(200, self._user(student, query))

    def _user(self, student: Student, query: list[tuple[str, str]]) -> dict[str, Any]:
        row: dict[str, Any] = {"id": student.id, "name": student.name, "sortable_name": student.name}
        if self.state.sees_sis:
            row |= {"sis_user_id": student.sis_user_id, "login_id": student.login_id, "integration_id": None}
        if ("include[]", "email") in query and self.state.sees_sis:
            row["email"] = student.email
        if ("include[]", "enrollments") in query:
            row["enrollments"] = [
                {"id": student.id + 900, "course_section_id": student.section, "type": "StudentEnrollment"}
            ]
        return row

    def sections(self, query: list[tuple[str, str]]) -> None:
        self._paged(
            [{"id": number, "name": name, "course_id": 42} for number, name in self.state.sections.items()], query
        )

    def assignments(self, query: list[tuple[str, str]]) -> None:
        self._paged(self.state.assignments, query)

    def assignment(self, number: str, query: list[tuple[str, str]]) -> None:
        assignment = self._assignment(number)
        if assignment is None:
            self._not_found()
        else:
            self.reply(200, assignment)

    def _assignment(self, number: str) -> dict[str, Any] | None:
        return next((assignment for assignment in self.state.assignments if str(assignment["id"]) == number), None)

    def submissions(self, number: str, query: list[tuple[str, str]]) -> None:
        if self._assignment(number) is None:
            self._not_found()
            return
        rows = []
        for student in sorted([*self.state.students, *self.state.left], key=lambda person: person.id):
            records = self.state.records.get(student.id)
            if records is None:
                continue
            score = None if records.score is None else records.score - records.deducted
            row = {
                "submitted_at": records.submitted_at, "user_id": student.id,
                "assignment_id": int(number), "score": score, "entered_score": records.score,
                "grade": None if score is None else str(score), "excused": records.excused,
                "grader_id": records.grader_id, "points_deducted": records.deducted or None,
                "workflow_state": "unsubmitted" if score is None else "graded", "attempt": None,
            }  # fmt: skip
            if ("include[]", "submission_comments") in query:
                row["submission_comments"] = records.comments
            if ("include[]", "group") in query:
                row["group"] = {"id": student.group, "name": student.group and f"Team {student.group}"}
            rows.append(row)
        self._paged(rows, query)

    def update(self, number: str, query: list[tuple[str, str]]) -> None:
        assignment = self._assignment(number)
        if assignment is None:
            self.reply(400, {"error": f"Some assignments could not be found: ( {number} )"})
            return
        if not self.state.may_grade or not assignment["published"]:
            self.reply(
                401, {"status": "unauthorized", "errors": [{"message": "user not authorized to perform that action"}]}
            )
            return
        data: dict[str, dict[str, str]] = {}
        for name, value in query:
            if match := re.fullmatch(r"grade_data\[([^\]]+)\]\[([^\]]+)\]", name):
                data.setdefault(match[1], {})[match[2]] = value
        if not data:
            self.reply(400, {"error": "'grade_data' parameter required"})
            return
        job = Job(len(self.state.jobs) + 501, data, self.state.looks)
        self.state.jobs[job.id] = job
        if self.state.after_update is not None:
            self.state.after_update()
        self._progress(job)

    def progress(self, number: str, query: list[tuple[str, str]]) -> None:
        job = self.state.jobs.get(int(number))
        if job is None:
            self._not_found()
            return
        if job.state in ("queued", "running"):
            job.looks -= 1
            job.state = "running"
            if job.looks <= 0:
                self.state.run(job)
        self._progress(job)

    def _progress(self, job: Job) -> None:
        self.reply(
            200,
            {
                "id": job.id, "context_id": 42, "context_type": "Course", "user_id": TEACHER,
                "tag": "submissions_update",
                "completion": 100 if job.state == "completed" else None, "workflow_state": job.state,
                "message": job.message, "url": f"http://{self.headers['Host']}/api/v1/progress/{job.id}",
            },
        )  # fmt: skip


_ROUTES: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("GET", r"courses/([^/]+)", _Handler.course),
    ("GET", r"users/self", _Handler.me),
    ("GET", r"courses/42/(?:search_)?users", _Handler.users),
    ("GET", r"courses/42/users/([^/]+)", _Handler.user),
    ("GET", r"courses/42/sections", _Handler.sections),
    ("GET", r"courses/42/assignments", _Handler.assignments),
    ("GET", r"courses/42/assignments/(\d+)", _Handler.assignment),
    ("GET", r"courses/42/assignments/(\d+)/submissions", _Handler.submissions),
    ("POST", r"courses/42/assignments/(\d+)/submissions/update_grades", _Handler.update),
    ("GET", r"progress/(\d+)", _Handler.progress),
)


def throttled(handler: BaseHTTPRequestHandler) -> bool:
    """As `RequestThrottle` refuses."""
    assert isinstance(handler, _Handler)
    handler.reply(403, "403 Forbidden (Rate Limit Exceeded)\n")
    return False


def too_many(handler: BaseHTTPRequestHandler) -> bool:
    """As a service in front of Canvas refuses."""
    assert isinstance(handler, _Handler)
    handler.reply(429, {"errors": [{"message": "Too many requests"}]}, {"Retry-After": "17"})
    return False


def trouble(handler: BaseHTTPRequestHandler) -> bool:
    """Canvas is being updated."""
    assert isinstance(handler, _Handler)
    handler.reply(503, "<html>We are down for maintenance</html>")
    return False


def cut_off(handler: BaseHTTPRequestHandler) -> bool:
    """The way breaks off before there is an answer."""
    handler.close_connection = True
    handler.connection.close()
    return False
