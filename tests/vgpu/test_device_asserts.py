"""Device-side asserts: the call returns, the next one that waits raises, and so does all after that."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import vgpu

ASSERTED = "CUDA error: device-side assert triggered"
TOO_LARGE, NAN, INF = 5, float("nan"), float("inf")


def on_gpu(*values: Any, **options: Any) -> torch.Tensor:
    return torch.tensor(list(values), device="cuda", **options)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda")


FAIL: dict[str, tuple[str, Callable[[], Any]]] = {
    "index": ("IndexKernel.cu", lambda: zeros(3)[on_gpu(TOO_LARGE)]),
    "index, too far back": ("IndexKernel.cu", lambda: zeros(3)[on_gpu(-4)]),
    "index of rows": ("IndexKernel.cu", lambda: zeros(3, 2)[on_gpu(0, TOO_LARGE)]),
    "index_put": ("IndexKernel.cu", lambda: zeros(3).index_put_((on_gpu(TOO_LARGE),), zeros(1), accumulate=True)),
    "assignment": ("IndexKernel.cu", lambda: zeros(3).__setitem__(on_gpu(TOO_LARGE), 1.0)),
    "take": ("IndexKernel.cu", lambda: zeros(3).take(on_gpu(TOO_LARGE))),
    "put": ("IndexKernel.cu", lambda: zeros(3).put_(on_gpu(TOO_LARGE), zeros(1))),
    "gather": ("ScatterGatherKernel.cu", lambda: zeros(3).gather(0, on_gpu(-1))),
    "scatter": ("ScatterGatherKernel.cu", lambda: zeros(3).scatter_(0, on_gpu(TOO_LARGE), 1.0)),
    "scatter_add": ("ScatterGatherKernel.cu", lambda: zeros(3).scatter_add_(0, on_gpu(TOO_LARGE), zeros(1))),
    "scatter_reduce": (
        "ScatterGatherKernel.cu", lambda: zeros(3).scatter_reduce_(0, on_gpu(TOO_LARGE), zeros(1), "sum"),
    ),
    "one_hot": ("ScatterGatherKernel.cu", lambda: F.one_hot(on_gpu(TOO_LARGE), 3)),
    "index_select": ("Indexing.cu", lambda: zeros(3).index_select(0, on_gpu(TOO_LARGE))),
    "index_select of columns": ("Indexing.cu", lambda: zeros(3, 2).index_select(1, on_gpu(TOO_LARGE))),
    "index_add": ("Indexing.cu", lambda: zeros(3).index_add_(0, on_gpu(TOO_LARGE), zeros(1))),
    "index_add of rows": ("Indexing.cu", lambda: zeros(3, 2).index_add_(0, on_gpu(TOO_LARGE), zeros(1, 2))),
    "index_copy": ("IndexKernel.cu", lambda: zeros(3).index_copy_(0, on_gpu(TOO_LARGE), zeros(1))),
    "index_fill": ("IndexKernel.cu", lambda: zeros(3).index_fill_(0, on_gpu(TOO_LARGE), 1.0)),
    "embedding": ("Indexing.cu", lambda: F.embedding(on_gpu(-1), zeros(3, 2))),
    "embedding_bag": ("EmbeddingBag.cu", lambda: F.embedding_bag(on_gpu(TOO_LARGE), zeros(3, 2), on_gpu(0))),
    "embedding_bag of maxima": (
        "EmbeddingBag.cu", lambda: F.embedding_bag(on_gpu(TOO_LARGE), zeros(3, 2), on_gpu(0), mode="max"),
    ),
    "nll_loss": ("Loss.cu", lambda: F.nll_loss(zeros(2, 3), on_gpu(0, 3))),
    "nll_loss of pixels": ("NLLLoss2d.cu", lambda: F.nll_loss(zeros(1, 3, 1, 2), on_gpu(0, 3).view(1, 1, 2))),
    "multi_margin_loss": ("MultiMarginLoss.cu", lambda: F.multi_margin_loss(zeros(2, 3), on_gpu(0, 7))),
    "binary_cross_entropy": ("Loss.cu", lambda: F.binary_cross_entropy(on_gpu(1.5), on_gpu(1.0))),
    "its target": ("Loss.cu", lambda: F.binary_cross_entropy(on_gpu(0.5), on_gpu(2.0))),
    "binary_cross_entropy of NaN": ("Loss.cu", lambda: F.binary_cross_entropy(on_gpu(NAN), on_gpu(1.0))),
    "_assert_async": ("TensorCompare.cu", lambda: torch._assert_async(on_gpu(False))),
    "_assert_async with words": ("TensorCompare.cu", lambda: torch._assert_async(on_gpu(False), "words")),
    "max_unpool2d": ("MaxUnpooling.cu", lambda: F.max_unpool2d(zeros(1, 1, 1, 1), on_gpu(9).view(1, 1, 1, 1), [2, 2])),
    "bernoulli": ("DistributionBernoulli.cu", lambda: torch.bernoulli(on_gpu(1.5))),
    "bernoulli_ by shares": ("DistributionBernoulli.cu", lambda: zeros(2).bernoulli_(on_gpu(0.5, NAN))),
}  # fmt: skip


def check(call: Callable[[], Any], file: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The call returns; then the device's error comes, and stays."""
    call()
    capfd.readouterr()
    for wait in (torch.cuda.synchronize, lambda: zeros(1), lambda: torch.ones(1, device="cuda").item()):
        with pytest.raises(torch.AcceleratorError, match=ASSERTED) as raised:
            wait()
    assert getattr(raised.value, "error_code", None) == 710  # cudaErrorAssert
    printed = capfd.readouterr().err
    assert f"aten/src/ATen/native/cuda/{file}: " in printed
    assert printed.count("Assertion") == 1


def test_a_bad_value_is_found_at_the_next_call_that_waits(capfd: pytest.CaptureFixture[str]) -> None:
    for name, (file, call) in FAIL.items():
        with vgpu.attach("T4"):
            try:
                check(call, file, capfd)
            except (AssertionError, pytest.fail.Exception, RuntimeError, IndexError) as error:
                raise AssertionError(name) from error


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_of_no_distribution(capfd: pytest.CaptureFixture[str], replacement: bool) -> None:
    for shares in ([NAN, 2.0], [-1.0, 2.0], [INF, 1.0], [0.0, 0.0]):
        for samples in (1, 2) if replacement or shares != [0.0, 0.0] else (1,):
            file = "MultinomialKernel.cu" if samples > 1 and replacement else "TensorCompare.cu"
            for rows in (on_gpu, lambda *values: torch.tensor([[0.5, 0.5], values], device="cuda")):
                with vgpu.attach("T4"):
                    chosen = rows(*shares)
                    check(lambda: torch.multinomial(chosen, samples, replacement), file, capfd)  # noqa: B023


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: torch.multinomial(zeros(1).expand((1 << 24) + 1), 1), r"number of categories cannot exceed 2\^24"),
        (lambda: torch.repeat_interleave(zeros(2), on_gpu(-1, 2)), "repeats can not be negative"),
        (lambda: torch.bincount(on_gpu(-1)), "bincount only supports 1-d non-negative integral inputs."),
        (lambda: torch._assert_async(on_gpu(True, False)), "Boolean value of Tensor with more than one value"),
        (lambda: zeros(3)[TOO_LARGE], "index 5 is out of bounds for dimension 0 with size 3"),
    ],
)
def test_what_the_host_checks_is_refused_at_the_call(gpu: vgpu.VirtualGPU, call: Callable[[], Any], words: str) -> None:
    with pytest.raises((RuntimeError, IndexError), match=words):
        call()
    torch.cuda.synchronize()


def test_launch_blocking_raises_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with vgpu.attach("T4"):
        values, index = zeros(3), on_gpu(TOO_LARGE)
        with pytest.raises(torch.AcceleratorError, match=ASSERTED) as raised:
            values.take(index)
        assert "asynchronously" not in str(raised.value)


def test_launch_blocking_waits_for_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = []
    for blocking in ("0", "1"):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
        with vgpu.attach("T4") as gpu:
            x = zeros(2048, 2048)
            x @ x
            torch.cuda.synchronize()
            start = gpu.now()
            x @ x
            seconds.append(gpu.now() - start)
    assert seconds[1] > 20 * seconds[0]


def test_a_stream_that_has_not_failed_yet_goes_on(gpu: vgpu.VirtualGPU) -> None:
    other = torch.cuda.Stream()
    x, small, index = zeros(4096, 4096), zeros(3), on_gpu(TOO_LARGE)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        zeros(1)
    x @ x  # milliseconds, before the kernel that fails
    small.take(index)
    other.synchronize()
    with pytest.raises(torch.AcceleratorError, match=ASSERTED):
        torch.cuda.synchronize()
