"""What submissions run on, in the processes that they run in."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ASKS = textwrap.dedent("""
    import os, timeit, torch
    from torch.utils.benchmark.utils import timer
    from grader.shared import devices

    torch.cuda._is_compiled = lambda: True
    torch._C._cuda_getDeviceCount = lambda: 1 / 0  # starts CUDA, and a thread of its
    torch._C._cuda_isDriverSufficient = lambda: True
    devices.before_imports()
    print(torch.cuda.is_available(), torch.cuda.device_count())
    devices._show_gpus()
    print(os.environ.get("CUDA_VISIBLE_DEVICES"))

    waited = []
    torch.accelerator.synchronize = lambda: waited.append(1)
    start, plain = timer.Timer.__init__, timeit.default_timer  # as 2.11 has it where no GPU was found
    start.__defaults__ = tuple(plain if one is timer.timer else one for one in start.__defaults__)
    timer.timer = plain
    devices._wait_in_timers()
    timer.Timer("1", globals={}).timeit(3)
    print(len(waited) > 1)
""")
_LEAVES = textwrap.dedent("""
    import os, sys, torch.distributed as dist
    from torch import nn
    from grader.shared import devices

    def threads_after(name):
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{name}", rank=0, world_size=1)
        replica = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        dist.destroy_process_group()
        del replica  # after its group, whose last owner it is
        return len(os.listdir("/proc/self/task"))

    threads_after("first")  # what starts but once
    before = threads_after("before")
    with devices.attach(sys.argv[2], values=True, ranks=1, prepared=None, line=None):
        print(before, threads_after("attached"), threads_after("again"))
""")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads by /proc")
@pytest.mark.night
@pytest.mark.parametrize("device", ["cpu", "vgpu:T4"])
def test_a_process_group_does_not_end_with_the_last_that_holds_it(device: str, tmp_path: Path) -> None:
    """Its end waits for its threads, and hung now and then where that was a DistributedDataParallel's doing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _LEAVES, str(tmp_path), device],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    before, attached, again = map(int, ran.stdout.split())
    assert before < attached < again, "threads of gloo"


@pytest.mark.night
@pytest.mark.parametrize("visible", [None, "3"])
def test_the_server_opens_no_gpu_and_hands_on_which_are_visible(visible: str | None) -> None:
    """PyTorch 2.11's `torch.utils.benchmark` asks for a GPU when it is imported: on an H100 nothing could be graded."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    ran = subprocess.run([sys.executable, "-c", _ASKS], capture_output=True, text=True, env=environment, check=False)
    assert ran.stdout.splitlines() == ["False 0", str(visible), "True"], ran.stderr
