"""The same class on a Ray cluster of three nodes, simulated on this machine."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason='needs Ray: pip install "gpu-computing-labs[ray]"')

from ray.cluster_utils import Cluster  # noqa: E402

import grader  # noqa: E402
from gradebook.grading import class_summary  # noqa: E402
from gradebook.grading.pool import Pool, Worker  # noqa: E402
from gradebook.plugins.ray.actors import RayCrew  # noqa: E402
from gradebook.results import Grading, Task  # noqa: E402
from tests.gradebook.conftest import SmallClass  # noqa: E402
from tests.gradebook.fakes import FakeJudge  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU; a test may add a third and lose it."""
    soon = {"health_check_initial_delay_ms": 100, "health_check_period_ms": 300, "health_check_timeout_ms": 1000}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class NodeJudge(FakeJudge):
    """On one node it begins its first grading and never ends it; on the others it waits until that has happened."""

    def __init__(self, room: Path, doomed: str, sign: Path) -> None:
        super().__init__(room)
        self._is_doomed = ray.get_runtime_context().get_node_id() == doomed
        self._sign = sign

    def grade(self, task: Task) -> Grading:
        if self._is_doomed:
            self._sign.touch()
            signal.pause()
        while not self._sign.exists():
            time.sleep(0.01)
        return super().grade(task)


@pytest.mark.night
def test_a_node_that_is_lost_in_the_middle_changes_nothing(
    cluster: Cluster, small_class: SmallClass, tmp_path: Path
) -> None:
    for number in range(8):
        small_class.hands_in(f"student {number}")
    small_class.grade()
    on_one_machine = class_summary.dump(small_class.out)
    doomed, sign, lost = cluster.add_node(num_cpus=1), tmp_path / "sign", []
    cluster.wait_for_nodes()

    class Watched(RayCrew):
        def events(self, workers: Sequence[Worker]) -> Sequence[Worker]:
            if sign.exists() and not lost:
                cluster.remove_node(doomed)
                lost.append(doomed)
            return super().events(workers)

    def engine(jobs: int, room: Path, device: str) -> Pool:
        judge = functools.partial(NodeJudge, doomed=doomed.node_id, sign=sign)
        return Pool(jobs, Watched(device, grader.FOLDER, judge))

    small_class.grade(engine, out=tmp_path / "ray", jobs=3)
    assert lost
    assert class_summary.dump(tmp_path / "ray") == on_one_machine
