"""Going on from a gradebook, without the submissions: every option is honoured or refused, and none is ignored."""

from __future__ import annotations

import inspect
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradebook import plugins
from gradebook.cli.classroom import grade_submissions
from gradebook.grading import class_summary
from gradebook.results import ClassResult
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.fakes import InThisProcess
from tests.gradebook.intake.test_repositories import Repository

ROSTER = "student,submitted_at\nada,2026-03-03T00:00+00:00\nbob,\n"
OVERRIDE = '[[override]]\nstudent = "ada"\ncriterion = "lab1.analysis"\npoints = 4.5\nreason = "seen by hand"\n'


@dataclass
class Going:
    """A class of ada and bob that was graded once."""

    small: SmallClass
    folder: Path
    jobs: list[int] = field(default_factory=list)

    def on(self, *arguments: object, out: Path | None = None) -> Result:
        command = ["class", *map(str, arguments), "--out", str(out or self.small.out)]
        return CliRunner().invoke(app, command)

    def refused(self, *arguments: object) -> str:
        """What is said, when nothing was done."""
        before = class_summary.dump(self.small.out)
        done = self.on(*arguments)
        assert done.exit_code == 2, done.output
        assert class_summary.dump(self.small.out) == before
        return done.stderr

    def file(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    @property
    def stands(self) -> ClassResult:
        return class_summary.read(self.small.out)


@pytest.fixture
def going(small_class: SmallClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Going]:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    going = Going(small_class, tmp_path)

    def engine(jobs: int, room: Path, device: str) -> InThisProcess:
        going.jobs.append(jobs)
        return InThisProcess(room)

    monkeypatch.setattr("gradebook.cli.classroom.local_pool", lambda jobs, room, judge: engine(jobs, room, ""))
    small_class.grade(roster=going.file("roster.csv", ROSTER))
    before = signal.getsignal(signal.SIGTERM)
    yield going
    signal.signal(signal.SIGTERM, before)


def done(result: Result) -> None:
    assert result.exit_code in (0, 3), result.output


def submissions(going: Going) -> None:
    assert "there are no submissions at" in going.refused(going.folder / "nothing")


def out(going: Going) -> None:
    assert "there is no gradebook in" in going.on(out=going.folder / "elsewhere").stderr


def roster(going: Going) -> None:
    said = going.refused("--roster", going.folder / "roster.csv")
    assert "--roster decides how submissions are taken in, and none are: name the submissions too" in said
    place = Path(shlex.split(said.partition("class ")[2])[0])
    place.rename(place.with_name("moved"))
    said = going.refused("--roster", going.folder / "roster.csv")
    assert f"class SUBMISSIONS --out ... ({place} is no longer there)" in said


def commit(going: Going) -> None:
    assert "--commit decides how submissions are taken in" in going.refused("--commit", "v1")


def config(going: Going) -> None:
    text = 'title = "Autumn"\ndevice = "vgpu:H100"\nlabs = [1, 2]\ndeadline = 2026-03-01T12:00:00+00:00\n'
    done(going.on("--config", going.file("class.toml", f"{text}[late]\npoints_per_day = 1\n")))
    assert (going.stands.title, going.stands.labs, going.stands.device) == ("Autumn", (1, 2), "vgpu:H100")
    late = going.stands.students[0].late
    assert late is not None
    assert late.rule == "1 points per day, 2 days"


def jobs(going: Going) -> None:
    done(going.on("--jobs", 1, "--regrade", "ada,bob"))
    done(going.on("--jobs", 2, "--regrade", "ada,bob"))
    assert going.jobs == [1, 2]


def lab(going: Going) -> None:
    done(going.on("--lab", "2"))
    assert going.stands.labs == (2,)


def device(going: Going) -> None:
    done(going.on("--device", "vgpu:H100"))
    assert going.stands.device == "vgpu:H100"


def seed(going: Going) -> None:
    assert "this class is graded with seed 7" in going.refused("--seed", "8")
    done(going.on("--seed", "7"))


def overrides(going: Going) -> None:
    done(going.on("--overrides", going.file("by_hand.toml", OVERRIDE)))
    grade = going.stands.students[0].grade
    assert grade is not None
    assert grade.labs[0].criteria[3].points == 4.5


def deadline(going: Going) -> None:
    assert going.stands.students[0].late is None
    done(going.on("--deadline", "2026-03-01T12:00+00:00"))
    late = going.stands.students[0].late
    assert late is not None
    assert late.seconds_late == 36 * 3600


def engine(going: Going) -> None:
    assert "expected local or kubernetes or ray or slurm" in going.refused("--engine", "cloud")


def sbatch(going: Going) -> None:
    assert "--sbatch is for --on slurm" in going.refused("--sbatch=--partition=gpu")


def _of_kubernetes(option: str) -> Callable[[Going], None]:
    def refused(going: Going) -> None:
        assert f"--{option} is for --on kubernetes" in going.refused(f"--{option}", "some")

    refused.__name__ = option
    return refused


def regrade(going: Going) -> None:
    before = len(going.small.graded)
    done(going.on("--regrade", "ada"))
    assert len(going.small.graded) == before + 1


EFFECTS = {
    effect.__name__: effect
    for effect in (
        submissions, out, roster, config, jobs, lab, device, seed, overrides, deadline, commit, engine, regrade, sbatch,
        *map(_of_kubernetes, ("image", "claim", "namespace")),
    )
}  # fmt: skip


def test_every_option_is_in_the_table() -> None:
    functions = [grade_submissions, *map(plugins.engine, plugins.names("engine"))]
    assert set(EFFECTS) == {name for function in functions for name in inspect.signature(function).parameters} - {"ctx"}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_an_option_is_honoured_or_refused(going: Going, effect: Callable[[Going], None]) -> None:
    effect(going)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('roster = "another.csv"\n', "roster = "),
        ('submitted = "files"\n', "submitted decides"),
        ('[git]\nbranch = "work"\n', "[git] decides"),
        ("[limits]\nfiles = 3\n", "files or mebibytes of [limits] decides"),
    ],
)
def test_a_key_of_the_file_that_decides_how_work_is_taken_in_is_refused(going: Going, text: str, what: str) -> None:
    assert what in going.refused("--config", going.file("class.toml", text))


def test_the_same_file_once_more_is_no_change(going: Going) -> None:
    file = going.file("class.toml", 'title = "Autumn"\nroster = "roster.csv"\n[git]\nbranch = "work"\n')
    going.small.grade(configuration=file)
    done(going.on("--config", file))
    assert going.stands.title == "Autumn"


def test_what_was_said_before_goes_on_where_the_new_file_says_nothing(going: Going) -> None:
    done(going.on("--overrides", going.file("by_hand.toml", OVERRIDE), "--deadline", "2026-03-01T12:00+00:00"))
    done(going.on("--config", going.file("class.toml", 'title = "Autumn"\n')))
    ada = going.stands.students[0]
    assert ada.late is not None
    assert ada.grade is not None
    assert ada.grade.labs[0].criteria[3].points == 4.5
    done(going.on("--config", going.file("class.toml", "deadline = 2026-03-02T12:00:00+00:00\n")))
    late = going.stands.students[0].late
    assert late is not None
    assert late.seconds_late == 12 * 3600


@pytest.mark.night
def test_another_deadline_does_not_leave_the_wrong_commit_graded(going: Going) -> None:
    Repository(going.small.submissions / "eve").commit("first", 1)
    done(going.on(going.small.submissions, "--lab=1", "--device=vgpu"))
    said = going.refused("--deadline", "2026-03-01T12:00+00:00")
    assert "another deadline for the repository of eve decides how submissions are taken in" in said
    done(going.on(going.small.submissions, "--lab=1", "--device=vgpu", "--deadline", "2026-03-01T12:00+00:00"))
    assert going.stands.students[-1].commit is not None


def test_a_file_that_is_left_out_of_a_later_run_is_named(going: Going) -> None:
    file = going.file("class.toml", "[late]\npercent_per_day = 10\n")
    done(going.on(going.small.submissions, "--lab=1", "--device=vgpu", "--config", file))
    said = going.on(going.small.submissions, "--lab=1", "--device=vgpu").stderr
    assert f"the last run was described by {file}, this one by no file" in " ".join(said.split())
    assert "described by" not in going.on().stderr


def test_a_commit_that_nobody_has_is_said_to_have_no_effect(going: Going) -> None:
    said = going.on(going.small.submissions, "--lab=1", "--device=vgpu", "--commit", "v1").stderr
    assert "--commit v1 has no effect: none of these is a repository" in said


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("git.toml", '[git]\nbranch = "main"\n', "[git] has no effect: none of these is a repository"),
        ("overrides.toml", OVERRIDE, "overrides.toml is not read, but"),
        ("out/overrides.toml", OVERRIDE, "out/overrides.toml is not read, but"),
        ("excused.toml", "", "excused.toml is not read: its place is"),
        ("held_back.toml", "", "held_back.toml is not read: its place is"),
        ("out/manual_grading/reports.toml", "", "reports.toml does not count, because class.toml does not say reports"),
        ("other.toml", "", ""),
    ],
)
def test_what_nothing_reads_is_named(going: Going, file: str, text: str, said: str) -> None:
    (going.folder / file).parent.mkdir(exist_ok=True)
    going.file(file, text)
    named = file == "out/overrides.toml" and 'overrides = "mine.toml"\n'
    going.file("mine.toml", OVERRIDE)
    config = going.file("class.toml", named or (text if file == "git.toml" else ""))
    output = " ".join(going.on(going.small.submissions, "--config", config).output.split())
    assert any(words in output for words in ("is not read", "[git] has no effect", "does not count")) == bool(said)
    assert said in output


def test_a_regrade_of_nothing_is_said_to_have_no_effect(going: Going) -> None:
    roster = going.file("roster.csv", "student,name\nada,Ada\nbob,Bob\neve,Eve\n")
    done = going.on(going.small.submissions, "--roster", roster, "--regrade", "eve")
    assert "--regrade has no effect for eve: there is no submission" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("labs = [9]\n", "there is no lab 9"),
        ('labs = [1]\ndevice = "vgpu:T5"\n', "device vgpu:T5"),
        ("labs = [1]\n[exports]\ncanvas = 1\n", "[exports] does not know 'canvas'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_file(going: Going, text: str, said: str) -> None:
    file = going.file("new.toml", text)
    assert f"{file}: {said}" in going.refused(going.small.submissions, "--config", file)
    assert "new.toml" not in going.refused(
        going.small.submissions, "--lab", "9", "--config", going.file("new.toml", "")
    )


@pytest.mark.parametrize("name", ["lab2", "lab2.amp"])
def test_what_this_class_does_not_grade_is_not_graded_again(going: Going, name: str) -> None:
    said = going.refused("--regrade", name)
    assert f"--regrade {name}: this class is for lab 1, and does not grade that: use --lab" in said
