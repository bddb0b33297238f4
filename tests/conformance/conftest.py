"""Which GPU the programs run on (`--conformance-device`), what they skip, and the report (`--conformance-json`)."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vgpu
from tests.conformance import machine, report
from tests.conformance.programs import HERE, Program, program_of

_FRESH = "CONFORMANCE_FRESH_PROCESS"
_outcomes = pytest.StashKey[list[report.Outcome]]()
_device = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance with CUDA")
    group.addoption(
        "--conformance-device",
        default="vgpu",
        metavar="DEVICE",
        help="vgpu (default), vgpu:MODEL, cuda (a real GPU), or auto (a real GPU, else the virtual one)",
    )
    group.addoption("--conformance-json", metavar="FILE", default=None, help="write a report of every program")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "program(description): a program of the conformance suite")
    config.stash[_outcomes] = []
    device = config.getoption("--conformance-device", "vgpu")
    kind = device.partition(":")[0]
    if kind not in ("vgpu", "cuda", "auto"):
        raise pytest.UsageError(f"--conformance-device {device}: expected vgpu, vgpu:MODEL, cuda or auto")
    present = kind != "vgpu" and torch.cuda.is_available()
    if kind == "cuda" and not present:
        raise pytest.UsageError("--conformance-device cuda: this machine has no CUDA device that PyTorch can use")
    config.stash[_device] = "cuda" if present else "vgpu" if kind == "auto" else device


def pytest_report_header(config: pytest.Config) -> str:
    return f"conformance: {_describe(config)['gpu']}{' (simulated)' if _simulated(config) else ''}"


def _simulated(config: pytest.Config) -> bool:
    return config.stash[_device] != "cuda"


def _fixed_model(config: pytest.Config) -> str | None:
    """The virtual GPU that was asked for; None: each program gets the smallest that has what it needs."""
    return config.stash[_device].partition(":")[2] or None


def _describe(config: pytest.Config) -> dict[str, Any]:
    simulated = _simulated(config)
    name = _fixed_model(config) or "virtual, the smallest that suits" if simulated else machine.describe_real().name
    return report.machine(name, simulated=simulated)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        program = program_of(item)
        if program is not None and program.differs is not None and _simulated(config):
            item.add_marker(pytest.mark.xfail(reason=program.differs, strict=True))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """A program that must be first on a real GPU gets a process of its own; a virtual GPU is new each time."""
    program = program_of(pyfuncitem)
    if program is None or not program.fresh or _simulated(pyfuncitem.config) or _FRESH in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        [*command, "--conformance-device", "cuda"], cwd=pyfuncitem.config.rootpath, capture_output=True, text=True,
        env={**os.environ, _FRESH: "1"}, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stdout[-4000:] + done.stderr[-1000:], pytrace=False)
    return True


@pytest.fixture(scope="session")
def _imported_modules_are_no_garbage() -> None:
    """Programs that measure bytes collect garbage first; PyTorch's modules need not be searched each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def cuda(request: pytest.FixtureRequest, _imported_modules_are_no_garbage: None) -> Iterator[machine.Gpu]:
    """The GPU of this program: virtual and new, or real and cleaned."""
    program = program_of(request.node)
    assert program is not None, "a test of this suite that uses the GPU is marked with @program"
    if program.module is not None and importlib.util.find_spec(program.module) is None:
        pytest.skip(f"needs the module {program.module}")
    config = request.config
    if not _simulated(config):
        opened = _untouched() if program.fresh else machine.real()
    else:
        opened = machine.virtual(_fixed_model(config) or machine.model_for(program.capability), program.gpus)
    with machine.settings_kept(), opened as gpu:
        _require(program, gpu)
        yield gpu
        attached = vgpu.current() if _simulated(config) else None
        assert attached is None or not attached.hazards, "a program of the suite has a race"


def _untouched() -> contextlib.AbstractContextManager[machine.Gpu]:
    """For a program in a process of its own: nothing to clean before, and perhaps no usable GPU after it."""
    return contextlib.nullcontext(machine.describe_real())


def _require(program: Program, gpu: machine.Gpu) -> None:
    if gpu.capability < program.capability:
        pytest.skip(f"needs compute capability {program.capability}, this is {gpu.capability}")
    if gpu.capability >= program.below_capability:
        pytest.skip(f"is for compute capabilities below {program.below_capability}, this is {gpu.capability}")
    if gpu.count < program.gpus:
        pytest.skip(f"needs {program.gpus} GPUs, this machine has {gpu.count}")
    if gpu.memory_bytes < program.memory_gib * 2**30:
        pytest.skip(f"needs {program.memory_gib} GiB, this GPU has {gpu.memory_bytes / 2**30:.1f}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    made: pytest.TestReport = yield
    program = program_of(item)
    if program is None or not Path(item.path).is_relative_to(HERE):
        return made
    if made.when == "call" or made.outcome != "passed":
        outcome = "xfailed" if hasattr(made, "wasxfail") and made.skipped else made.outcome
        message = getattr(made, "wasxfail", "") if outcome == "xfailed" else _message(made)
        name = item.nodeid.rpartition("/")[2]
        item.config.stash[_outcomes].append(
            report.Outcome(name, program.source, outcome, round(made.duration, 4), message)
        )
    return made


def _message(made: pytest.TestReport) -> str:
    if made.outcome == "passed":
        return ""
    if isinstance(made.longrepr, tuple):
        return str(made.longrepr[2])
    crash = getattr(made.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else made.longrepr)[:2000]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--conformance-json", None)
    if path:
        report.write(Path(path), _describe(session.config), session.config.stash[_outcomes])
