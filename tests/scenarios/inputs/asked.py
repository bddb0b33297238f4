"""What gradings of the reference ask: the requests about the submission, in order."""

from __future__ import annotations

from collections.abc import Iterable

from gradebox.sandbox import Reply, Request
from tests.scenarios.asking import Asking, Turn
from tests.scenarios.build import SCENARIOS, load
from tests.scenarios.grading import Bench, rebuild
from tests.scenarios.reuse import code_of


class Listening(Asking):
    """Keeps the questions."""

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking.sandbox, asking.store)
        self.requests: list[Request] = []

    def run(self, request: Request) -> Reply:
        self.requests.append(request)
        return super().run(request)


def requests_of(bench: Bench, lab: int, seeds: Iterable[int]) -> list[Request]:
    """The questions of one lab to the reference, graded with each of these seeds.

    Raises:
        AssertionError: it lost a point.
    """
    rebuild(load(SCENARIOS / "exploits" / "honest_right"), bench.folder)
    listening = Listening(bench.asking)
    for seed in seeds:
        listening.begin(Turn(code_of(bench.folder)))
        graded = bench.carry_out(bench.order(str(lab), seed=seed), listening)
        assert graded.problems == "", f"the reference of Lab {lab} lost points: {graded.problems}"
    return [request for request in listening.requests if request.student]
