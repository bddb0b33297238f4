"""Workers of torchrun and children of `multiprocessing` get virtual GPUs of their own.

Expectations: PyTorch's documentation of torchrun and its note on multiprocessing with CUDA. Every program here really
runs, in processes with a time limit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vgpu
from vgpu.runtime import children
from vgpu.tools import launch

_LIMIT_REAL_SECONDS = 120
_ROOT = Path(__file__).parents[2]

_TRAIN = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
tensor = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(tensor)
name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
# One write: the workers share a pipe, and `print` writes an unbuffered line and its end one after the other.
sys.stdout.write(f"result {rank} {tensor.tolist()} {name} {count} {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""

_SPAWN = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # also when a child imports this file

def work(rank, address):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)
    tensor = torch.full((4,), rank + 1.0, device=DEVICE)
    dist.all_reduce(tensor)
    print(f"result {rank} {tensor.tolist()} {tensor.device}\\n", end="", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    method, address = sys.argv[1:]
    mp.start_processes(work, args=(address,), nprocs=2, start_method=method)
"""

_FORKS = """
import multiprocessing, torch
from torch.utils.data import DataLoader, TensorDataset
context = multiprocessing.get_context("fork")

def on_gpu(queue):
    try:
        queue.put(torch.ones(2, device="cuda").sum().item())
    except Exception as error:
        queue.put(str(error))

def child():
    queue = context.SimpleQueue()
    process = context.Process(target=on_gpu, args=(queue,))
    process.start()
    answer = queue.get()
    process.join()
    return answer

print("before:", child())
torch.ones(2, device="cuda")
print("after:", child())
loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, num_workers=1, multiprocessing_context="fork")
print("loaded:", sum(batch.cuda().sum().item() for (batch,) in loader))
"""


def _run(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m vgpu OPTIONS program.py ARGUMENTS`; the word "@" stands for the program's file."""
    script = folder / "program.py"
    script.write_text(program)
    command = [sys.executable, "-m", "vgpu", *[str(script) if word == "@" else word for word in words]]
    return subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_REAL_SECONDS
    )  # fmt: skip


def _results(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("result"))


@pytest.mark.night
def test_torchrun_gives_each_worker_the_machine(tmp_path: Path) -> None:
    done = _run(
        tmp_path, _TRAIN, "--gpu", "A100-80GB", "--gpus", "2", "torchrun", "--standalone", "--nproc-per-node", "gpu",
        "@", "--epochs", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = "NVIDIA A100-SXM4-80GB"
    assert _results(done.stdout) == [
        f"result {rank} [3.0, 3.0, 3.0, 3.0] {name} 2 ['--epochs', '3']" for rank in (0, 1)
    ]
    # Anywhere in a line: the processes share one stream.
    assert sorted(re.findall(r"\[vgpu\] (rank \d of 2): simulated", done.stderr)) == ["rank 0 of 2", "rank 1 of 2"], (
        done.stderr
    )


@pytest.mark.night
def test_a_failing_worker_fails_torchrun(tmp_path: Path) -> None:
    done = _run(tmp_path, "raise ValueError('on purpose')", "-m", "torch.distributed.run", "--nproc-per-node=1", "@")
    assert done.returncode == 1
    assert "on purpose" in done.stderr


@pytest.mark.night
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_attach_by_themselves(tmp_path: Path, method: str) -> None:
    done = _run(tmp_path, _SPAWN, "--gpus", "2", "@", method, (tmp_path / "store").as_uri())
    assert done.returncode == 0, done.stderr
    assert _results(done.stdout) == [f"result {rank} [3.0, 3.0, 3.0, 3.0] cuda:{rank}" for rank in (0, 1)]
    assert "[vgpu] rank 0 of 2: simulated" in done.stderr
    assert "[vgpu] rank 1 of 2: simulated" in done.stderr


@pytest.mark.night
def test_a_forked_child_may_use_the_gpu_only_if_its_parent_has_not(tmp_path: Path) -> None:
    done = _run(tmp_path, _FORKS, "@")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "before: 2.0",
        "after: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
        "'spawn' start method",
        "loaded: 6.0",
    ]


def test_a_machine_survives_its_description(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[gpu.Mine]\nbase = "H100"\ninterconnect = "wire"\n'
        '[interconnect.wire]\ntitle = "a wire"\nbandwidth_bytes_per_second = 1e6\nlatency_seconds = 1e-3\n'
    )
    with vgpu.attach(path, gpus=3, values=False) as gpu:
        arguments = children.rebuild(eval(repr(children.describe(gpu.machine))))
        assert arguments["spec"] == gpu.spec
        assert arguments["interconnect"] == gpu.machine.interconnect
    assert (arguments["gpus"], arguments["values"]) == (3, False)


def test_launchers_are_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch.is_launcher("torchrun", module=False)
    assert launch.is_launcher("torch.distributed.run", module=True)
    assert not launch.is_launcher("train.py", module=False)
    (tmp_path / "torchrun").touch()
    assert not launch.is_launcher("torchrun", module=False)  # a script of that name comes first
