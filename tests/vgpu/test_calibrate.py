"""Calibration with the virtual GPU standing in for the real one: then prediction and measurement must agree."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vgpu
from vgpu.tools.calibrate import __main__ as command
from vgpu.tools.calibrate import compare, measure, models, suggest, workloads

_FEW = (
    "(1024, 1024) @ (1024, 1024) float32", "(4096, 4096) @ (4096, 4096) float16", "x + 1, 64M float32",
    "launch of x + 1, 8 elements", "view, x.view(-1)", "synchronize, nothing to wait for", "x.add_(1), 8 elements",
    "256 MiB to GPU, pageable", "256 MiB to GPU, pinned", "GPT, 6 layers, AMP float16, 8 x 512 tokens, Adam",
)  # fmt: skip


def _measured(spec: str | vgpu.Spec, names: tuple[str, ...] = _FEW) -> dict[str, Any]:
    chosen = [workload for workload in workloads.workloads() if workload.name in names]
    with vgpu.attach(spec, values=False):
        return {"entries": measure.start_up() + measure.measure(chosen, rounds=1), "machine": measure.machine()}


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, Any]]:
    """A few workloads on a virtual T4, which plays the real GPU here."""
    return _measured("T4")


@pytest.mark.night
def test_a_gpu_calibrated_against_itself_is_off_by_nothing(measured: dict[str, Any]) -> None:
    rows = compare.compare(_measured("T4"), measured)
    assert len(rows) > len(_FEW)
    assert not [row.note for row in rows if row.note]
    assert all(row.ratio == pytest.approx(1.0, rel=1e-6) for row in rows if row.measured)
    medians = compare.medians(rows)
    assert medians["kernel times"] == pytest.approx(0, abs=1e-6)
    assert medians["memory"] == 0


def test_another_gpu_is_off_by_as_much_as_its_figures(measured: dict[str, Any]) -> None:
    rows = compare.compare(_measured("A100-40GB", ("x + 1, 64M float32",)), measured)
    (row,) = [row for row in rows if row.name == "x + 1, 64M float32"]
    t4, a100 = vgpu.get_spec("T4"), vgpu.get_spec("A100-40GB")
    faster = a100.bandwidth_bytes_per_second * a100.bandwidth_efficiency_ratio
    faster /= t4.bandwidth_bytes_per_second * t4.bandwidth_efficiency_ratio
    assert row.ratio == pytest.approx(1 / faster, rel=0.01)
    assert any(row.note == "virtual: not predicted" for row in rows)


def test_device_times_leave_the_launches_out(measured: dict[str, Any]) -> None:
    values = {(entry["group"], entry["name"]): entry["value"] for entry in measured["entries"]}
    spec = vgpu.get_spec("T4")
    assert values["small kernel", "x.add_(1), 8 elements"] == pytest.approx(spec.minimum_kernel_seconds, rel=1e-3)
    assert values["host", "launch of x + 1, 8 elements"] == pytest.approx(spec.launch_seconds, rel=0.01)
    product = vgpu.device.cost.matmul_seconds(spec, 4096, 4096, 4096, "float16")
    assert values["matmul", "(4096, 4096) @ (4096, 4096) float16"] == pytest.approx(product)
    assert values["memory", "cuBLAS workspace"] == pytest.approx(spec.blas_workspace_bytes, rel=0.01)


def test_what_fails_is_told_and_the_rest_goes_on(shapes: vgpu.VirtualGPU) -> None:
    def fail() -> Any:
        raise RuntimeError("no such kernel\nand more")

    bad = workloads.Workload("matmul", "bad", fail)
    good = workloads.Workload("matmul", "good", lambda: lambda: torch.ones(8, device="cuda"), repeats=2)
    first, second = measure.measure([bad, good], rounds=1)
    assert first["error"] == "no such kernel"
    assert second["value"] > 0
    (row, _) = compare.compare({"entries": [second]}, {"entries": [first, second]})
    assert row.ratio is None
    assert "real: no such kernel" in row.note


def test_the_table_shows_ratios_medians_and_that_it_is_simulated(measured: dict[str, Any]) -> None:
    spec = vgpu.get_spec("T4")
    text = compare.text(spec, compare.compare(measured, measured), measured["machine"])
    assert text.startswith("Predicted (simulated by vgpu, T4) against measured (Tesla T4")
    assert "median error of kernel times  0.0%" in text
    assert "launch of x + 1, 8 elements" in text
    assert max(map(len, text.splitlines()[1:])) <= 100


def test_the_document_is_complete_and_json(measured: dict[str, Any]) -> None:
    document = json.loads(json.dumps(compare.document(vgpu.get_spec("T4"), measured, measured)))
    assert document["schema"] == 1
    assert "simulated" in document["note"]
    assert document["machine"]["gpu"] == "Tesla T4"
    assert {"python", "torch", "cuda", "driver", "memory_bytes"} <= set(document["machine"])
    assert {"group", "name", "unit", "predicted", "measured", "ratio", "spread_ratio", "note"} == set(
        document["rows"][0]
    )
    assert document["measured"] == measured


@pytest.mark.parametrize(
    ("name", "gibibytes", "expected"),
    [
        ("Tesla T4", 15, "T4"),
        ("NVIDIA A100-SXM4-40GB", 39, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 79, "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", 79, "H100"),
        ("NVIDIA H200", 140, "H200"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090"),
        ("NVIDIA GeForce RTX 3090", 24, None),
        ("Tesla V100-SXM2-16GB", 16, "V100"),
        ("NVIDIA A10G", 22, "A10G"),
        ("NVIDIA L40S", 45, None),
    ],
)
def test_a_real_gpu_is_matched_by_name(name: str, gibibytes: int, expected: str | None) -> None:
    spec = compare.match_spec(name, gibibytes << 30)
    assert (spec.name if spec is not None else None) == expected


def test_suggested_figures_predict_what_was_measured(tmp_path: Path) -> None:
    """A GPU slower than its spec: the suggestion must find the slower figures and load as a spec."""
    slow = tmp_path / "slow.toml"
    slow.write_text(
        '[gpu.slow]\nbase = "T4"\nbandwidth_efficiency_ratio = 0.6\nproduct_efficiency_ratio = 0.5\n'
        "launch_seconds = 9e-6\nminimum_kernel_seconds = 4e-6\npinned_bytes_per_second = 6e9\ncontext_seconds = 0.5\n"
    )
    names = (*_FEW[1:9], "(4096, 4096) @ (4096, 4096) float32")
    real, spec = _measured(str(slow), names), vgpu.get_spec("T4")
    text = suggest.toml(spec, compare.compare(_measured("T4", names), real), real)
    fitted = tmp_path / "fitted.toml"
    fitted.write_text(text)
    fitted_spec = vgpu.get_spec(fitted)
    assert fitted_spec.bandwidth_efficiency_ratio == pytest.approx(0.6, rel=0.01)
    assert fitted_spec.product_efficiency_ratio == pytest.approx(0.5, rel=0.02)
    assert fitted_spec.launch_seconds == pytest.approx(9e-6, rel=0.02)
    assert fitted_spec.minimum_kernel_seconds == pytest.approx(4e-6, rel=0.01)
    assert fitted_spec.pinned_bytes_per_second == pytest.approx(6e9, rel=0.02)
    assert fitted_spec.context_seconds == pytest.approx(0.5, rel=0.01)
    assert fitted_spec.sources["launch_seconds"].startswith("measured")
    rows = compare.compare(_measured(fitted_spec, names), real)
    assert compare.medians(rows)["kernel times"] < 0.02


def test_a_spec_of_ones_own_cannot_be_a_base(tmp_path: Path, measured: dict[str, Any]) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[gpu.own]\nbase = "T4"\n')
    with pytest.raises(ValueError, match="spec of your own"):
        suggest.toml(vgpu.get_spec(own), [], measured)


def test_an_earlier_measurement_is_compared_without_a_gpu(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure_apart", lambda *options: measured)
    earlier, result = tmp_path / "earlier.json", tmp_path / "result.json"
    earlier.write_text(json.dumps({"measured": measured}))
    assert command.main(["--measured", str(earlier), "--suggest", "--json", str(result)]) == 0
    shown = capsys.readouterr().out
    assert "median error of memory" in shown
    assert "[gpu.T4-measured]" in shown
    assert json.loads(result.read_text())["spec"] == "T4"


def test_a_file_without_a_measurement_is_a_short_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nothing.json").write_text("[]")
    assert command.main(["--measured", str(tmp_path / "nothing.json")]) == 2
    assert "holds no measurement" in capsys.readouterr().err


def test_the_resnet_is_the_published_one() -> None:  # torchvision.models.resnet18: 11 689 512 parameters
    assert sum(parameter.numel() for parameter in models.ResNet18().parameters()) == 11_689_512


def test_every_workload_has_a_name_of_its_own() -> None:
    names = [(workload.group, workload.name) for workload in workloads.workloads()]
    assert len(set(names)) == len(names)
    assert {group for group, _ in names} >= set(compare.KERNEL_GROUPS) | {"transfer", "host", "training step"}
    # What waits behind the spinning kernel must fit the launch queue.
    assert all(workload.repeats <= 500 for workload in workloads.workloads() if workload.clock == "device")


@pytest.mark.night
def test_the_host_alone_gives_a_file_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that launches half as fast as a T4's usual one, played by a virtual GPU."""
    slow = dataclasses.replace(vgpu.get_spec("T4"), launch_seconds=2 * vgpu.get_spec("T4").launch_seconds)
    with vgpu.attach(slow, values=False):
        assert command.main(["--host"]) == 0
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 1
    path = tmp_path / "here.toml"
    path.write_text(output, encoding="utf-8")
    here = vgpu.get_spec(path)
    assert here.launch_seconds == pytest.approx(slow.launch_seconds, rel=0.15)
    assert here.multiprocessors == slow.multiprocessors


def test_the_host_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--host"]) == 2
    assert "needs a real NVIDIA GPU" in capsys.readouterr().err
