"""A class on a cluster whose scheduler is a table: every way in which an array task can end, and being stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import grader
from gradebook.grading import class_summary
from gradebook.grading.cluster import array_task
from gradebook.grading.cluster import engine as engines
from gradebook.grading.cluster.code_digest import code_digest
from gradebook.grading.cluster.engine import ClusterEngine, Full, State, TaskStatus, Unreachable
from gradebook.grading.cluster.shared_folder import GRADING, Batch, SharedFolder
from gradebook.grading.engine import EngineError
from gradebook.results import ClassResult, Grading, Task
from grader.cli import app
from tests.gradebook.conftest import SmallClass

JUDGE = "tests.gradebook.cluster_judge:open_judge"
DIGEST = code_digest(grader.course())
Fate = Callable[["Table", Batch, int], TaskStatus]


class Table:
    """A scheduler. What becomes of an array task, `fates` says by name of student; else it grades at once."""

    most = 1000

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = SharedFolder(folder)
        self.submitted: list[Batch] = []
        self.at_once: list[int] = []
        self.cancelled: list[tuple[str, int]] = []
        self.fates: dict[str, list[TaskStatus | Fate]] = {}
        self.tasks: dict[tuple[str, int], TaskStatus] = {}
        self.full_from = 10**6
        self.silent = 0
        self.looks = 0

    def submit(self, batch: Batch, at_once: int, seconds: float) -> str:
        if len(self.submitted) >= self.full_from:
            raise Full("QOSMaxSubmitJobPerUserLimit")
        self.submitted.append(batch)
        self.at_once.append(at_once)
        for index in range(len(batch.keys)):
            self.tasks[batch.name, index] = TaskStatus(State.WAITS)
        return f"job-{batch.name}"

    def find(self, batch: Batch) -> str:
        return next((f"job-{earlier.name}" for earlier in self.submitted if earlier.name == batch.name), "")

    def states(self, batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        self.looks += 1
        if self.silent:
            self.silent -= 1
            raise Unreachable("Unable to contact slurm controller (connect failure)")
        for batch in batches:
            for index in range(len(batch.keys)):
                if self.tasks[batch.name, index].state in (State.WAITS, State.RUNS):
                    self.tasks[batch.name, index] = self.next(batch, index)
        return dict(self.tasks)

    def next(self, batch: Batch, index: int) -> TaskStatus:
        student = self.shared.errand(batch.keys[index]).task.students[0]
        fates = self.fates.get(student, [])
        fate = fates.pop(0) if fates else grades
        return fate(self, batch, index) if callable(fate) else fate

    def cancel(self, batch: Batch, indices: Sequence[int]) -> None:
        self.cancelled += [(batch.name, index) for index in indices]

    def how_to_stop(self, batches: Sequence[Batch]) -> str:
        return f"scancel {' '.join(batch.job for batch in batches)}"


def grades(table: Table, batch: Batch, index: int) -> TaskStatus:
    """The array task runs, here and now."""
    assert array_task.main([str(table.folder), batch.name, str(index)]) == 0
    return TaskStatus(State.ENDED, "COMPLETED")


def slowly(table: Table, batch: Batch, index: int) -> TaskStatus:
    """It has graded, and its result is not to be seen yet: it lies on the node's side of the shared folder."""
    grades(table, batch, index)
    result = table.folder / "results" / f"{batch.keys[index]}.json"
    hidden = result.with_suffix(".later")
    result.rename(hidden)
    look = table.states

    def states(batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        if table.looks == 6:
            hidden.rename(result)
        return look(batches)

    table.states = states  # type: ignore[method-assign]
    return TaskStatus(State.ENDED, "COMPLETED")


class OnCluster:
    """A small class and its cluster."""

    def __init__(self, small: SmallClass) -> None:
        self.small = small
        self.table = Table(small.out / "cluster")
        self.said: list[str] = []
        self.engine: dict[str, Any] = {}

    def grade(self, **options: Any) -> ClassResult:
        def open_engine(jobs: int, room: Path, device: str) -> ClusterEngine:
            settings = {"judge": JUDGE, "look_seconds": 0.0, "shown_seconds": 20.0} | self.engine
            folder = self.small.out / "cluster"
            return ClusterEngine(self.table, folder, jobs, ("grader", DIGEST), self.said.append, **settings)

        return self.small.grade(open_engine, jobs=100, **options)

    def statuses(self, result: ClassResult) -> dict[str, str]:
        return {student.student: student.status for student in result.students}


@pytest.fixture
def on_cluster(small_class: SmallClass, monkeypatch: pytest.MonkeyPatch) -> OnCluster:
    monkeypatch.setattr(array_task, "_LOOK_SECONDS", 0.01)
    for name in ("ada", "bob", "eve"):
        small_class.hands_in(name)
    return OnCluster(small_class)


def test_a_cluster_gives_the_grades_that_this_machine_gives(on_cluster: OnCluster, tmp_path: Path) -> None:
    on_cluster.grade()
    on_cluster.small.grade(out=tmp_path / "here")
    assert class_summary.dump(on_cluster.small.out) == class_summary.dump(tmp_path / "here")
    assert len(on_cluster.table.submitted) == 1
    assert on_cluster.table.at_once == [3]


def test_nothing_is_left_in_the_shared_folder_and_a_second_run_hands_in_nothing(on_cluster: OnCluster) -> None:
    on_cluster.grade()
    assert list((on_cluster.small.out / "cluster").rglob("*.json")) == []
    on_cluster.grade()
    assert len(on_cluster.table.submitted) == 1
    on_cluster.small.hands_in("mia")
    on_cluster.grade()
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [3, 1]


def test_regrading_does_not_take_an_old_result(on_cluster: OnCluster) -> None:
    on_cluster.grade()
    on_cluster.grade(regrade=("ada",))
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [3, 1]
    assert len([line for line in on_cluster.small.graded if line.startswith("ada")]) == 2


def test_more_submissions_than_an_array_may_have(on_cluster: OnCluster) -> None:
    on_cluster.table.most = 2
    on_cluster.grade()
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [2, 1]


@pytest.mark.long
def test_a_thousand_submissions_are_a_few_arrays_and_few_questions(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.most = 1001  # what Slurm's own default allows
    moment = datetime(2026, 3, 1, tzinfo=UTC)

    def answers(table: Table, batch: Batch, index: int) -> TaskStatus:
        table.shared.answer(batch.keys[index], GRADING, Grading(grade=None, problem="-", started=moment, ended=moment))
        return TaskStatus(State.ENDED)

    table.next = lambda batch, index: answers(table, batch, index)  # type: ignore[method-assign]
    tasks = [
        Task(
            content=f"{number:064}", students=(f"student {number}",), folder=tmp_path, labs=(1,),
            criteria=("lab1.memory",), whole=False, seed=7, course=grader.FOLDER, device="vgpu:T4", seconds=60.0,
        )
        for number in range(1100)
    ]  # fmt: skip
    engine = ClusterEngine(table, tmp_path, 10_000, ("grader", DIGEST), print, JUDGE, look_seconds=0.0)
    done = [task.content for task, _ in engine.run(tasks, lambda task: None)]
    assert sorted(done) == [task.content for task in tasks]
    assert [len(batch.keys) for batch in table.submitted] == [1001, 99]
    assert table.looks < 5


def test_a_result_that_shows_late_counts(on_cluster: OnCluster) -> None:
    on_cluster.table.fates["bob"] = [slowly]
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert len(on_cluster.table.submitted) == 1


def test_an_array_task_that_ends_without_a_result_is_handed_in_once_more(on_cluster: OnCluster) -> None:
    on_cluster.engine = {"shown_seconds": 0.0}
    on_cluster.table.fates["bob"] = [TaskStatus(State.BROKE, "FAILED, NonZeroExitCode")]
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [3, 1]
    assert any("bob: its job ended without a result (FAILED, NonZeroExitCode)" in line for line in on_cluster.said)


def test_one_that_always_dies_is_marked_with_its_last_words_and_the_class_goes_on(on_cluster: OnCluster) -> None:
    def dies(table: Table, batch: Batch, index: int) -> TaskStatus:
        table.shared.log(batch.name, str(index)).write_text("...\nCUDA error: an illegal memory access\n")
        return TaskStatus(State.BROKE, "OUT_OF_MEMORY")

    on_cluster.table.fates["bob"] = [dies] * 2
    result = on_cluster.grade()
    assert on_cluster.statuses(result) == {"ada": "graded", "bob": "could_not_grade", "eve": "graded"}
    (bob,) = [student for student in result.students if student.student == "bob"]
    assert "OUT_OF_MEMORY: CUDA error: an illegal memory access" in bob.reason
    assert "grade it alone to see more" in bob.reason


def test_too_long_is_told_as_on_this_machine(on_cluster: OnCluster) -> None:
    on_cluster.table.fates["bob"] = [TaskStatus(State.TOO_LONG, "TIMEOUT")] * 2
    (bob,) = [student for student in on_cluster.grade().students if student.student == "bob"]
    assert bob.reason == "it took longer than 20 minutes, and so it did the time before; grade it alone to see more"


def test_a_lost_node_is_no_fault_of_the_submission_unless_it_happens_again_and_again(on_cluster: OnCluster) -> None:
    on_cluster.table.fates["ada"] = [TaskStatus(State.LOST, "NODE_FAIL")] * 3
    on_cluster.table.fates["bob"] = [TaskStatus(State.LOST, "NODE_FAIL")] * 30
    result = on_cluster.grade()
    assert on_cluster.statuses(result) == {"ada": "graded", "bob": "could_not_grade", "eve": "graded"}
    (bob,) = [student for student in result.students if student.student == "bob"]
    assert "it lost its node 5 times (NODE_FAIL)" in bob.reason


def test_what_the_scheduler_queues_again_by_itself_is_not_handed_in_twice(on_cluster: OnCluster) -> None:
    on_cluster.engine = {"look_seconds": 0.01}
    preempted = [TaskStatus(State.RUNS), TaskStatus(State.WAITS, "PENDING, BeginTime"), TaskStatus(State.RUNS)]
    on_cluster.table.fates["ada"] = list(preempted)
    shown = iter([TaskStatus(State.LOST, "PREEMPTED"), TaskStatus(State.WAITS)])
    original = on_cluster.table.states

    def states(batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        statuses = dict(original(batches))
        for place, status in statuses.items():
            if status.state is State.WAITS and (flicker := next(shown, None)) is not None:
                statuses[place] = flicker
        return statuses

    on_cluster.table.states = states  # type: ignore[method-assign]
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert len(on_cluster.table.submitted) == 1


def test_whoever_cancels_an_array_task_has_it_open_and_not_failed(on_cluster: OnCluster) -> None:
    on_cluster.table.fates["bob"] = [TaskStatus(State.CANCELLED, "CANCELLED")]
    with pytest.raises(EngineError, match=r"1 were cancelled on the cluster and are still open \(bob\)"):
        on_cluster.grade()
    assert on_cluster.statuses(class_summary.read(on_cluster.small.out))["bob"] == "waiting"
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [3, 1]


def test_a_scheduler_that_is_away_for_a_while_is_waited_for(on_cluster: OnCluster) -> None:
    on_cluster.table.silent = 3
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert sum("the cluster does not answer" in line for line in on_cluster.said) == 1


def test_a_scheduler_that_stays_away_is_told(on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_SILENCE_SECONDS", 0.0)
    on_cluster.table.silent = 10**6
    with pytest.raises(EngineError, match="what it grades is not lost: give the same command later"):
        on_cluster.grade()


def test_what_the_cluster_does_not_take_yet_is_handed_in_as_others_end(on_cluster: OnCluster) -> None:
    on_cluster.table.most, on_cluster.table.full_from = 1, 2
    original = on_cluster.table.states

    def states(batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        on_cluster.table.full_from = 3
        return original(batches)

    on_cluster.table.states = states  # type: ignore[method-assign]
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert any("takes no more for now (QOSMaxSubmitJobPerUserLimit)" in line for line in on_cluster.said)


def test_a_cluster_that_takes_nothing_is_told(on_cluster: OnCluster) -> None:
    on_cluster.table.full_from = 0
    with pytest.raises(EngineError, match="the cluster takes no submission: QOSMaxSubmitJobPerUserLimit"):
        on_cluster.grade()


class Stopped(BaseException):
    """Stands for whatever ends our process."""


@pytest.mark.parametrize("heard", [True, False])
def test_stopped_while_arrays_run_the_next_run_takes_them_up(on_cluster: OnCluster, heard: bool) -> None:
    def stops(table: Table, batch: Batch, index: int) -> TaskStatus:
        raise Stopped

    on_cluster.table.fates = {"ada": [grades], "bob": [stops]}
    with pytest.raises(Stopped):
        on_cluster.grade()
    assert any("goes on; the same command takes it up. To end it: scancel job-" in line for line in on_cluster.said)
    if not heard:  # stopped before sbatch had said the job's name
        (file,) = (on_cluster.small.out / "cluster" / "batches").iterdir()
        file.write_text(json.dumps({**json.loads(file.read_text()), "job": ""}))
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert len(on_cluster.table.submitted) == 1
    assert sorted(line.split(":")[0] for line in on_cluster.small.graded) == ["ada", "bob", "eve"]


def test_what_is_handed_in_for_an_older_version_of_a_submission_is_ended(on_cluster: OnCluster) -> None:
    def stops(table: Table, batch: Batch, index: int) -> TaskStatus:
        raise Stopped

    on_cluster.table.fates = {"ada": [stops]}
    with pytest.raises(Stopped):
        on_cluster.grade()
    on_cluster.small.hands_in("ada", "better")
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert len(on_cluster.table.cancelled) == 1
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [3, 1]


def test_a_node_with_another_version_grades_nothing(on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_task, "code_digest", lambda course: "another")
    with pytest.raises(EngineError, match="another version of this project; install the same everywhere"):
        on_cluster.grade()
    assert on_cluster.small.graded == []


def test_a_judge_that_breaks_is_tried_once_more(on_cluster: OnCluster) -> None:
    on_cluster.small.hands_in("zoe", behaviour="breaks")
    (zoe,) = [student for student in on_cluster.grade().students if student.student == "zoe"]
    assert zoe.status == "could_not_grade"
    assert "its grading broke: RuntimeError: the disk is full" in zoe.reason


def test_a_damaged_result_is_no_grade(on_cluster: OnCluster) -> None:
    def damages(table: Table, batch: Batch, index: int) -> TaskStatus:
        (table.folder / "results" / f"{batch.keys[index]}.json").write_text('{"kind": "grading", "what": {')
        return TaskStatus(State.ENDED)

    on_cluster.table.fates["bob"] = [damages]
    assert set(on_cluster.statuses(on_cluster.grade()).values()) == {"graded"}
    assert any("bob: what its node wrote cannot be read" in line for line in on_cluster.said)


def test_an_array_task_that_sees_nothing_says_so(
    on_cluster: OnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_task, "_PATIENCE_SECONDS", 0.05)
    with pytest.raises(SystemExit, match="cannot be seen on this node: --out has to lie where every node sees it"):
        array_task.main([str(tmp_path / "nowhere"), "batch", "0"])


def test_an_array_task_that_is_queued_again_after_it_has_answered_grades_nothing(on_cluster: OnCluster) -> None:
    def twice(table: Table, batch: Batch, index: int) -> TaskStatus:
        grades(table, batch, index)
        return grades(table, batch, index)

    on_cluster.table.fates["ada"] = [twice]
    on_cluster.grade()
    assert sorted(line.split(":")[0] for line in on_cluster.small.graded) == ["ada", "bob", "eve"]


def test_a_second_look_at_what_a_busy_machine_left_open_is_an_array_one_at_a_time(on_cluster: OnCluster) -> None:
    on_cluster.small.hands_in("zoe", behaviour="busy")
    on_cluster.grade()
    assert [len(batch.keys) for batch in on_cluster.table.submitted] == [4, 1]
    assert on_cluster.table.at_once == [4, 1]


def test_the_folder_is_for_its_owner_only(on_cluster: OnCluster) -> None:
    on_cluster.grade()
    for name in ("tasks", "results", "batches"):
        assert (on_cluster.small.out / "cluster" / name).stat().st_mode & 0o077 == 0


def test_a_real_gpu_is_asked_for_where_this_machine_has_none_and_auto_is_refused(on_cluster: OnCluster) -> None:
    result = on_cluster.grade(device="cuda", elsewhere=True)
    assert result.device == "cuda"
    with pytest.raises(ValueError, match="say --device cuda, or a virtual GPU"):
        on_cluster.grade(device="auto", elsewhere=True)


def test_lines_about_arrays_and_gradings_on_a_plain_console(
    on_cluster: OnCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cluster.grade(console=Console(width=200))
    out = capsys.readouterr().out
    assert "3 submissions to grade" in out
    assert {line.split()[1] for line in out.splitlines() if line.startswith(("1/3", "2/3", "3/3"))} == {
        *("ada:", "bob:", "eve:")
    }
    assert any(line.endswith("3 submissions handed in to the cluster") for line in on_cluster.said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "slurm", "--image", "x"), "--image is for --on kubernetes"),
        (("--on", "kubernetes", "--image", "x"), "--on kubernetes needs --image, and --claim NAME=FOLDER"),
        (("--sbatch=--partition=gpu",), "--sbatch is for --on slurm"),
        (("--on", "elsewhere"), "expected local or kubernetes or ray or slurm"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    small_class: SmallClass, arguments: tuple[str, ...], message: str
) -> None:
    small_class.hands_in("ada")
    command = ["class", str(small_class.submissions), "--out", str(small_class.out), *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert message in done.output
    assert not small_class.out.exists()
