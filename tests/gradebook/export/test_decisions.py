"""What a decision did is what the class then says, and a command that is refused changes nothing."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grader
from gradebook.cli.exporting import review_class
from grader.cli import app
from tests.gradebook.conftest import SmallClass

ROSTER = """student,name,team,Email,submitted_at
ada,Ada Lovelace,,ada@uni.example,2026-03-01T12:00+00:00
bob,Bob Ross,blue,bob@uni.example,2026-03-03T12:00+00:00
cleo,Cleo C,blue,cleo@uni.example,
late,Lee Late,,late@uni.example,2026-03-20T12:00+00:00
ill,Ill I,,ill@uni.example,2026-03-01T12:00+00:00
gone,Gone G,,gone@uni.example,
"""
CLASS = "labs = [1]\ndeadline = 2026-03-01T23:59:00+00:00\n[late]\npercent_per_day = 10\nno_credit_after_days = 7\n"


@pytest.fixture
def folder(small_class: SmallClass) -> Path:
    for name in ("ada", "bob", "late", "ill"):
        small_class.hands_in(name)
    beside = small_class.submissions.parent
    (beside / "roster.csv").write_text(ROSTER)
    (beside / "class.toml").write_text(CLASS)
    small_class.grade(roster=beside / "roster.csv", configuration=beside / "class.toml", labs=None)
    return small_class.out


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def scores(folder: Path) -> dict[str, str]:
    text = (folder / "exports" / "grades.csv").read_text("utf-8-sig")
    return {row["student"]: row["score"] for row in csv.DictReader(io.StringIO(text, newline=""))}


def test_an_override_reports_the_score_that_the_exports_then_have(folder: Path) -> None:
    run("review", str(folder), "--excuse", "ill", "all", "ill")
    for who, points in (("ada", "5"), ("ada", "5"), ("blue", "0"), ("gone", "3")):
        earlier = scores(folder)
        code, said = run("review", str(folder), "--override", who, "lab1.memory", points, "asked in person")
        reported = dict(re.findall(r"^(\w+) has ([\d.]+) of 20 points now", said, re.MULTILINE))
        assert code == 0
        assert reported == {key: scores(folder)[key] for key in (("bob", "cleo") if who == "blue" else (who,))}
        assert ("as before" in said) == (earlier == scores(folder))
    assert (
        "lateness (no credit after 7 days)"
        in run("review", str(folder), "--override", "late", "lab1.memory", "5", "x")[1]
    )
    assert (
        "ill is excused, so the points do not"
        in run("review", str(folder), "--override", "ill", "lab1.memory", "5", "x")[1]
    )
    said = run("review", str(folder), "--override", "ada", "lab2.amp", "5", "x")[1]
    assert "ada: the points have no effect, because lab2 is not graded in this class" in said


def test_an_edited_table_is_kept_and_scores_that_change_are_named(folder: Path) -> None:
    table = folder / "exports" / "grades.csv"
    assert "was edited" not in run("export", "class", str(folder))[1]
    mine = table.read_bytes().replace(b"Ada Lovelace", b"Ada Lovelace (oral: 5)")
    table.write_bytes(mine)
    (folder / "overrides.toml").write_text(
        '[[override]]\nstudent = "ada"\ncriterion = "lab1.memory"\npoints = 1\nreason = "x"\n'
    )
    before = scores(folder)["ada"]
    said = run("review", str(folder), "--override", "bob", "lab1.memory", "5", "x")[1]
    assert "grades.csv was edited since it was written: the edited one is grades.edited.csv now" in said
    assert f"note: 1 score changed since the exports before: ada {before} → {scores(folder)['ada']}" in said
    assert (table.with_name("grades.edited.csv").read_bytes(), b"oral" in table.read_bytes()) == (mine, False)
    table.write_text("mine again\n")
    assert "is grades.edited-2.csv now" in run("export", "class", str(folder))[1]
    assert run("export", "class", str(folder))[1].count("was edited") == 0


def test_settings_that_have_changed_and_do_not_count_yet_are_named(folder: Path) -> None:
    file = folder.parent / "class.toml"
    file.write_text(f"# a remark\n{file.read_text()}")
    commands = (("export", "class", str(folder)), ("mail", str(folder)), ("review", str(folder), "--rerun", "ada"))
    assert not any("has changed" in run(*command)[1] for command in commands[:2])
    file.write_text(file.read_text().replace("= 10", "= 20"))
    for command in commands[:2]:
        said = " ".join(run(*command)[1].split())
        assert f"{file} has changed, and does not count before the next run with it: gpulabs class --out" in said


REFUSED = (
    ("review", "--override", "nobody", "lab1.memory", "1", "x"),
    ("review", "--override", "ada", "lab1.memroy", "1", "x"),
    ("review", "--override", "ada", "lab1.memory", "99", "x"),
    ("review", "--override", "ada", "lab1.memory", "+1", "x"),
    ("review", "--override", "ada", "lab1.memory", "1e400", "x"),
    ("review", "--override", "ada", "lab1.memory", "1", " "),
    ("review", "--override", "ada,bob", "lab1.memory", "1", "x"),
    ("review", "--excuse", "nobody", "all", "x"),
    ("review", "--excuse", "ada", "lab9", "x"),
    ("review", "--accept", "nobody", "all"),
    ("review", "--accept", "gone", "lab1.memory"),
    ("review", "--rerun", "nobody"),
    ("class", "--regrade", "nobody"),
    ("class", "--lab", "9"),
    ("class", "--device", "vgpu:none"),
    ("class", "--config", "none.toml"),
    ("class", "--roster", "none.csv"),
    ("mail", "--server", "nowhere", "--sender", "a@b.example", "--send"),
    ("mail", "--server", "127.0.0.1:70000", "--sender", "a@b.example", "--send"),
    ("mail", "--subject", "two\nlines"),
    ("mail", "--server", "127.0.0.1:1", "--sender", "a@b.example", "--send", "--only", "nobody"),
    ("manual", "ask", "nobody", "all", "please"),
    ("manual", "ask", "ada", "lab9.none", "please"),
    ("manual", "ask", "ada", "all", " "),
    ("manual", "answer", "r000000", "yes"),
    ("manual", "import", "none.csv"),
    ("manual", "list"),
)


def test_a_command_that_is_refused_changes_nothing(folder: Path, tmp_path: Path) -> None:
    def content() -> dict[str, str]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = content()
    for command, *arguments in REFUSED:
        if command == "manual":
            start = [command, arguments[0], str(folder), *arguments[1:]]
        else:
            start = [command, *(["--out"] if command == "class" else []), str(folder), *arguments]
        code, said = run(*start)
        assert code == 2, (start, said)
        assert len(said.splitlines()) == 1, "one line says why"
        assert len(said) < 900, said
        assert content() == before, start


def test_decisions_that_several_people_make_at_once_all_count(folder: Path) -> None:
    criteria = [criterion.id for lab in grader.course().rubric.select((1,)) for criterion in lab.criteria]
    decided = [(who, criterion) for who in ("ada", "bob", "late") for criterion in criteria]
    with ThreadPoolExecutor(len(decided)) as pool:
        list(pool.map(lambda pair: review_class(folder, override=(*pair, "1", "at once")), decided))
        list(pool.map(lambda who: review_class(folder, excuse=(who, "all", "ill")), ("ill", "gone", "cleo")))
    text = (folder / "exports" / "grades.csv").read_text("utf-8-sig")
    rows = {row["student"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert {row["overrides"] for key, row in rows.items() if key in ("ada", "bob", "late")} == {" ".join(criteria)}
    assert {row["status"] for key, row in rows.items() if key in ("ill", "gone", "cleo")} == {"excused"}


STOPPED = (
    ("review", "OUT", "--override", "blue", "lab1.memory", "2", "x"),
    ("review", "OUT", "--excuse", "blue", "all", "ill"),
    ("review", "OUT", "--accept", "ada", "all"),
    ("manual", "ask", "OUT", "blue", "all", "please"),
    ("export", "class", "OUT"),
    ("export", "feedback", "OUT", "--as", "folders", "--out", "OUT/../feedback"),
)
_TIMES = re.compile(rb"(made <b>|((asked|accepted)_|\n)at = )[^<\n]*|\d{4}-\d\d-\d\d \d\d:\d\d UTC")


def stopped_and_given_again(folder: Path, command: tuple[str, ...], at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the command writes as many files; it leaves then what it leaves without an interruption."""

    def files(root: Path) -> dict[str, bytes]:
        # Digests of tables, which say when something was decided, differ.
        others = ("gradebook.sqlite", ".exports.json")
        found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith(others))
        return {path.relative_to(root).as_posix(): _TIMES.sub(b"", path.read_bytes()) for path in found}

    room = folder.parent / "room"
    shutil.rmtree(room, ignore_errors=True)
    for name in ("whole", "stopped"):
        shutil.copytree(folder, room / name / "out")
    run(*(part.replace("OUT", str(room / "whole" / "out")) for part in command))
    arguments = [part.replace("OUT", str(room / "stopped" / "out")) for part in command]
    written, replace = 0, os.replace

    def stop(draft: Path, target: Path) -> None:
        nonlocal written
        written += 1
        if written == at:
            raise KeyboardInterrupt
        replace(draft, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        run(*arguments)
    run(*arguments)
    assert {name.replace("stopped", "whole"): data for name, data in files(room / "stopped").items()} == {
        name: data.replace(b"room/whole", b"room/stopped") for name, data in files(room / "whole").items()
    }, (command, at)
    return written >= at


def test_a_decision_that_is_stopped_before_its_exports_is_in_them_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in STOPPED[:3]:
        assert stopped_and_given_again(folder, command, 3, monkeypatch)


@pytest.mark.night
@pytest.mark.parametrize("command", STOPPED, ids=lambda command: " ".join(command[:4]))
def test_a_command_may_be_stopped_at_every_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    at = 1
    while stopped_and_given_again(folder, command, at, monkeypatch):
        at += 1
    assert at > 3


def test_what_an_instructor_wrote_into_the_files_stays(folder: Path) -> None:
    overrides, shared = folder / "overrides.toml", folder.parent / "shared.toml"
    own = '# mine\n[[override]]\nstudent = "ada"\ncriterion = "lab1.memory"\npoints = 2\nreason = "x"\n'
    shared.write_text(own)
    overrides.symlink_to(shared)
    run("review", str(folder), "--override", "ada", "lab1.memory", "3.5", "looked again")
    run("review", str(folder), "--override", "bob", "lab1.memory", "1", "looked")
    assert overrides.is_symlink()
    assert shared.read_text().startswith(own.replace("= 2", "= 3.5").replace('"x"', '"looked again"'))
    assert (scores(folder)["ada"], shared.read_text().count("[[override]]")) != ("", 1)

    excused = folder / "excused.toml"
    own = '# mine\n[[excused]]\nstudent = "ill"  # mail of May 3\nreason = "ill"\n\n'
    own += '[[excused]]\nstudent = "ada"\nlab = 1\nreason = "x"'
    excused.write_text(own)
    run("review", str(folder), "--excuse", "ada", "lab1", "a wedding", "--as", "me")
    code, _ = run("review", str(folder), "--excuse", "gone", "all", "left", "--as", "me")
    assert code == 0
    added = '\n\n[[excused]]\nstudent = "gone"\nreason = "left"\nby = "me"\n'
    text = re.sub(r"at = .*\n", "", excused.read_text())
    assert text == own.replace('"x"', '"a wedding"\nby = "me"') + added
    held = folder / "held_back.toml"
    own = '# mine\n[[held_back]]\nstudent = "ill"\nreason = "x"\n\n'
    own += '# about Ada\n[[held_back]]\nstudent = "ada"\nreason = "y"\n'
    held.write_text(own)
    run("review", str(folder), "--hold-back", "bob", "z", "--as", "me")
    run("review", str(folder), "--hold-back", "ill", "again", "--as", "me")
    run("review", str(folder), "--release", "bob")
    text = re.sub(r"at = .*\n", "", held.read_text())
    assert text.replace("\n\n", "\n") == (
        '# mine\n# about Ada\n[[held_back]]\nstudent = "ada"\nreason = "y"\n'
        '[[held_back]]\nstudent = "ill"\nreason = "again"\nby = "me"\n'
    )
    held.write_text(own * 2)
    assert "held_back.toml:11: ill stands twice; keep one" in run("review", str(folder))[1]
    held.write_text('held_back = [{ student = "ill", reason = "ill" }]\n')
    assert "change it by hand" in run("review", str(folder), "--hold-back", "bob", "z")[1]
    held.unlink()
    excused.write_text('excused = [{ student = "ill", reason = "ill" }]\n')
    before = excused.read_text()
    code, said = run("review", str(folder), "--excuse", "ada", "lab1", "a wedding")
    assert (code, "cannot be changed here; change it by hand" in said, excused.read_text()) == (2, True, before)


def rows(folder: Path) -> dict[str, dict[str, str]]:
    text = (folder / "exports" / "grades.csv").read_text("utf-8-sig")
    return {row["student"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def test_what_is_held_back_is_in_no_export_until_it_is_released(folder: Path, tmp_path: Path) -> None:
    exports, secret = folder / "exports", "talk about the similarity first"
    before = rows(folder)["bob"]
    code, said = run("review", str(folder), "--hold-back", "Bob Ross", secret, "--as", "Grace Hopper")
    assert code == 0
    assert "bob is held back" in said
    assert "the same work counts for cleo, who is not" in said
    # Nobody outside the course staff sees a score, a message of a check, or the reason.
    assert "bob" not in (exports / "canvas.csv").read_text() + (exports / "moodle-grades.csv").read_text()
    assert not (exports / "gradescope" / "bob.json").exists()
    assert (exports / "gradescope" / "cleo.json").exists()
    page, text = ((exports / "feedback" / f"bob.{suffix}").read_text() for suffix in ("html", "md"))
    for shown in (page, text):
        assert "not released yet" in shown
        assert secret not in shown
        assert not re.search(r"of 20|lab1", shown)
    row = rows(folder)["bob"]
    assert {name: row[name] for name in ("status", "score", "before_penalty", "lab1.memory", "checks_score")} == {
        "status": "held_back", "score": "", "before_penalty": "", "lab1.memory": "", "checks_score": "",
    }  # fmt: skip
    assert re.fullmatch(r"held back: Grace Hopper \d{4}-\d\d-\d\d \d\d:\d\d UTC", row["decided_by"])
    assert "not to bob: is held back" in run("mail", str(folder))[1]
    code, said = run("export", "feedback", str(folder), "--out", str(tmp_path / "feedback"))
    assert "not in it: bob (held back)" in said
    assert not list((tmp_path / "feedback").glob("bob*"))
    # The course staff sees both, and is reminded.
    assert all(word in (exports / "class.html").read_text() for word in (secret, "Grace Hopper", "held back"))
    for command in (("review", str(folder)), ("export", "class", str(folder))):
        assert f"bob{'' if command[0] == 'export' else ':'} " in run(*command)[1]
        assert secret in run(*command)[1]
    said = run("review", str(folder), "--override", "bob", "lab1.memory", before["lab1.memory"], "as it was")[1]
    assert "points now, as before" in said
    assert "the score is held back, so no export has it" in said
    (folder / "overrides.toml").unlink()
    code, said = run("review", str(folder), "--release", "bob@uni.example")
    assert code == 0
    assert rows(folder)["bob"] == before
    assert run("review", str(folder), "--release", "bob")[0] == 2
    # Canvas's file would show EX, which also is a result; Canvas itself shows no EX while a grade is hidden.
    run("review", str(folder), "--excuse", "ill", "all", "certificate")
    excused = "Ill I,,,ill,,EX"
    assert excused in (exports / "canvas.csv").read_text()
    run("review", str(folder), "--hold-back", "ill", "the certificate is not checked")
    assert "EX" not in (exports / "canvas.csv").read_text()
    assert "certificate" not in (exports / "feedback" / "ill.md").read_text()
    assert "excused, so EX" not in run("export", "class", str(folder))[1]
    run("review", str(folder), "--release", "ill")
    assert excused in (exports / "canvas.csv").read_text()
    assert "excused, so EX in canvas.csv" in run("export", "class", str(folder))[1]


def test_decisions_name_who_made_them_and_when(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "grace")
    run("review", str(folder), "--override", "ada", "lab1.memory", "4", "first look", "--as", "Ann")
    run("review", str(folder), "--override", "ada", "lab1.memory", "5", "asked in person")
    run("review", str(folder), "--excuse", "ill", "all", "late certificate", "--as", "Ann")
    run("review", str(folder), "--excuse", "ill", "all", "certificate", "--as", "Bea")
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
    assert re.fullmatch(rf"lab1\.memory: grace {when}", rows(folder)["ada"]["decided_by"])
    assert re.fullmatch(rf"excused: Bea {when}", rows(folder)["ill"]["decided_by"])
    page = (folder / "exports" / "class.html").read_text()
    assert re.search(rf"asked in person</td><td>grace {when}", page)
    assert "Ann" not in page  # whose decisions were replaced
    feedback = "".join(path.read_text() for path in (folder / "exports" / "feedback").iterdir())
    assert "grace" not in feedback
    # An entry that a person has written has no name, and the page says so.
    file = folder / "overrides.toml"
    file.write_text(re.sub(r"^(by|at) = .*\n", "", file.read_text(), flags=re.MULTILINE))
    assert run("export", "class", str(folder))[0] == 0
    assert "asked in person</td><td>not recorded" in (folder / "exports" / "class.html").read_text()


def test_a_broken_criterion_gives_everybody_its_points_and_takes_none(folder: Path) -> None:
    run("review", str(folder), "--override", "late", "lab1.memory", "1", "a decision of its own")
    before = rows(folder)
    fewer = [key for key in ("ada", "bob", "cleo", "ill") if before[key]["lab1.memory"] not in ("5", "")]
    code, said = run("review", str(folder), "--override", "all", "lab1.memory", "5", "the check was wrong")
    after = rows(folder)
    assert code == 0
    assert f"{len(fewer)} of 5 students who were graded get 5 points" in said
    assert "not for late, of whom an override says something else" in said
    assert {after[key]["lab1.memory"] for key in ("ada", "bob", "cleo", "ill")} == {"5"}
    assert (after["late"]["lab1.memory"], after["gone"]) == ("1", before["gone"])
    assert {key for key in after if after[key]["overrides"]} == {*fewer, "late"}
    for criterion, points in (("lab1.memory", "5"), ("lab1.memory", "6"), ("lab1.none", "1"), ("lab1.memory", "x")):
        assert run("review", str(folder), "--override", "all", criterion, points, "again")[0] == 2
        assert rows(folder) == after


def test_an_override_for_earlier_files_is_named(small_class: SmallClass) -> None:
    small_class.hands_in("ada", "one")
    small_class.grade()
    folder, file = small_class.out, small_class.out / "overrides.toml"
    run("review", str(folder), "--override", "ada", "lab1.memory", "5", "looked")
    assert "older than the submission" not in run("export", "class", str(folder))[1]
    file.write_text(re.sub(r"at = .*", "at = 2026-03-01T12:00:00Z", file.read_text()))
    small_class.hands_in("ada", "two")
    small_class.grade()
    said = run("export", "class", str(folder))[1]
    assert "overrides are older than the submission, and count all the same: ada lab1.memory (2026-03-01 12:00" in said
    small_class.grade(labs=(2,))
    assert "older than the submission" not in run("export", "class", str(folder))[1], "its lab is not graded now"
    small_class.grade()
    run("review", str(folder), "--override", "ada", "lab1.memory", "5", "looked again")
    small_class.grade()  # the same files were taken in before the decision
    assert "older than the submission" not in run("export", "class", str(folder))[1]


def test_the_same_files_of_who_is_not_one_team_are_named(small_class: SmallClass) -> None:
    roster = small_class.submissions.parent / "roster.csv"
    roster.write_text("student,team\nada,\nbob,\ncleo,red\ndan,red\neve,\n")
    for name, text in (("ada", "a"), ("bob", "a"), ("cleo", "c"), ("dan", "c"), ("eve", "e")):
        small_class.hands_in(name, text)
    small_class.grade(roster=roster)
    said = run("export", "class", str(small_class.out))[1]
    compare = f"gpulabs similarity {small_class.out} compares all"
    assert f"students with the same files who are not one team: ada and bob. {compare}" in said


def test_a_decision_that_replaces_another_one_says_so(folder: Path) -> None:
    first = run("review", str(folder), "--override", "blue", "lab1.memory", "2", "by Ana", "--as", "Ana")[1]
    again = run("review", str(folder), "--override", "blue", "lab1.memory", "2", "by Ana", "--as", "Ben")[1]
    other = run("review", str(folder), "--override", "blue", "lab1.memory", "3.5", "by Ben", "--as", "Ben")[1]
    assert ["this replaces" in said for said in (first, again)] == [False, False]
    assert other.count("this replaces 2 points for lab1.memory of blue (Ben: by Ana)") == 1
