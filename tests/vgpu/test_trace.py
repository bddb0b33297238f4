"""Trace files: the rules of the Trace Event Format, and what a viewer shows of a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import vgpu
from vgpu.runtime.views import trace

# "Trace Event Format" (Google, 2016): fields of complete (X), counter (C), metadata (M) and flow (s, f) events.
_TIMED = {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": {"type": "number", "minimum": 0}}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents", "simulated", "displayTimeUnit"],
    "properties": {
        "simulated": {"const": True},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "pid", "tid", "ts", "name"],
                "properties": {**_TIMED, "ph": {"enum": ["X", "C", "M", "s", "f"]}, "name": {"type": "string"}},
                "allOf": [
                    {
                        "if": {"properties": {"ph": {"const": "X"}}},
                        "then": {"required": ["dur", "cat"], "properties": {"dur": {"type": "number", "minimum": 0}}},
                    },
                    {
                        "if": {"properties": {"ph": {"const": "C"}}},
                        "then": {"properties": {"args": {"additionalProperties": {"type": "number"}}}},
                    },
                    {"if": {"properties": {"ph": {"enum": ["s", "f"]}}}, "then": {"required": ["id", "cat"]}},
                    {"if": {"properties": {"ph": {"const": "f"}}}, "then": {"properties": {"bp": {"const": "e"}}}},
                ],
            },
        },
    },
}


def _train(steps: int = 2) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    copies = torch.cuda.Stream()
    for number in range(steps):
        with torch.profiler.record_function(f"step {number}"):
            with torch.cuda.stream(copies):
                batch = torch.ones(32, 64).pin_memory().cuda(non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)
    return trace


def _of(document: dict[str, Any], phase: str, category: str = "") -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase and (not category or e.get("cat") == category)]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_file_keeps_the_format(shapes: vgpu.VirtualGPU, tmp_path: Path, name: str) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / name))
    jsonschema.validate(document, _SCHEMA)


def test_another_suffix_is_an_error(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json or \.json\.gz"):
        shapes.save_trace(tmp_path / "run.trace")


def test_events_are_in_the_order_of_time(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    times = [event["ts"] for event in _read(shapes.save_trace(tmp_path / "run.json"))["traceEvents"]]
    assert times == sorted(times)


def test_slices_of_a_row_nest_and_never_cross(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    """Perfetto drops slices of one thread that overlap without one containing the other."""
    _train(4)
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in _of(_read(shapes.save_trace(tmp_path / "run.json")), "X"):
        begin = round(event["ts"] * 1000)
        rows.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    for slices in rows.values():
        open_until: list[int] = []
        for begin, end in slices:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_microseconds_and_names_are_those_of_the_timeline(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / "run.json"))
    actual = sorted(
        (e["ts"], e["dur"], e["name"]) for e in _of(document, "X", "kernel") + _of(document, "X", "gpu_memcpy")
    )
    expected = sorted((k.start * 1e6, k.seconds * 1e6, k.name) for k in shapes.timeline)
    assert [item[2] for item in actual] == [item[2] for item in expected]
    for event, other in zip(actual, expected, strict=True):
        assert event[:2] == pytest.approx(other[:2], abs=2e-3)


def test_every_kernel_has_an_arrow_from_its_launch(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / "run.json"))
    starts = {event["id"]: event for event in _of(document, "s", "ac2g")}
    ends = {event["id"]: event for event in _of(document, "f", "ac2g")}
    assert len(starts) == len(ends) == len(shapes.timeline)
    slices = _of(document, "X")
    for number, begin in starts.items():
        assert begin["ts"] <= ends[number]["ts"]
        for arrow in (begin, ends[number]):
            row = [event for event in slices if (event["pid"], event["tid"]) == (arrow["pid"], arrow["tid"])]
            assert any(event["ts"] <= arrow["ts"] <= event["ts"] + event["dur"] for event in row)


def test_rows_have_names_that_say_simulated(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / "run.json"))
    processes = {e["pid"]: e["args"]["name"] for e in _of(document, "M") if e["name"] == "process_name"}
    assert all(name.endswith("(simulated)") for name in processes.values())
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in _of(document, "M") if e["name"] == "thread_name"}
    assert {"MainThread", "default stream", "stream 1"} <= set(threads.values())
    assert {(event["pid"], event["tid"]) for event in _of(document, "X")} <= set(threads)


def test_counters_follow_memory_and_utilisation(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / "run.json"))
    memory = [event["args"] for event in _of(document, "C") if event["name"] == "memory (bytes)"]
    assert [item["allocated"] for item in memory] == [sample.allocated_bytes for sample in shapes.memory_timeline]
    split = [event["args"] for event in _of(document, "C") if event["name"] == "memory by category (bytes)"]
    assert [sum(item.values()) for item in split] == [item["allocated"] for item in memory]
    busy = [event["args"]["busy"] for event in _of(document, "C") if event["name"] == "busy (%)"]
    assert 0 <= min(busy) <= max(busy) <= 100
    assert busy[-1] == 0


def test_regions_and_shapes_are_told(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    document = _read(shapes.save_trace(tmp_path / "run.json"))
    assert {"step 0", "step 1"} <= {event["name"] for event in _of(document, "X", "user_annotation")}
    products = [event for event in _of(document, "X", "cpu_op") if event["name"] == "aten::addmm"]
    assert products[0]["args"]["Input Dims"][1] == [32, 64]


def test_gpus_and_ranks_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with vgpu.attach("H100", gpus=2, values=False) as gpu:
        torch.ones(8, device="cuda:0")
        torch.ones(8, device="cuda:1")
        document = _read(gpu.save_trace(tmp_path / "run.json"))
    assert document["distributedInfo"] == {"rank": 3, "world_size": 4}
    assert len(document["deviceProperties"]) == 2
    kernels = _of(document, "X", "kernel")
    assert len({event["pid"] for event in kernels}) == 2
    assert [event["args"]["device"] for event in kernels] == [0, 1]
    assert all(event["pid"] >= 300 for event in document["traceEvents"])
    names = [event["args"]["name"] for event in _of(document, "M") if event["name"] == "process_name"]
    assert all(name.startswith("rank 3 ") for name in names)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for number in range(2):
        with vgpu.attach("T4", values=False) as gpu:
            _train()
            contents.append(gpu.save_trace(tmp_path / f"run{number}.json.gz").read_bytes())
    assert contents[0] == contents[1]


def test_a_window_begins_and_ends_where_asked(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _train()
    begin = shapes.now()
    torch.ones(8, device="cuda").relu()
    document = _read(shapes.save_trace(tmp_path / "run.json", start=begin))
    assert [event["name"] for event in _of(document, "X", "kernel")] == ["aten::ones", "aten::relu"]


def test_outside_of_a_job_there_is_no_rank() -> None:
    assert trace.rank_and_size() == (None, 1)
