"""`.ci/run` makes the machine ready where it can, and runs the tests in any case."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
BRINGS = {
    package: brings
    for package, _, brings in (
        line.split() for line in SCRIPT.read_text().partition("<<'END'\n")[2].partition("END\n")[0].splitlines()
    )
}
"""What the script installs, and by what it sees that it need not."""
TESTS = ["make test"]
INSTALL, UPDATE = "install", "update"

RECORD = 'echo "$(basename "$0") $*" >>"$CALLS"\n'
WORKS = RECORD
FAILS = RECORD + 'echo "E: no network" >&2; exit 100\n'
NO_CHROMIUM = RECORD + 'for last in "$@"; do :; done; [ "$last" != chromium ]\n'
WORKS_AFTER_UPDATE = RECORD + 'if [ "$1" = update ]; then touch "$CALLS.lists"; else [ -e "$CALLS.lists" ]; fi\n'


@dataclass(frozen=True)
class Run:
    """How a run ended, and what it called."""

    exit_code: int
    errors: str
    calls: list[str]

    @property
    def apt(self) -> list[str]:
        """What apt-get was asked for."""
        return [call.split()[1] for call in self.calls if call.startswith("apt-get")]


@pytest.fixture
def ci(tmp_path: Path):
    """Run a copy of the script where apt-get, make and id do what a test says."""

    def run(*, apt: str, user: int = 0, make: str = WORKS, there: Sequence[str] = ()) -> Run:
        debian, binaries, calls = tmp_path / "debian", tmp_path / "bin", tmp_path / "calls"
        script = tmp_path / "checkout" / ".ci" / "run"
        for path in (binaries, script.parent, *(debian / package for package in there)):
            path.mkdir(parents=True)
        text = SCRIPT.read_text()
        for package, brings in BRINGS.items():
            assert text.count(f"{brings}\n") == 1
            text = text.replace(f"{brings}\n", f"{debian / package}\n")
        script.write_text(text)
        for name, body in (("apt-get", apt), ("make", make), ("id", f"echo {user}\n")):
            (binaries / name).write_text(f"#!/bin/sh\n{body}")
            (binaries / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "CALLS": str(calls)}
        done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
        return Run(done.returncode, done.stderr, calls.read_text().splitlines())

    return run


def test_what_the_tests_need_is_installed_then_they_run(ci) -> None:
    done = ci(apt=WORKS)
    assert (done.exit_code, done.errors) == (0, "")
    assert done.apt == [INSTALL] * len(BRINGS)
    assert [call.split()[-1] for call in done.calls[:-1]] == list(BRINGS)
    assert done.calls[-1:] == TESTS


def test_lists_of_packages_are_fetched_once_and_only_when_they_are_missing(ci) -> None:
    done = ci(apt=WORKS_AFTER_UPDATE)
    assert done.apt == [INSTALL, UPDATE, *[INSTALL] * len(BRINGS)]
    assert (done.exit_code, done.errors) == (0, "")


def test_without_a_network_the_tests_run_and_a_note_says_what_is_missing(ci) -> None:
    done = ci(apt=FAILS)
    assert (done.exit_code, done.apt, done.calls[-1:]) == (0, [INSTALL, UPDATE], TESTS)
    assert "E: no network" in done.errors
    for package in BRINGS:
        assert f"{package} is not here" in done.errors


def test_a_package_that_there_is_none_of_does_not_stop_the_others(ci) -> None:
    done = ci(apt=NO_CHROMIUM)
    before = list(BRINGS).index("chromium")
    assert done.apt == [*[INSTALL] * (before + 1), UPDATE, *[INSTALL] * (len(BRINGS) - before)]
    assert (done.exit_code, done.calls[-1:]) == (0, TESTS)
    assert done.errors.count("is not here") == 1
    assert "chromium is not here" in done.errors


def test_an_ordinary_user_installs_nothing(ci) -> None:
    done = ci(apt=WORKS, user=1000)
    assert (done.exit_code, done.calls) == (0, TESTS)
    assert done.errors.count("the tests that need it are skipped") == len(BRINGS)


def test_what_is_there_is_not_installed_again(ci) -> None:
    done = ci(apt=WORKS, there=list(BRINGS))
    assert (done.exit_code, done.errors, done.calls) == (0, "", TESTS)


def test_all_packages_of_the_script_are_known_here() -> None:
    assert len(BRINGS) >= 9
    assert all(brings.startswith("/") for brings in BRINGS.values())


def test_failing_tests_fail_the_run(ci) -> None:
    assert ci(apt=FAILS, make=RECORD + "exit 2\n").exit_code == 2
