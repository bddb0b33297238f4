"""CUDA_VISIBLE_DEVICES, set by the program itself: it counts until CUDA is first used, and not afterwards."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vgpu
from vgpu.runtime import children, visible_devices
from vgpu.torch_integration.patches.cuda import properties

VARIABLE = "CUDA_VISIBLE_DEVICES"
UUID = "GPU-00000000-0000-0000-0000-76677075000"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[vgpu.VirtualGPU, ...]]:
    """Four T4, attached while the variable is not set."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with vgpu.attach("T4", gpus=4) as first:
        yield first.machine.gpus


def numbers() -> list[int]:
    """The numbers on the computer of the GPUs that the program sees, by the last letter of their UUIDs."""
    return [int(str(torch.cuda.get_device_properties(index).uuid)[-1]) for index in range(torch.cuda.device_count())]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("2", [2]), ("3,1", [3, 1]), ("1,0,2,3", [1, 0, 2, 3]), ("0,7,1", [0]), ("1gpu,3", [1, 3]), (" 1 , 2", [1, 2]),
        (f"{UUID}2,{UUID}0", [2, 0]), ("0,1,2,3", [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_it_counts_before_the_first_use(
    gpus: object, monkeypatch: pytest.MonkeyPatch, text: str, seen: list[int]
) -> None:
    """CUDA C++ Programming Guide, "CUDA Environment Variables"; torch/cuda/__init__.py, `device_count`."""
    assert torch.cuda.device_count() == 4  # asking decides nothing
    monkeypatch.setenv(VARIABLE, text)
    assert torch.cuda.device_count() == len(seen)
    torch.ones(1, device="cuda")
    assert numbers() == seen
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.ones(1, device=f"cuda:{len(seen)}")


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "1,1", "9", f"{UUID[:-2]}"])
def test_a_program_may_hide_every_gpu(gpus: object, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """CUDA C++ Programming Guide, "CUDA Environment Variables": nothing behind an invalid or doubled entry is seen."""
    monkeypatch.setenv(VARIABLE, text)
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    for use in (
        lambda: torch.ones(1, device="cuda"), lambda: torch.ones(1).cuda(), torch.cuda.current_device,
        lambda: torch.ones(1).to("cuda:1"), torch.cuda.init,
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            use()


@pytest.mark.parametrize("first", [torch.cuda.is_available, lambda: torch.ones(1, device="cuda"), torch.cuda.init])
def test_it_does_not_count_afterwards(gpus: object, monkeypatch: pytest.MonkeyPatch, first: object) -> None:
    """`is_available` asks the driver, which reads the variable then (torch/cuda/__init__.py)."""
    assert callable(first)
    first()
    monkeypatch.setenv(VARIABLE, "1")
    assert torch.ones(1, device="cuda:3").device.index == 3
    assert numbers() == [0, 1, 2, 3]


def test_what_it_was_at_attach_concerns_the_computers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer's GPUs are hidden to simulate others."""
    monkeypatch.setenv(VARIABLE, "")
    with vgpu.attach("T4", gpus=2):
        assert torch.cuda.is_available()
        assert numbers() == [0, 1]


def test_nvml_sees_what_a_program_hides(gpus: tuple[vgpu.VirtualGPU, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's numbers are those of the computer (nvml-api, "nvmlDeviceGetHandleByIndex")."""
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setenv(VARIABLE, "2")
    torch.ones(1 << 20, device="cuda")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 4
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
    used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
    assert [use > min(used) for use in used] == [False, False, True, False]
    assert str(pynvml.nvmlDeviceGetUUID(handles[2]))[-1] == "2"
    assert properties(gpus[0]).pci_device_id == 6


def test_a_child_gets_what_its_parent_set(gpus: tuple[vgpu.VirtualGPU, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child asks the driver anew: a launcher sets the variable for each of its workers."""
    monkeypatch.setenv(VARIABLE, "1,3")
    torch.ones(1, device="cuda")
    monkeypatch.setattr(visible_devices, "_inherited", [])
    description = children.describe(gpus[0].machine)
    visible_devices.inherit(description["visible"])
    arguments = children.rebuild(description)
    monkeypatch.setenv(VARIABLE, "0,2,3")
    with vgpu.attach(**arguments):
        assert numbers() == [0, 2, 3]
    monkeypatch.delenv(VARIABLE)
    with vgpu.attach(**arguments):
        assert numbers() == [0, 1, 2, 3]


@pytest.mark.night
def test_programs_that_a_program_starts_get_its_choice(tmp_path: Path) -> None:
    import subprocess

    child = "import torch; print(torch.cuda.device_count())"
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import os, subprocess, sys
            environment = dict(os.environ, {VARIABLE}="1,2")
            subprocess.run([sys.executable, "-c", {child!r}], env=environment, check=True)
        """),
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "vgpu", "--gpus", "3", str(program)]
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert ended.stdout.split() == ["2"]
