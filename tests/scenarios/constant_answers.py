"""Answers of somebody who never looks at the question: what probes saw with one seed, told again with another.

The reference is graded once and every reply of its probes is kept, by check and in the order of the requests. Then
checks drawn from other seeds are given those replies: what still passes does not depend on what was drawn, so a stub
that counts its calls could pass it as well. Runs of our own code (`student=False`), for reference values, are
made again.
Not for grading: a reply also tells what no stub can fake (bytes held, products that ran), so a check that passes is one
to look at, and to fix or to excuse.
"""

from __future__ import annotations

from gradebox.course.criterion import CheckFunction
from gradebox.run.grading import Grading
from gradebox.sandbox import RankReply, Reply, Request
from tests.scenarios.asking import Asking, Turn
from tests.scenarios.grading import Bench, Graded
from tests.scenarios.reuse import code_of

Asked = tuple[str, int, str, bool]
"""What a request asks for, without its inputs."""
NOTHING = Reply("error", (RankReply("error", message="nothing was recorded"),), 0.0)


def kind_of(request: Request) -> Asked:
    return request.probe, request.ranks, request.device, request.values


class Unblocked(Grading):
    """A grading in which no check is blocked by another: each is looked at for itself."""

    def _stop_if_blocked(self, check: CheckFunction) -> None:
        pass


class Recording(Asking):
    """Keeps every reply about the submission."""

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking.sandbox, asking.store)
        self.replies: dict[tuple[str, Asked], list[Reply]] = {}
        self.anywhere: dict[Asked, Reply] = {}

    def run(self, request: Request) -> Reply:
        reply = super().run(request)
        if request.student:
            self.replies.setdefault((self.check, kind_of(request)), []).append(reply)
            self.anywhere[kind_of(request)] = reply
        return reply


class Replaying(Asking):
    """Gives the answers of a recording in their order, whatever is asked."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.sandbox, recording.store)
        self._recording = recording
        self._told: dict[tuple[str, Asked], int] = {}

    def run(self, request: Request) -> Reply:
        if not request.student:
            return super().run(request)
        key = self.check, kind_of(request)
        # A check that shares a case may have been answered from memory while it was recorded.
        kept = self._recording.replies.get(key) or [self._recording.anywhere.get(key[1], NOTHING)]
        number = self._told[key] = self._told.get(key, -1) + 1
        return kept[number % len(kept)]


def grade(bench: Bench, used: Recording | Replaying, lab: int, seed: int) -> Graded:
    """Grade the bench's folder through `used`, no check being blocked by another."""
    used.begin(Turn(code_of(bench.folder)))
    return bench.carry_out(bench.order(str(lab), seed=seed), used, Unblocked)
