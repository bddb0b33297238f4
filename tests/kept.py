"""Tests that have passed with the same code pass again without being run.

What a test can depend on is, unless `NEEDS` says less for its folder, every file of this repository. A digest of these,
of what is installed, of the programs that tests look for and of the test's own name is its key; a key whose test has
passed is kept under `build/replies/`, beside the replies of the sandbox, for some weeks. Tests that grade scenarios
are not among them: replies are kept for those, and the judging is done anew. Failures and skips are never kept.
`--replies` with an empty folder runs everything, as a fresh clone and `make test-all` do, and so does naming tests.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS: dict[str, tuple[str, ...]] = {
    "conformance": ("vgpu", "pyproject.toml"),
    "vgpu": ("vgpu", "examples", "docs/virtual-gpu.md", "docs/vgpu-uses.md", "docs/how-we-know.md", "pyproject.toml"),
    "sandbox": ("gradebox", "grader", "vgpu", "labkit", "solutions", "labs", "examples", "pyproject.toml"),
    "gradebox": (
        "gradebook",
        "gradebox",
        "grader",
        "vgpu",
        "labkit",
        "solutions",
        "labs",
        "examples",
        "tests/scenarios",
        "conftest.py",
        "pyproject.toml",
    ),
    "gradebook": (
        *("gradebook", "gradebox", "grader", "vgpu", "labkit", "solutions", "labs", "examples", "deploy", "packaging"),
        *(
            "conftest.py",
            "LICENSE",
            "pyproject.toml",
            "constraints.txt",
            "install.sh",
            "Makefile",
            "README.md",
            "tests/scenarios",
        ),
    ),
    "cluster": (
        "cluster",
        "labkit",
        "vgpu",
        "deploy",
        "solutions",
        "labs",
        "benchmarks",
        "docs/cluster.md",
        "pyproject.toml",
    ),
    "labkit": ("labkit", "vgpu", "solutions", "labs", "pyproject.toml"),
    "monitoring": ("labkit", "vgpu", "solutions", "labs", "deploy", "pyproject.toml"),
}
"""What tests of a folder depend on, besides that folder and what all tests share. A test of these names fails where an
import says otherwise (`tests/rooms/test_kept.py`)."""
_SHARED = (
    *(
        "conftest.py",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/kept.py",
        "tests/shares.py",
        "tests/small_disk.py",
        "tests/bare.py",
    ),
    "tests/browser.py",
)
"""Every run also imports the engine's plugin, which does nothing where nothing is graded."""
_NEVER = ("scenarios",)
_PROGRAMS = (
    *(
        "chromium",
        "gcc",
        "git",
        "make",
        "slurmctld",
        "munged",
        "buildah",
        "busybox",
        "promtool",
        "prometheus",
        "shellcheck",
    ),
    *("unshare", "docker", "hadolint", "kubectl"),
)
_WEEKS_SECONDS = 4 * 7 * 24 * 3600.0
_MARK = ("kept", True)
_PASSED = pytest.StashKey[bool]()


class Kept:
    """The plugin: what has passed, and what passes now."""

    def __init__(self, folder: Path, options: str) -> None:
        self._folder = folder / "passed"
        self._options = options
        self._known: set[str] = set()
        self._new: list[str] = []
        for file in sorted(self._folder.glob("*.txt")):
            with contextlib.suppress(OSError):
                self._known.update(file.read_text().split())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report a test that is known to pass as passed, without running it."""
        key = self._key(item)
        if key not in self._known:
            return None
        self._new.append(key)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when in ("setup", "call", "teardown"):
            call = pytest.CallInfo.from_call(lambda: None, when)  # type: ignore[arg-type]
            report = pytest.TestReport.from_item_and_call(item, call)
            report.user_properties.append(_MARK)
            item.ihook.pytest_runtest_logreport(report=report)
        item.session._setupstate.teardown_exact(nextitem)  # what the test before it set up, and no later one needs
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what passes, its end included."""
        report = yield
        item.stash[_PASSED] = item.stash.get(_PASSED, True) and report.passed
        if call.when == "teardown" and item.stash[_PASSED]:
            self._new.append(self._key(item))
        return report

    def pytest_sessionfinish(self) -> None:
        """Write down what has passed; forget what has not for weeks."""
        keys = [key for key in self._new if key]
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if keys:
                new = self._folder / f"{secrets.token_hex(6)}.new"
                new.write_text("\n".join(keys) + "\n")
                new.rename(new.with_suffix(".txt"))
            for file in self._folder.iterdir():
                if time.time() - file.stat().st_mtime > _WEEKS_SECONDS:
                    file.unlink(missing_ok=True)

    def _key(self, item: pytest.Item) -> str:
        """Empty for a test whose passing is not kept."""
        folder = item.path.relative_to(ROOT / "tests").parts[0] if item.path.is_relative_to(ROOT / "tests") else ""
        if not folder or folder in _NEVER:
            return ""
        text = f"{item.nodeid}\n{self._options}\n{_machine()}\n{_digest(folder)}"
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


class Told:
    """Says in the summary how many tests passed without being run."""

    def __init__(self) -> None:
        self._count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count += report.when == "call" and any(tuple(one) == _MARK for one in report.user_properties)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._count:
            terminalreporter.write_line(
                f"{self._count} of these had passed before with the same code, and were not run again (tests/kept.py)"
            )


def install(config: pytest.Config) -> None:
    """In a run of all tests, in the process that runs them and in the one that reports them.

    Whoever names some, or asks for another device, wants them run; and what passes on a real GPU says nothing of the
    virtual one.
    """
    option = config.option
    if option.again or option.file_or_dir or option.keyword:
        return
    if getattr(option, "conformance_device", "vgpu") != "vgpu":
        return
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        options = f"{config.option.seed} {config.option.whole}"
        config.pluginmanager.register(Kept(Path(config.option.replies), options))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Told())


@functools.cache
def _machine() -> str:
    """What a test may see of the machine and of what is installed."""
    installed = sorted(f"{one.name}=={one.version}" for one in importlib.metadata.distributions())
    programs = [name for name in _PROGRAMS if shutil.which(name)]
    data = [str(path) for path in sorted(Path("/usr/share/datasets").glob("*"))]
    return repr((sys.version, platform.platform(), os.geteuid() == 0, os.cpu_count(), installed, programs, data))


@functools.cache
def _digest(folder: str) -> str:
    """Of all files that tests of this folder depend on."""
    needed = (*NEEDS[folder], f"tests/{folder}", *_SHARED) if folder in NEEDS else ("",)
    total = hashlib.sha256()
    for name, digest in sorted(_files().items()):
        if any(name == one or not one or name.startswith(f"{one}/") for one in needed):
            total.update(f"{name} {digest}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


@functools.cache
def _files() -> dict[str, str]:
    """Every file of the repository, new ones included, and a digest of what is in it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout.split(b"\0")
    found: dict[str, str] = {}
    for name in map(os.fsdecode, filter(None, names)):
        file = ROOT / name
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(
                os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
            ).hexdigest()
    return found or {"": secrets.token_hex()}  # no git, or no repository: nothing is known
