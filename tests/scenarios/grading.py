"""Grades many scenarios with one preloaded sandbox; the submission is rebuilt in its folder for each.

What a planted bug cannot have changed is answered from an earlier scenario (`reuse.py`): then a bug costs seconds.
"""

from __future__ import annotations

import json
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gradebox.session import Blocked, check_id_of, requirements_of

from gradebox.configuration import own_configuration
from gradebox.sandbox import Limits, Reply, Request, Sandbox
from gradebox.submission import key_of
from tests.scenarios import reuse
from tests.scenarios.build import SCENARIOS, Scenario, load

BUG_LIMITS = Limits(wall_seconds=25, cpu_seconds=20)
"""Some bugs hang: then it is a matter of time."""
EXPLOIT_LIMITS = Limits(wall_seconds=15, cpu_seconds=15)
"""Some exploits hang on purpose, and none has a point to lose."""
SEED = secrets.randbelow(2**31)
"""Of every scenario in this run: all are asked the same questions; another one in each run."""


class Keeper:
    """Hands every grading of this run the same sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def pytest_grade_sandbox(self, folder: Path) -> Sandbox:
        return self._sandbox


LEFT_OUT = "left out: nobody asks for it here"
SHARES = 5


class OnlyWhatMatters:
    """Asks a planted bug the checks that it must fail, and a fifth of the bugs where no point may be lost, too.

    Each run takes another fifth, by its seed; `make matrix` asks every bug everything. Whether the mistake shows in
    others of its criterion as well changes nothing.
    """

    def __init__(self, bug: Scenario) -> None:
        self._named, self._loses, self._own = set(bug.fails), bug.loses, bug.loses | bug.may_lose
        self._asks_others = (zlib.crc32(bug.name.encode()) + SEED) % SHARES == 0
        self._run: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {check_id_of(item): item for item in items}
        # Of a criterion that must lose points, but whose failing check is not named, each is asked.
        asked = self._loses - {check.rpartition(".")[0] for check in self._named}
        if self._asks_others:
            asked |= {check.rpartition(".")[0] for check in found} - self._own
        self._run = {check for check in found if check in self._named or check.rpartition(".")[0] in asked}
        open_: Iterable[str] = tuple(self._run)
        while open_ := [needed for check in open_ for needed in requirements_of(found[check], check)]:
            self._run.update(open_)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if check_id_of(item) not in self._run:
            raise Blocked(LEFT_OUT)


class Impatient:
    """The sandbox with other limits."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox, self.limits = sandbox, limits

    def run(self, request: Request) -> Reply:
        return self._sandbox.run(replace(request, limits=request.limits or self.limits))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


class Reusing:
    """The sandbox for a scenario: what it cannot have changed is answered from an earlier one.

    Programs that start new interpreters cost more than all other checks of Lab 3 together. They are run only for
    those planted bugs that are about them (`cold = true`), and answered by the reference for all others.
    """

    answers: ClassVar[dict[str, Reply]] = {}

    def __init__(self, sandbox: Any, folder: Path, scenario: Scenario) -> None:
        self._sandbox, self._folder, self._scenario = sandbox, folder, scenario
        self._changed = reuse.changed_symbols(folder)

    def run(self, request: Request) -> Reply:
        is_cold = request.probe.startswith("lab3_launch.") and "ddp_training" in str(request.params["module"])
        if is_cold and _is_bug(self._scenario) and not self._scenario.table.get("cold"):
            return self._of_the_reference(request)
        if not self._is_as_in_the_reference(request):
            return self._sandbox.run(request)
        key = repr((key_of(request), request.limits))
        if key not in self.answers:
            reply = self._sandbox.run(request)
            if reply.kind != "ok":
                return reply
            self.answers[key] = reply
        return self.answers[key]

    def _is_as_in_the_reference(self, request: Request) -> bool:
        if not request.student:
            return True
        needed = reuse.symbols_of(request)
        return bool(needed) and self._changed is not None and self._changed.isdisjoint(needed)

    def _of_the_reference(self, request: Request) -> Reply:
        if request.probe not in self.answers:
            self._turn_to(load(SCENARIOS / "exploits" / "honest_right"))
            self.answers[request.probe] = self._sandbox.run(request)
            self._turn_to(self._scenario)
        return self.answers[request.probe]

    def _turn_to(self, scenario: Scenario) -> None:
        rebuild(scenario, self._folder)
        self._sandbox.turn_to(self._folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


def _is_bug(scenario: Scenario) -> bool:
    return scenario.folder.parent.name == "bugs"


def rebuild(scenario: Scenario, folder: Path) -> None:
    shutil.rmtree(folder)
    scenario.build(folder)


@dataclass(frozen=True)
class Graded:
    """What a grading said, by check and by criterion."""

    exit_code: int
    document: dict[str, Any]

    @property
    def score(self) -> float:
        return float(self.document["score"])

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {
            check["id"]: check
            for lab in self.document["labs"]
            for criterion in lab["criteria"]
            for check in criterion["checks"]
        }

    @property
    def passed(self) -> set[str]:
        return {name for name, check in self.checks.items() if check["outcome"] == "passed"}

    @property
    def losing_criteria(self) -> set[str]:
        """Those of checks that were asked."""
        return {
            name.rpartition(".")[0]
            for name, check in self.checks.items()
            if check["outcome"] != "passed" and check["message"] != LEFT_OUT
        }

    @property
    def problems(self) -> str:
        """Everything that did not pass, for the message of a failing test, with the seed that repeats it."""
        return f"seed {self.document['seed']}\n" * (len(self.passed) < len(self.checks)) + "\n".join(
            f"{name}: {check['outcome']}: {check['message']}"
            for name, check in self.checks.items()
            if check["outcome"] != "passed"
        )


class Bench:
    """A folder, and the sandbox that was started for it."""

    def __init__(self, folder: Path) -> None:
        """Start the sandbox for `folder`, which must not exist yet."""
        self.folder = load(SCENARIOS / "exploits" / "honest_right").build(folder)
        self.sandbox = Sandbox(folder)

    def grade(
        self,
        scenario: Scenario,
        report: Path,
        options: Sequence[str],
        run_pytest: Callable[[list[str], list[object]], object],
        seed: int | None = None,
        every_check: bool = True,
    ) -> Graded:
        """Build a scenario and grade it as `pytest --grade` does, with `run_pytest(arguments, plugins)`.

        Without `every_check`, a planted bug is asked what `OnlyWhatMatters` says.
        """
        rebuild(scenario, self.folder)
        arguments = [*own_configuration(), "--grade", f"--submission={self.folder}", "--device=vgpu"]
        arguments += [f"--grade-report={report}", *options]
        is_bug, is_variant = _is_bug(scenario), scenario.folder.parent.name == "variants"
        if (is_bug or is_variant) and seed is None:
            seed = SEED
        if seed is not None:
            arguments.append(f"--grade-seed={seed}")
        used: Any = self.sandbox
        if not is_variant and not scenario.name.startswith("honest_"):  # what is right has all the time it needs
            used = Impatient(used, BUG_LIMITS if is_bug else EXPLOIT_LIMITS)
        if is_bug or is_variant:
            used = Reusing(used, self.folder, scenario)
        plugins: list[object] = [Keeper(used)]
        if is_bug and not every_check:
            plugins.append(OnlyWhatMatters(scenario))
        code = run_pytest(arguments, plugins)
        return Graded(int(code), json.loads((report / "grade.json").read_text()))  # type: ignore[call-overload]
