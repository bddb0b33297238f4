"""Measurements drawn at random (`benchmarks.measured.drawn`), rehearsed on the virtual GPU."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vgpu
from benchmarks.measured import record
from benchmarks.measured.drawn import cases, generate, run, store, timing
from benchmarks.measured.drawn.case import Case, Measured
from benchmarks.measured.drawn.families import FAMILIES
from tests.by_day import one_in

ROOT = Path(__file__).parents[2]
_ALL = cases.load()
_FEW = 3
_NEEDS_VALUES = ("triton",)
"""The virtual GPU runs no Triton kernel with shapes only."""


@contextlib.contextmanager
def _gpu(*, values: bool = False) -> Iterator[None]:
    with vgpu.attach("H100", values=values):
        yield


def _smallest(family: str) -> list[Case]:
    """A few cases that need little memory, of different kinds."""
    of_family = [case for case in _ALL if case.family == family]

    def needed(case: Case) -> float:
        return FAMILIES[family].bytes_needed(case.parameters, case.precision)

    def kind(case: Case) -> str:
        return next((str(value) for value in case.parameters.values() if isinstance(value, str)), "")

    chosen: dict[str, Case] = {}
    for case in sorted(of_family, key=needed):
        chosen.setdefault(kind(case), case)
    return list(chosen.values())[:_FEW]


def _replace_work(monkeypatch: pytest.MonkeyPatch, **work: Any) -> None:
    """Let families do other work than theirs: nothing that takes long, or something that fails."""
    for name, family in FAMILIES.items():
        measure = work.get(name.replace("-", "_"), work["others"])
        changes = {**vars(family), "measure": measure, "usual_seconds": 0.0}
        monkeypatch.setitem(run.FAMILIES, name, type(family)(**changes))


def _nothing(parameters: Any, precision: str) -> Measured:
    return Measured({"device_seconds": 1.0})


def test_the_generator_writes_the_committed_file() -> None:
    assert generate.text() == cases.FILE.read_text(encoding="utf-8")


def test_every_case_has_its_own_id_and_a_known_family() -> None:
    assert len({case.id for case in _ALL}) == len(_ALL)
    assert {case.family for case in _ALL} == set(FAMILIES)
    assert len({json.dumps(case.document() | {"id": ""}) for case in _ALL}) > 0.98 * len(_ALL)


@pytest.mark.parametrize("family", one_in(4, FAMILIES))
def test_a_few_cases_of_each_family_run(family: str) -> None:
    if family == "triton":
        pytest.importorskip("triton")
    with _gpu(values=family in _NEEDS_VALUES):
        for case in _smallest(family):
            entry = run.run(case)
            assert "error" not in entry, entry
            assert any(name.endswith("seconds") and entry[name] > 0 for name in entry), entry
            assert json.loads(json.dumps(entry)) == entry


def test_an_entry_has_values_and_kernels() -> None:
    case = Case("one", "product", "fp16", {"operands": "nt", "batch": 0, "m": 64, "n": 32, "k": 16})
    with _gpu():
        entry = run.run(case)
        plain = run.run(case, kernel_names=False)
    assert 0 < entry["device_seconds_min"] <= entry["device_seconds"] < 1e-3
    assert entry["peak_bytes"] > 0
    assert entry["kernel_launches"] == 1
    assert len(entry["kernels"]) == 1
    assert "kernels" not in plain


def test_the_machine_can_be_described_on_a_virtual_gpu() -> None:
    with _gpu():
        assert "H100" in record.about()["gpu"]


def test_known_cases_are_skipped() -> None:
    known = {case.id for case in _ALL if case.family != "layout"}
    of_layout = [case.id for case in _ALL if case.family == "layout"]
    known |= set(of_layout[3:])
    entries: list[dict[str, Any]] = []
    with _gpu():
        assert run.measure(known, 60.0, entries.append, seed=1) == run.DONE
    assert sorted(entry["id"] for entry in entries) == of_layout[:3]


def test_each_family_has_its_share_from_the_first_cases_on() -> None:
    order = run.in_order(_ALL, seed=1)
    assert sorted(case.id for case in order) == sorted(case.id for case in _ALL)
    assert {case.family for case in order[: len(FAMILIES)]} == set(FAMILIES)
    tenth = order[: len(order) // 10]
    for family in FAMILIES:
        share = sum(case.family == family for case in tenth) / sum(case.family == family for case in _ALL)
        assert 0.08 < share < 0.15, family
    assert order == run.in_order(_ALL, seed=1)
    assert order != run.in_order(_ALL, seed=2)


def test_only_the_families_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = []
    _replace_work(monkeypatch, others=_nothing)
    with _gpu():
        run.measure((), 60.0, entries.append, seed=1, families=["attention"])
    assert {entry["family"] for entry in entries} == {"attention"}
    with pytest.raises(ValueError, match="no family is called nothing; there are conv2d"):
        run.remaining((), ["nothing"])


def test_nothing_is_begun_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = []
    clock = itertools.count(0.0, 0.02)  # made up: a busy machine takes any time for anything
    monkeypatch.setattr(run, "real_seconds", lambda: next(clock))
    _replace_work(monkeypatch, others=lambda parameters, precision: Measured({}))
    with _gpu():
        run.measure((), 0.4, entries.append, seed=1)
        assert 1 <= len(entries) <= 9
        run.measure((), 0.0, lambda entry: pytest.fail("a case was begun"), seed=1)


def test_a_slow_family_is_begun_only_if_its_time_is_left() -> None:
    with _gpu():
        run.measure((), 1.0, lambda entry: pytest.fail("a case was begun"), seed=1, families=["compiled"])


@pytest.mark.night
def test_a_case_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(parameters: Any, precision: str) -> Measured:
        raise RuntimeError("no kernel\n is available")

    def out_of_memory(parameters: Any, precision: str) -> Measured:
        torch.empty(2**40, device="cuda", dtype=torch.uint8)
        return Measured({})

    entries: list[dict[str, Any]] = []
    _replace_work(monkeypatch, others=_nothing, attention=fails, layout=out_of_memory)
    chosen = ["attention", "layout", "product"]
    with _gpu():
        assert run.measure((), 60.0, entries.append, seed=1, families=chosen) == run.DONE
    errors = {entry["family"]: entry.get("error", "") for entry in entries}
    assert errors["attention"] == "RuntimeError: no kernel is available"
    assert "out of memory" in errors["layout"]
    assert errors["product"] == ""
    assert len(entries) == sum(case.family in chosen for case in _ALL)


def test_a_lost_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(parameters: Any, precision: str) -> Measured:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    entries: list[dict[str, Any]] = []
    _replace_work(monkeypatch, others=breaks)
    with _gpu():
        assert run.measure((), 60.0, entries.append, seed=1) == run.DEVICE_LOST
    assert len(entries) == 1


def test_a_case_that_needs_too_much_memory_is_not_begun() -> None:
    huge = Case("huge", "product", "fp32", {"operands": "nn", "batch": 0, "m": 2**17, "n": 2**17, "k": 8})
    with _gpu():
        entry = run.run(huge)
    assert entry["error"].startswith("MemoryError: not begun: it needs about 96.0")


def test_settings_are_put_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    known = {case.id for case in _ALL if case.precision != "tf32" or case.family != "product"}
    known |= {case.id for case in _ALL[:-1] if case.family == "product"} - {"product-0001"}
    with _gpu():
        run.measure(known, 60.0, lambda entry: None, seed=1)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_time_limit_stops_what_handles_all_errors() -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    with pytest.raises(TimeoutError, match=r"stopped after 0\.1 s"), timing.at_most(0.1):
        stubborn()
    with timing.at_most(5.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_store_keeps_what_a_file_has(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.json"
    with store.Store(path, {"gpu": "one"}) as kept:
        kept.add({"id": "a"})
    with contextlib.suppress(KeyboardInterrupt), store.Store(path, {"gpu": "one", "date": "later"}) as kept:
        assert kept.ids() == {"a"}
        kept.add({"id": "b"})
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {
        "schema": 1, "machine": {"gpu": "one", "date": "later"}, "entries": [{"id": "a"}, {"id": "b"}],
    }  # fmt: skip
    assert store.ids_of([path]) == {"a", "b"}
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="measurements of a real one, not of a virtual one"):
        store.Store(path, {"gpu": "one", "virtual": True})
    path.write_text("[]")
    with pytest.raises(ValueError, match="holds no drawn measurements"):
        store.Store(path, {})


def _command(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.measured.drawn", *arguments, "--virtual", "H100"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.night
def test_an_interrupted_run_leaves_a_valid_file(tmp_path: Path) -> None:
    path, known = tmp_path / "out.json", tmp_path / "known.json"
    known.write_text(json.dumps({"schema": 1, "machine": {}, "entries": [{"id": case.id} for case in _ALL[:480]]}))
    process = _command(str(path), "--seconds", "100", "--known", str(known))
    deadline = time.monotonic() + 60
    while not (path.exists() and store.ids_of([path])) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    document = json.loads(path.read_text())
    assert "H100" in document["machine"]["gpu"]
    assert document["entries"]
    assert not {entry["id"] for entry in document["entries"]} & {case.id for case in _ALL[:480]}
    assert f"{len(document['entries'])} new cases" in output


@pytest.mark.night
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(_NEEDS_VALUES)))
def test_every_case_runs_with_shapes_only(family: str) -> None:
    known = {case.id for case in _ALL if case.family != family}
    entries: list[dict[str, Any]] = []
    with _gpu():
        run.measure(known, 600.0, entries.append, seed=1)
    assert len(entries) == len(_ALL) - len(known)
    assert [entry for entry in entries if "error" in entry] == []
