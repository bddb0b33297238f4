"""Answers of somebody who never looks at the question: what probes saw with one seed, told again with another.

The reference is graded once and every reply of its probes is kept, by check and in the order of the requests. Then
checks drawn from other seeds are given those replies: what still passes does not depend on what was drawn, so a stub
that counts its calls could pass it as well. Runs of our own code (`student=False`), which yield truths, are made anew.
Not for grading: a reply also tells what no stub can fake (bytes held, products that ran), so a check that passes is one
to look at, and to mend or to excuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gradebox.session import GradingSession, check_id_of

from gradebox.configuration import own_configuration
from gradebox.sandbox import RankReply, Reply, Request
from tests.scenarios.grading import Bench, Graded, Keeper

Asked = tuple[str, int, str, bool]
"""What a request asks for, without its inputs."""
NOTHING = Reply("error", (RankReply("error", message="nothing was recorded"),), 0.0)


def asked(request: Request) -> Asked:
    return request.probe, request.ranks, request.device, request.values


class Checks:
    """Knows which check runs now, and lets none be blocked by another: each is looked at for itself."""

    def __init__(self) -> None:
        self.name = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.name = check_id_of(item)


@dataclass
class Recording:
    """The sandbox, which keeps every reply about the submission."""

    sandbox: Any
    checks: Checks = field(default_factory=Checks)
    replies: dict[tuple[str, Asked], list[Reply]] = field(default_factory=dict)
    anywhere: dict[Asked, Reply] = field(default_factory=dict)

    def run(self, request: Request) -> Reply:
        reply: Reply = self.sandbox.run(request)
        if request.student:
            self.replies.setdefault((self.checks.name, asked(request)), []).append(reply)
            self.anywhere[asked(request)] = reply
        return reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)


@dataclass
class Replaying:
    """The sandbox, with the answers of a recording in their order, whatever is asked."""

    recording: Recording
    checks: Checks = field(default_factory=Checks)
    told: dict[tuple[str, Asked], int] = field(default_factory=dict)

    def run(self, request: Request) -> Reply:
        if not request.student:
            reply: Reply = self.recording.sandbox.run(request)
            return reply
        key = self.checks.name, asked(request)
        # A check that shares a case may have been answered from memory while it was recorded.
        kept = self.recording.replies.get(key) or [self.recording.anywhere.get(key[1], NOTHING)]
        number = self.told[key] = self.told.get(key, -1) + 1
        return kept[number % len(kept)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recording.sandbox, name)


def grade(
    bench: Bench,
    used: Recording | Replaying,
    lab: int,
    seed: int,
    report: Path,
    run_pytest: Callable[[list[str], list[object]], object],
) -> Graded:
    """Grade the bench's folder through `used`, no check being blocked by another."""
    arguments = [*own_configuration(), "--grade", f"--submission={bench.folder}", "--device=vgpu"]
    arguments += [f"--grade-report={report}", f"--grade-seed={seed}", f"--lab={lab}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradingSession, "stop_if_blocked", lambda session, item: None)
        code = run_pytest(arguments, [Keeper(used), used.checks])
    return Graded(int(code), json.loads((report / "grade.json").read_text()))  # type: ignore[call-overload]
