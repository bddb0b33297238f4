"""The short way of operations gives what the long way gives: values, times, memory, errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import vgpu

torch = pytest.importorskip("torch")
from vgpu.torch_integration.dispatch import repeats  # noqa: E402


def _tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.arange(1, 10, dtype=torch.float32).view(3, 3)
    return values.to(dtype).cuda(), (values.T / 4).to(dtype).cuda()


def arithmetic() -> Any:
    x, y = _tensors()
    results = []
    for _ in range(3):
        x.add_(1).mul_(y).sub_(y, alpha=2)
        results += [
            x + y,
            x * x,
            x - 2.5,
            2 * x,
            x / y,
            x > y,
            torch.relu(x - 9),
            -x,
            x.exp(),
            torch.where(x > y, x, y),
        ]
        results += [
            x * y,
            x.T * y.T,
            x.T * y,
            x.T * 2,
            x * 2,
            x + y[0],
            x * y[:, :1],
            x[0] + 1,
            torch.addcmul(x, y, y, value=3),
            torch.maximum(x, y),
        ]
    return results


def promoted() -> Any:
    """The same shapes and dtypes, and results of another dtype."""
    x = torch.arange(4, device="cuda")
    results = []
    for _ in range(2):
        results += [x * 2, x * 2.5, x * True, x + 1j, x / 2, x * torch.tensor(2.0, device="cuda")]
        torch.set_default_dtype(torch.float64)
        results += [x * 2.5]
        torch.set_default_dtype(torch.float32)
    return results


def products() -> Any:
    x, y = _tensors()
    results = []
    for _ in range(3):
        results += [x @ y, x @ x, x @ y.T, torch.addmm(x[0], x, y), torch.addmm(x[0], x, y, beta=0.5), y[::2].T @ x[:2]]
        results += [torch.bmm(x[None], y[None]), torch.mv(x, y[0]), torch.dot(x[0], y[0])]
    return results


def switched_products() -> Any:
    x, y = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).cuda(), torch.ones(40, 40, device="cuda") / 3
    results = []
    for allowed in (False, True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        results += [x @ y, x @ y]
    torch.backends.cuda.matmul.allow_tf32 = False
    return results


def half_precision() -> Any:
    x, y = _tensors(torch.float16)
    results = []
    for _ in range(2):
        results += [x + y, x * 3, x @ y, torch.relu(x), x.float() @ y.float()]
        with torch.autocast("cuda", torch.float16):
            results += [x.float() @ y.float(), torch.relu(x)]
    return results


def copies_and_fills() -> Any:
    x, y = _tensors()
    whole, results = torch.zeros(3, 3, dtype=torch.int32, device="cuda"), []
    for factor in (1.0, 1e12, float("nan")):
        whole.copy_(x * factor)
        x.copy_(y)
        x[0].fill_(3)
        results += [whole.clone(), x.clone(), x.t().contiguous(), x.zero_().clone()]
    return results


def divided_by_zero() -> Any:
    x, zero = torch.arange(-2, 3, device="cuda"), torch.zeros(5, dtype=torch.int64, device="cuda")
    one = zero + 1
    return [x // one, x // one, x // zero, x // zero, x % zero, x // one]


def refused() -> Any:
    """The same error again, and the sound call after it."""
    x, y = torch.zeros(3, device="cuda"), torch.zeros(4, device="cuda")
    half, _ = x.half().fill_(1), [x**2.0, x**2.0]
    whole = torch.zeros(3, 3, dtype=torch.int64, device="cuda")
    texts = []
    for call in (
        lambda: x + y, lambda: x.add_(x), lambda: x.add_(y), lambda: whole @ whole, lambda: half.fill_(1e6),
        lambda: x**1e300, lambda: whole.add_(0.5), lambda: x.view(2), lambda: x + torch.zeros(3), lambda: x.view(3, 1),
    ):  # fmt: skip
        for _ in range(3):
            try:
                call()
                texts.append("")
            except (RuntimeError, NotImplementedError) as error:
                texts.append(f"{type(error).__name__}: {error}")
    return texts


def training() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, foreach=False)
    data, labels = torch.rand(6, 8).cuda(), torch.arange(6).cuda() % 4
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(layer[:2], data, use_reentrant=False)
        loss = torch.nn.functional.cross_entropy(layer[2](hidden) + layer(data), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *layer.parameters(), torch.cuda.max_memory_allocated()]


def sums_of_gradients() -> Any:
    """The first of two gradients takes the sum, so that no memory is needed for it."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    gradients = []
    for _ in range(3):
        y = x * 2
        (y.exp() + y.sin()).sum().backward()
        gradients.append(x.grad.clone())
    return gradients


def on_streams() -> Any:
    x, y = _tensors()
    results = [x * y]
    side = torch.cuda.Stream()
    results += [x * y]
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        results += [x * y, x.add_(1)]
    torch.cuda.default_stream().wait_stream(side)
    return [*results, x * y]


def graphs() -> Any:
    x, y = _tensors()
    x * y
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x * y
        z.add_(1)
    x.add_(1)
    graph.replay()
    return [z, x * y]


def profiled() -> Any:
    x, y = _tensors()
    x * y
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        x * y
        x.view(9)
    x * y
    return sorted(row.key for row in profile.key_averages())


def transforms() -> Any:
    x, y = _tensors()
    x * y
    batched = torch.func.vmap(lambda a, b: (a * b).exp() @ b)(x, y)
    gradient = torch.func.grad(lambda a: (a * y).sum())(x)
    with torch.inference_mode():
        inferred = [x * y, x @ y, x.view(9)]
    return [batched, gradient, *inferred, torch.func.functional_call(torch.nn.ReLU(), {}, (x,))]


def of_one_dimension_and_none() -> Any:
    x, results = torch.arange(3.0, device="cuda"), []
    for _ in range(2):
        results += [x[0] * x[1], x * x[2], x[0] + 1, x[:0] * 2, torch.tensor(2.0) * x, x.expand(3, 3) * x, x.T]
        results += [*x.unbind(), *x.split(2), x.real, x.view(torch.int32), x[None].transpose(0, 1)]
    return results


PROGRAMS: list[Callable[[], Any]] = [
    arithmetic, promoted, products, switched_products, half_precision, copies_and_fills, divided_by_zero, refused,
    training, sums_of_gradients, on_streams, graphs, profiled, transforms, of_one_dimension_and_none,
]  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return str(value.dtype), tuple(value.shape), value.stride(), repr(value.tolist())
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _record(program: Callable[[], Any], card: str, *, values: bool) -> dict[str, Any]:
    with vgpu.attach(card, values=values) as gpu, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = program()
        torch.cuda.synchronize()
        shown = [item.cpu() if isinstance(item, torch.Tensor) else item for item in result]
        return {
            "results": _plain(shown),
            "layouts": [item.stride() for item in result if isinstance(item, torch.Tensor)],
            "kernels": list(gpu.timeline),
            "memory": list(gpu.memory_timeline),
            "categories": gpu.category_timeline,
            "statistics": dict(torch.cuda.memory_stats()),
            "seconds": gpu.now(),
            "host": gpu.clock.spans,
        }


@pytest.mark.parametrize("values", [True, False], ids=["values", "shapes-only"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_ways_are_the_same(program: Callable[[], Any], values: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    short = _record(program, "A100-80GB", values=values)
    monkeypatch.setattr(repeats, "run", lambda *arguments: NotImplemented)
    long = _record(program, "A100-80GB", values=values)
    for part, recorded in long.items():
        assert short[part] == recorded, part


def test_a_repeated_call_goes_the_short_way(gpu: vgpu.VirtualGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 3, device="cuda")
    calls = (lambda: x.add_(1), lambda: x * x, lambda: x @ x, lambda: x.view(9), lambda: x.sub_(x, alpha=2.0))
    for call in calls * 2:  # the first call of an operation looks up what it is, the next one which kernel it launches
        call()
    from vgpu.torch_integration.dispatch.dispatch_mode import DispatchMode

    def fail(*arguments: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(DispatchMode, "run", fail)
    for call in calls:
        call()
    with pytest.raises(AssertionError, match="the long way"):
        x + x
