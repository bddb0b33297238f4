"""The choice of a device: the virtual GPU where there is no real one, clear errors, and Lab 1's programs on it."""

import platform
from pathlib import Path

import pytest
import torch

import vgpu
from labkit import device as labkit_device
from labkit.device import DeviceError, is_simulated, open_device, record_of
from labkit.results import STAGES, Comparison, Environment, MemoryProfile, OperationTime, load_json
from solutions.lab1_gpu_basics import benchmark, environment, memory_profiling, profiler
from vgpu.runtime.memory import workspaces

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a real GPU")


@without_cuda
def test_auto_takes_the_virtual_gpu_where_there_is_no_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    with open_device() as device:
        assert (device.torch_device, device.name, device.simulated) == ("cuda", "Tesla T4", True)
        assert is_simulated()
    assert not is_simulated()
    assert capsys.readouterr().out == "device: virtual Tesla T4 (simulated)\n"


def test_the_model_can_be_named_in_any_case() -> None:
    with open_device("vgpu:a100-80gb", values=False) as device:
        assert device.name == "NVIDIA A100-SXM4-80GB"


def test_shapes_only_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with open_device("vgpu", values=False):
        pass
    assert "shapes only" in capsys.readouterr().out


def test_a_virtual_gpu_that_is_attached_already_is_used_and_left_attached(capsys: pytest.CaptureFixture[str]) -> None:
    with vgpu.attach("H100", values=False, force=True) as gpu:
        with open_device("auto") as device:
            assert device.name == gpu.spec.title
        assert is_simulated()
    assert "attached already" in capsys.readouterr().out


def test_a_second_virtual_gpu_is_refused() -> None:
    with (
        vgpu.attach("T4", values=False, force=True),
        pytest.raises(DeviceError, match="T4 is attached already"),
        open_device("vgpu:H100"),
    ):
        pass


def test_peak_figures_are_those_of_the_data_sheet() -> None:
    with open_device("vgpu:T4", values=False) as device:
        provenance = device.provenance()
    spec = vgpu.get_spec("T4")
    assert provenance.peak_tflops is not None
    assert provenance.peak_tflops["float32"] == spec.peak_flops["float32"] / 1e12
    assert provenance.bandwidth_bytes_per_second == spec.bandwidth_bytes_per_second
    assert provenance.launch_seconds == vgpu.device.cost.launch_seconds(spec, "product")
    assert (provenance.torch, provenance.python) == (torch.__version__, platform.python_version())


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H200", True), ("Quadro 9000", False)])
def test_a_real_gpu_has_peak_figures_if_its_name_is_known(
    name: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    with open_device("auto") as device:
        assert (device.name, device.simulated) == (name, False)
        assert (device.peaks is not None) == known


def test_the_cpu_has_no_peak_figures_and_is_not_simulated() -> None:
    with open_device("cpu") as device:
        assert (device.torch_device, device.simulated, device.peaks) == ("cpu", False, None)


@pytest.mark.parametrize("name", ["tpu", "", "cpu:0", "cuda:1"])
def test_an_unknown_device_lists_the_known_ones(name: str) -> None:
    with pytest.raises(DeviceError, match=labkit_device.CHOICES), open_device(name):
        pass


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=r"vgpu:GTX.*T4"), open_device("vgpu:GTX"):
        pass


@without_cuda
def test_cuda_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(DeviceError, match="--device vgpu"), open_device("cuda"):
        pass


def test_the_benchmark_on_a_virtual_gpu_equals_its_cost_model(tmp_path: Path) -> None:
    assert benchmark.main(["--device", "vgpu:T4", "--sizes", "64,1001", "--out", str(tmp_path)]) == 0
    saved = load_json(tmp_path / "benchmark.json", Comparison)
    assert [result.size for result in saved.results] == [64, 1001]
    assert saved.provenance.simulated
    spec = vgpu.get_spec("T4")
    odd = saved.results[1]
    assert odd.gpu.seconds == pytest.approx(vgpu.device.cost.matmul_seconds(spec, 1001, 1001, 1001), rel=0.02)
    assert odd.cpu.seconds == pytest.approx(vgpu.device.cost.cpu_matmul_seconds(spec, 1001, 1001, 1001), rel=0.02)
    assert (tmp_path / "speedup.png").is_file()


def test_memory_on_a_virtual_gpu_equals_the_bytes_counted_by_hand() -> None:
    def create_model() -> torch.nn.Module:
        return torch.nn.Linear(1024, 512, bias=False)  # 2 MiB

    def create_batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(256, 1024), torch.randint(0, 512, (256,))  # 1 MiB, 2 KiB

    with open_device("vgpu:T4", values=False):
        profile = memory_profiling.profile_training_memory(create_model, create_batch)
        # From PyTorch 2.15 on cuBLAS gives its workspace back after each product.
        workspace = vgpu.get_spec("T4").blas_workspace_bytes if workspaces.are_cached() else 0
    added = memory_profiling.stage_increases(profile)
    kibibyte = 1024
    model = 2048 * kibibyte
    assert tuple(added) == STAGES
    assert (added["baseline"], added["model"]) == (0, model)
    assert added["forward"] == (1024 + 2 + 512) * kibibyte + workspace  # inputs, targets, output
    assert added["step"] == 2 * model  # two averages; the count of steps stays on the CPU
    assert added["zero_grad"] == -model
    reserved = [stage.reserved_bytes for stage in profile.stages]
    assert all(held % 2**20 == 0 for held in reserved)
    assert all(
        stage.allocated_bytes <= stage.peak_bytes <= held for stage, held in zip(profile.stages, reserved, strict=True)
    )


def test_each_peak_is_that_of_its_own_stage() -> None:
    with open_device("vgpu:T4", values=False):
        wide = lambda: torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.Linear(4096, 8))  # noqa: E731
        profile = memory_profiling.profile_training_memory(
            wide, lambda: (torch.randn(4096, 8), torch.randint(0, 8, (4096,)))
        )
    peaks = {stage.stage: stage.peak_bytes for stage in profile.stages}
    assert peaks["backward"] > peaks["step"], "backward's peak must not stay until the step"


def test_memory_program_writes_both_precisions(tmp_path: Path) -> None:
    assert memory_profiling.main(["--device", "vgpu", "--out", str(tmp_path)]) == 0
    single, half = load_json(tmp_path / "memory.json", MemoryProfile).results
    assert (single.dtype, half.dtype) == ("float32", "float16")
    grown = [memory_profiling.stage_increases(profile)["model"] for profile in (single, half)]
    assert grown[0] == pytest.approx(2 * grown[1], rel=1e-3)
    assert (tmp_path / "memory.png").is_file()


def test_memory_program_refuses_the_cpu() -> None:
    with pytest.raises(DeviceError, match="--device vgpu"):
        memory_profiling.main(["--device", "cpu"])


def test_the_profiler_program_finds_the_products(tmp_path: Path) -> None:
    assert profiler.main(["--device", "vgpu", "--steps", "2", "--out", str(tmp_path)]) == 0
    operations = load_json(tmp_path / "operations.json", OperationTime).results
    assert (operations[0].name, operations[0].calls) == ("aten::mm", 10)
    names = [operation.name for operation in operations]
    assert len(set(names)) == len(names)
    assert not any("kernel" in name for name in names)


def test_the_environment_of_a_virtual_gpu_is_its_specification(tmp_path: Path) -> None:
    assert environment.main(["--device", "vgpu:H100", "--out", str(tmp_path)]) == 0
    (machine,) = load_json(tmp_path / "environment.json", Environment).results
    spec = vgpu.get_spec("H100")
    assert (machine.device, machine.device_name, machine.simulated) == ("cuda", spec.title, True)
    assert (machine.memory_bytes, machine.compute_capability) == (spec.memory_bytes, (9, 0))
    assert machine.driver is not None
    assert machine.driver.startswith(spec.driver_version)


def test_programs_with_several_processes_can_have_several_virtual_gpus() -> None:
    with open_device("vgpu", values=False, gpus=3):
        assert torch.cuda.device_count() == 3


def test_a_virtual_gpu_tells_what_it_did_and_no_other_does() -> None:
    assert record_of(0) is None
    with open_device("vgpu", gpus=2):
        before = len(record_of(1) or ())
        torch.ones(1 << 20, device="cuda:1").neg()
        record = (record_of(1) or [])[before:]
        assert record_of(0) == []
    assert [operation.name for operation in record][-1:] == ["aten::neg"]
    assert record[-1].bytes == 2 * 4 * (1 << 20)
    assert record[-1].end > record[-1].start
