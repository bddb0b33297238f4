"""Feedback as platforms take it for a whole class, from the files that `everything.py` has written.

| form | what | how it reaches students |
|---|---|---|
| `moodle` | a zip of feedback files | the assignment, Upload multiple feedback files in a zip ("Feedback files" on) |
| `gradescope` | an autograder that only looks results up | upload it as the autograder, then Regrade All Submissions |
| `github` | a file for each login and a script | `deliver.sh ORG PREFIX` opens an issue in each repository, each once |
| `folders` | a folder for each student | anything else |

Moodle's names: `is_valid_filename_for_import` in its `mod/assign/feedback/file/importziplib.php`, which takes
`NAME_PARTICIPANT_PLUGINTYPE_PLUGIN_FILE`. Gradescope's metadata: https://gradescope-autograders.readthedocs.io. Not for
mail (`mail.py`), nor for Canvas, whose comments are the plug-in `canvas_push`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from gradebook.export import gradescope
from gradebook.export.view import Line, View
from gradebook.roster import LOGINS, PARTICIPANT
from gradebook.text_files import write_file

Form = Literal["moodle", "gradescope", "github", "folders"]
_SCRIPTS = Path(__file__).with_name("scripts")
_LOGIN = re.compile(r"[a-z0-9][a-z0-9_-]*", re.IGNORECASE)
"""A name on GitHub; behind a `_` that of a company whose accounts it manages."""
_ADDRESSES = ("Email address", "Email", "email")
_SIDS = ("SID", "SIS User ID", "ID number")
_LONGEST = 150
"""Bytes of a name in a file's name, of which file systems take 255."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


class DeliveryError(ValueError):
    """Feedback cannot be written in this form; the message is one line that says what to do."""


def write(view: View, exports: Path, form: Form, out: Path) -> tuple[Path, list[str]]:
    """Write the feedback of a class in one form; where it is, and who is not in it.

    Args:
        view: the class.
        exports: its folder of exports, with `feedback/`.
        form: see above.
        out: a file for `moodle` and `gradescope`, else a folder.

    Raises:
        DeliveryError: nobody could be reached in this form.
        OSError: a file cannot be read or written.
    """
    _check_place(out, form)
    members = [line for line in view.lines if line not in view.strangers]
    content, reached = {"moodle": _moodle, "gradescope": _gradescope, "github": _github, "folders": _folders}[form](
        members, exports / "feedback"
    )
    if not reached:
        raise DeliveryError(_NEEDED[form])
    if form == "gradescope":
        held_back = {handle for line in members if line.is_held_back for handle in _handles(line)}
        content |= {_result_name(handle): b"null" for handle in held_back}
    if form in ("moodle", "gradescope"):
        write_file(out, _zipped(content))
    else:
        _remove_old(out, form, content)
        # What marks the folder as ours goes first: a command that was stopped midway is given again.
        for name in sorted(content, key=lambda name: name != _MARKS[form]):
            path = write_file(out / name, content[name])
            if name.endswith(".sh"):  # for whoever may read it, as the umask says
                path.chmod((mode := path.stat().st_mode) | (mode & 0o444) >> 2)
    by_reason: dict[str, list[str]] = {}
    for line in view.lines:
        if line.student not in reached:
            why = "not in the roster" if line in view.strangers else _why(line, form)
            by_reason.setdefault(why, []).append(line.who)
    return out, [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]


def _why(line: Line, form: Form) -> str:
    """Why a student of the roster is not in the files of a form."""
    cells = line.result.columns
    if line.is_held_back:
        return "held back"
    if form == "moodle":
        cell = cells.get("Identifier", "").strip()
        return f"Identifier {cell!r} is no participant's number" if cell else "no Identifier in the roster"
    if form == "gradescope":
        if not line.decided:
            return "excused" if line.result.status == "excused" else "no score yet"
        return "shares address and SID with another student" if _handles(line) else "no Email or SID in the roster"
    login = _login(line)
    if not login:
        return "no github_username in the roster"
    return (
        "shares the name on GitHub with another student" if _LOGIN.fullmatch(login) else "no name on GitHub can be so"
    )


_MARKS = {"github": "deliver.sh", "folders": "students.json"}
"""The file by which a folder is known that this command has written."""
_NEEDED = {
    "moodle": "nobody has a participant's number: use the assignment's grading worksheet as the roster (Moodle: "
    "Download grading worksheet)",
    "gradescope": "nobody has a score and an address or a SID: give the roster a column Email or SID, as Gradescope's",
    "github": "nobody has a name on GitHub: give the roster a column github_username",
    "folders": "there is nobody in the class",
}
NEXT_STEP: dict[Form, str] = {
    "moodle": ": upload it in the assignment, with Upload multiple feedback files in a zip",
    "gradescope": ": upload it as the assignment's autograder, then choose Regrade All Submissions",
    "github": ": {}/deliver.sh ORG PREFIX shows what it would send, and sends it with --send",
    "folders": "",
}
"""What to do with what was written, where that is."""
_Files = tuple[dict[str, bytes], set[str]]


def _pages(line: Line, feedback: Path) -> Iterator[tuple[str, bytes]]:
    for suffix in (".html", ".md"):
        path = feedback / f"{line.file_name}{suffix}"
        yield f"feedback{suffix}", path.read_bytes()


def _moodle(lines: list[Line], feedback: Path) -> _Files:
    files: dict[str, bytes] = {}
    reached = set()
    for line in lines:
        cell = line.result.columns.get("Identifier", "").strip()
        if not PARTICIPANT.match(cell) or line.is_held_back:
            continue
        number = PARTICIPANT.sub("", cell)
        label = "".join(c for c in line.label if c.isalnum() or c in " .-'").strip()
        name = label.encode()[:_LONGEST].decode(errors="ignore").strip() or "student"
        page = (feedback / f"{line.file_name}.html").read_bytes()
        files[f"{name}_{number}_assignfeedback_file_feedback.html"] = page
        reached.add(line.student)
    return files, reached


def _gradescope(lines: list[Line], feedback: Path) -> _Files:
    files: dict[str, bytes] = {}
    reached = set()
    shared = _shared_handles(lines)
    for line in lines:
        handles = _handles(line) - shared
        if line.decided and handles:
            result = gradescope.to_json(gradescope.student_results(line)).encode()
            for handle in handles:
                files[_result_name(handle)] = result
            reached.add(line.student)
    files["setup.sh"] = b"#!/usr/bin/env bash\n"
    files["run_autograder"] = (_SCRIPTS / "look_up_result").read_bytes()
    return files, reached


def _result_name(handle: str) -> str:
    return f"results/{hashlib.sha256(handle.encode()).hexdigest()}.json"


def _handles(line: Line) -> set[str]:
    cells = line.result.columns
    return {cells[name].strip().casefold() for name in (*_ADDRESSES, *_SIDS) if cells.get(name, "").strip()}


def _shared_handles(lines: list[Line]) -> set[str]:
    """Identifiers that two students have: what is filed under one would reach the other."""
    count: dict[str, int] = {}
    for line in lines:
        for handle in _handles(line):
            count[handle] = count.get(handle, 0) + 1
    return {handle for handle, students in count.items() if students > 1}


def _github(lines: list[Line], feedback: Path) -> _Files:
    files: dict[str, bytes] = {}
    reached = set()
    logins = {line.student: _login(line) for line in lines}
    count = Counter(login.casefold() for login in logins.values())
    for line in lines:
        login = logins[line.student]
        # What two students share would bring one of them the other's feedback.
        if _LOGIN.fullmatch(login) and count[login.casefold()] == 1 and not line.is_held_back:
            files[f"{login}.md"] = (feedback / f"{line.file_name}.md").read_bytes()
            reached.add(line.student)
    files["deliver.sh"] = (_SCRIPTS / "deliver.sh").read_bytes()
    return files, reached


def _login(line: Line) -> str:
    return next((cell for name in LOGINS if (cell := line.result.columns.get(name, "").strip())), "")


def _folders(lines: list[Line], feedback: Path) -> _Files:
    files: dict[str, bytes] = {}
    lines = [line for line in lines if not line.is_held_back]
    for line in lines:
        files |= {f"{line.file_name}/{name}": data for name, data in _pages(line, feedback)}
    index = {line.file_name: {"student": line.student, "name": line.result.name} for line in lines}
    files["students.json"] = (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()
    return files, {line.student for line in lines}


def _check_place(out: Path, form: Form) -> None:
    """Nothing is written among somebody's own files, such as submissions, and no other file is replaced.

    Raises:
        DeliveryError: it would be.
    """
    if form in ("moodle", "gradescope"):
        if out.exists() and not (out.is_file() and zipfile.is_zipfile(out)):
            raise DeliveryError(f"{out} is there already and is no zip file; name another one with --out")
        return
    ours = out / _MARKS[form]
    if out.exists() and not ours.is_file() and (not out.is_dir() or any(out.iterdir())):
        raise DeliveryError(f"{out} has other files, and feedback does not belong among them; name a new folder")


def _remove_old(out: Path, form: Form, content: Collection[str]) -> None:
    """Feedback of who is no longer in the class goes from a folder that this command has written before."""
    if form == "github" and (out / "deliver.sh").is_file():
        old = [path for path in out.glob("*.md") if path.name not in content]
    elif form == "folders" and (out / "students.json").is_file():
        old = [path for path in out.glob("*/feedback.*") if path.relative_to(out).as_posix() not in content]
    else:
        old = []
    for path in old:
        path.unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if nothing else is in it


def _zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            executable = name in ("setup.sh", "run_autograder")
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return content.getvalue()
