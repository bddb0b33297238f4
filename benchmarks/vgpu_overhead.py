"""What the virtual GPU costs per operation in real time, compared with a plain CPU and fake tensors.

All four do the same work in one thread, in interleaved rounds; measured is CPU time, which a busy machine changes
least. Fake tensors (`torch._subclasses.FakeTensorMode`) are PyTorch's own way to run a program on shapes; they know
devices, but neither memory nor time.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import vgpu
from benchmarks.measure import load, save

ROUNDS = 7
# Long enough for a steady figure, short enough that a round of everything takes seconds.
SECONDS_PER_MEASUREMENT = 0.1
REFERENCE = "cpu"
# Inside `attach` the functions of `time` show virtual time, under whatever name a module has bound them; not here.
REAL = {"cpu_seconds": time.thread_time}

Work = Callable[[], object]


@contextlib.contextmanager
def _plain() -> Iterator[str]:
    yield "cpu"


@contextlib.contextmanager
def _fake() -> Iterator[str]:
    with FakeTensorMode():
        yield "cpu"


@contextlib.contextmanager
def _virtual(*, values: bool) -> Iterator[str]:
    with vgpu.attach("T4", values=values, force=True):
        yield "cuda"


ENVIRONMENTS: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    REFERENCE: _plain,
    "vgpu_values": lambda: _virtual(values=True),
    "vgpu_shapes_only": lambda: _virtual(values=False),
    "fake_tensors": _fake,
}


def _add(device: str) -> Work:
    x = torch.zeros(8, device=device)
    return lambda: x.add_(1)


def _mm(device: str) -> Work:
    x = torch.zeros(8, 8, device=device)
    return lambda: torch.mm(x, x)


def _view(device: str) -> Work:
    x = torch.zeros(8, 8, device=device)
    return lambda: x.view(4, 16)


def _linear(device: str) -> Work:
    layer, x = nn.Linear(8, 8, device=device), torch.zeros(8, 8, device=device)

    def run() -> None:
        layer.zero_grad()
        layer(x).sum().backward()

    return run


def _adam(device: str) -> Work:
    parameters = [nn.Parameter(torch.zeros(8, device=device)) for _ in range(100)]
    for parameter in parameters:
        parameter.grad = torch.zeros(8, device=device)
    return torch.optim.Adam(parameters, foreach=True).step


def _training_step(device: str) -> Work:
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    inputs, labels = torch.zeros(32, 64, device=device), torch.zeros(32, dtype=torch.int64, device=device)

    def run() -> None:
        optimizer.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    return run


WORKLOADS: dict[str, Callable[[str], Work]] = {
    "add_ of 8 elements": _add,
    "mm 8 x 8": _mm,
    "view 8 x 8": _view,
    "linear 8 x 8 forward, sum, backward": _linear,
    "Adam step (foreach) of 100 parameters": _adam,
    "training step of a 3-layer MLP with Adam": _training_step,
}


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations_per_call(make: Callable[[str], Work]) -> int:
    """ATen operations that one call dispatches on the CPU."""
    work = make("cpu")
    work()
    counter = _Counter()  # type: ignore[no-untyped-call]
    with counter:
        work()
    return counter.count


def seconds_per_call(environment: str, make: Callable[[str], Work]) -> float:
    """CPU seconds per call, warmed up, in a fresh environment."""
    now = REAL["cpu_seconds"]
    with ENVIRONMENTS[environment]() as device:
        work = make(device)
        for _ in range(3):
            work()
        start = now()
        work()
        calls = max(int(SECONDS_PER_MEASUREMENT / max(now() - start, 1e-6)), 1)
        start = now()
        for _ in range(calls):
            work()
        return (now() - start) / calls


def main() -> Path:
    """Measure everything and save microseconds."""
    torch.set_num_threads(1)
    seconds: dict[str, dict[str, list[float]]] = {
        name: {environment: [] for environment in ENVIRONMENTS} for name in WORKLOADS
    }
    before = load()
    for _ in range(ROUNDS):
        for name, make in WORKLOADS.items():
            for environment in ENVIRONMENTS:
                seconds[name][environment].append(seconds_per_call(environment, make))
    return save(
        "vgpu_overhead",
        {
            "what": "CPU microseconds per call of the same work on four kinds of tensors, interleaved rounds",
            "load_average": {"before": before, "after": load()},
            "rounds": ROUNDS,
            "results": {name: _describe(operations_per_call(WORKLOADS[name]), of) for name, of in seconds.items()},
        },
    )


def _describe(operations: int, seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    base = statistics.median(seconds[REFERENCE])
    described: dict[str, Any] = {"operations_per_call": operations}
    for name, values in seconds.items():
        median = statistics.median(values)
        described[name] = {
            "median_microseconds": round(median * 1e6, 2),
            "min_microseconds": round(min(values) * 1e6, 2),
            "max_microseconds": round(max(values) * 1e6, 2),
            f"ratio_to_{REFERENCE}": round(median / base, 2),
            "microseconds_above_cpu_per_operation": round((median - base) / operations * 1e6, 2),
        }
    return described


if __name__ == "__main__":
    print(main())
