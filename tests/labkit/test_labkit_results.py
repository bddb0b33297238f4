"""Results files: what is written comes back equal, and what is damaged is refused with the place and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.files import atomic_write
from labkit.results import (
    STAGES,
    Comparison,
    Environment,
    MatmulResult,
    MemoryProfile,
    Provenance,
    ResultsError,
    StageMemory,
    load_json,
    save_json,
)

PROVENANCE = Provenance(
    device="cuda",
    device_name="Tesla T4",
    simulated=True,
    torch="2.15.0",
    python="3.11.7",
    peak_tflops={"float32": 8.1},
    bandwidth_bytes_per_second=3.2e11,
    launch_seconds=6.5e-6,
)


def matmul(device: str, seconds: float) -> MatmulResult:
    return MatmulResult(
        device=device, dtype="float32", size=128, iterations=10, seconds=seconds, tflops=2 * 128**3 / seconds / 1e12
    )


COMPARISON = Comparison(size=128, cpu=matmul("cpu", 2e-4), gpu=matmul("cuda", 1e-4), speedup=2.0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_json(tmp_path / "results" / "benchmark.json", [COMPARISON], PROVENANCE)


def rewrite(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_nested_results_come_back_equal(saved: Path) -> None:
    loaded = load_json(saved, Comparison)
    assert loaded.results == (COMPARISON,)
    assert loaded.provenance == PROVENANCE


def test_a_file_that_an_editor_of_windows_saved_is_read(saved: Path) -> None:
    saved.write_bytes(b"\xef\xbb\xbf" + saved.read_bytes())
    assert load_json(saved, Comparison).results == (COMPARISON,)


def test_tuples_and_absent_values_come_back_as_they_were(tmp_path: Path) -> None:
    environment = Environment(
        python="3.11", torch="2.15", cuda="13.0", driver=None, device="cuda", device_name="Tesla T4",
        memory_bytes=2**34, compute_capability=(7, 5), profiler=True, simulated=True,
    )  # fmt: skip
    path = save_json(tmp_path / "environment.json", [environment], PROVENANCE)
    assert load_json(path, Environment).results == (environment,)


def test_a_profile_keeps_the_order_of_its_stages(tmp_path: Path) -> None:
    stages = tuple(
        StageMemory(stage=stage, allocated_bytes=index, reserved_bytes=2 * index, peak_bytes=index)
        for index, stage in enumerate(STAGES)
    )
    profile = MemoryProfile(device="cuda", dtype="float16", stages=stages)
    path = save_json(tmp_path / "memory.json", [profile], PROVENANCE)
    assert load_json(path, MemoryProfile).results == (profile,)


def test_the_file_says_where_its_numbers_come_from(saved: Path) -> None:
    document = json.loads(saved.read_text())
    assert document["schema"] == 1
    assert document["provenance"]["simulated"] is True
    assert document["provenance"]["peak_tflops"] == {"float32": 8.1}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d["results"][0]["cpu"].update(seconds="fast"), r"results\[0\]\.cpu\.seconds should be a number"),
        (lambda d: d["results"][0].pop("gpu"), r"results\[0\] lacks gpu"),
        (lambda d: d["results"][0].update(size=1.5), r"results\[0\]\.size should be a whole number, found 1\.5"),
        (lambda d: d["results"][0].update(guess=1), "guess, which Comparison does not know"),
        (lambda d: d.update(schema=99), "schema is 99"),
        (lambda d: d.update(kind="MemoryProfile"), "holds 'MemoryProfile', and 'Comparison' was expected"),
        (lambda d: d.pop("provenance"), "provenance missing"),
        (lambda d: d.update(results={}), "results should be a list"),
        (lambda d: d["provenance"].update(simulated="no"), r"provenance\.simulated should be true or false"),
    ],
)
def test_a_damaged_file_is_refused_naming_the_place(saved: Path, change: Any, complaint: str) -> None:
    rewrite(saved, change)
    with pytest.raises(ResultsError, match=complaint) as caught:
        load_json(saved, Comparison)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"schema": 1, "res', b"\xff\xfe", b"[]", b"[" * 100_000])
def test_what_is_not_such_a_document_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "benchmark.json"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=r"benchmark\.json"):
        load_json(path, Comparison)


def test_a_missing_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"does not exist\. Run the program"):
        load_json(tmp_path / "none.json", Comparison)


def test_infinite_numbers_are_refused_and_the_old_file_stays(saved: Path) -> None:
    before = saved.read_bytes()
    endless = MatmulResult(device="cpu", dtype="float32", size=1, iterations=1, seconds=0.0, tflops=float("inf"))
    with pytest.raises(ValueError, match="JSON"):
        save_json(saved, [endless], PROVENANCE)
    assert saved.read_bytes() == before


def test_one_file_holds_one_kind_of_result(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exactly one kind"):
        save_json(tmp_path / "mixed.json", [COMPARISON, COMPARISON.cpu], PROVENANCE)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(KeyboardInterrupt), atomic_write(saved) as temporary:  # noqa: PT012
        temporary.write_text("half of i")
        raise KeyboardInterrupt
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
