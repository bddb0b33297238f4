"""Attaching and leaving: every patch undone, clear errors, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import timeit
from pathlib import Path

import pytest
import torch

import vgpu


def _snapshot() -> dict[str, object]:
    import torch.autograd.profiler
    import torch.utils._foreach_utils

    places = {
        "time": time, "timeit": timeit, "torch": torch, "torch.cuda": torch.cuda, "torch._C": torch._C,
        "torch.cuda.memory": torch.cuda.memory, "torch.profiler": torch.profiler, "torch._tensor": torch._tensor,
        "torch.autograd.profiler": torch.autograd.profiler, "torch.overrides": torch.overrides,
        "torch.nn.functional": torch.nn.functional, "foreach": torch.utils._foreach_utils,
        "torch.accelerator": torch.accelerator, "torch.Module": torch.nn.Module, "Thread": threading.Thread,
        "Event": threading.Event, "Condition": threading.Condition, "storage": torch.storage._StorageBase,
    }  # fmt: skip
    return {f"{place}.{name}": value for place, owner in places.items() for name, value in vars(owner).items()}


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names whose object is another one (names that torch adds lazily by itself do not count)."""
    return [name for name, value in before.items() if name in after and after[name] is not value and "__" not in name]


def test_leaving_puts_everything_back() -> None:
    before = _snapshot()
    with vgpu.attach("T4"):
        assert _changed(before, _snapshot())
        torch.nn.Linear(2, 2).cuda()
    assert _changed(before, _snapshot()) == []
    assert not torch.cuda.is_available()


def test_an_exception_puts_everything_back_too() -> None:
    before = _snapshot()
    with pytest.raises(KeyError), vgpu.attach("T4", values=False):
        raise KeyError
    assert _changed(before, _snapshot()) == []
    assert vgpu.current() is None


def test_afterwards_tensors_are_ordinary_cpu_tensors() -> None:
    with vgpu.attach("T4"):
        x = torch.ones(2, device="cuda")
    assert x.device.type == "cpu"
    assert (x + 1).tolist() == [2.0, 2.0]


def test_attaching_again_starts_afresh() -> None:
    for _ in range(2):
        with vgpu.attach("T4") as gpu:
            assert torch.cuda.memory_allocated() == 0
            assert gpu.now() == 0
            _x = torch.ones(10, device="cuda")


def test_after_one_inside_another_everything_is_replaced_again() -> None:
    def bound_by_name() -> tuple[object, ...]:
        with vgpu.attach("T4"):
            elsewhere = vars(torch.random)["Generator"]
            return torch.Generator(device="cuda").device, elsewhere, torch.cuda.is_available()

    before = bound_by_name()
    with vgpu.attach("T4"), vgpu.attach("H100"):
        pass
    assert bound_by_name() == before


def test_a_default_device_of_cuda_does_not_outlive_the_gpu() -> None:
    with vgpu.attach("T4"):
        torch.set_default_device("cuda")
    assert torch.zeros(1).device.type == "cpu"


def test_attaching_imports_nothing_heavy() -> None:
    code = (
        "import torch, sys, vgpu.torch_integration.attach\n"
        "with vgpu.attach('T4'): torch.ones(2, device='cuda') + 1; loaded = set(sys.modules)\n"
        "sys.exit(bool(loaded & {'torch._dynamo', 'torchvision'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.night
def test_a_refusal_imported_by_name_while_attached_is_undone(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import vgpu\n"
        "with vgpu.attach('T4'):\n"
        "    from torch.nn.attention.bias import causal_lower_right\n"
        "    try: causal_lower_right(2, 3)\n"
        "    except vgpu.Unsupported: print('refused')\n"
        "print(causal_lower_right(2, 3).variant.name)"
    )
    paths = {**os.environ, "PYTHONPATH": str(Path(vgpu.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], env=paths, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\nLOWER_RIGHT\n", done.stderr
