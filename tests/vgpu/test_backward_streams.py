"""Backward operations run on the streams of their forward operations (notes/cuda; pytorch/pytorch issue 7601)."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import pytest
import torch

import vgpu
from vgpu.runtime.thread_state import THREAD


def launched(gpu: vgpu.VirtualGPU, name: str) -> list[int]:
    """The streams of all launches of an operation, in their order."""
    return [event.stream for event in gpu.timeline if event.name == name]


def test_each_backward_operation_runs_where_its_forward_did(gpu: vgpu.VirtualGPU) -> None:
    side, data = torch.cuda.Stream(), torch.ones(4, 4, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        inner = data.exp()
    torch.cuda.current_stream().wait_stream(side)
    loss = inner.sin().sum()
    before = len(launched(gpu, "aten::mul"))
    loss.backward()
    # sin' * gradient on the default stream, exp * gradient on the side stream
    assert launched(gpu, "aten::mul")[before:] == [0, side.cuda_stream]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.allclose(data.grad, data.exp().cos() * data.exp())


class Streams(torch.autograd.Function):
    """Notes the stream that its backward sees."""

    seen: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(context: Any, data: torch.Tensor) -> torch.Tensor:
        return data * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Streams.seen.append(torch.cuda.current_stream())
        return gradient * 2


def test_a_function_of_the_program_sees_its_stream(gpu: vgpu.VirtualGPU) -> None:
    side, data = torch.cuda.Stream(), torch.ones(4, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    Streams.seen.clear()
    with torch.cuda.stream(side):
        loss = Streams.apply(data).sum()
    loss.backward()  # the caller's stream waits at the end: no race with what follows
    assert Streams.seen == [side]
    with torch.cuda.stream(side):
        Streams.apply(data.detach().requires_grad_()).sum().backward()
    assert Streams.seen == [side, side]
    assert data.grad is not None
    assert data.grad.sum().item() == 8
    assert not gpu.hazards


def test_hooks_of_tensors_see_the_streams_of_their_operations(gpu: vgpu.VirtualGPU) -> None:
    """Engine.cpp, `evaluate_function`: a node's streams are current before its tensor's hooks run."""
    side, data = torch.cuda.Stream(), torch.ones(4, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    seen: dict[str, list[Any]] = {}

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        def hook(gradient: torch.Tensor) -> torch.Tensor:
            seen.setdefault(name, []).append(torch.cuda.current_stream())
            return gradient * 2

        tensor.register_hook(hook)
        return tensor

    note("leaf", data)
    first = note("first", data.exp())
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        inner = note("inner", first.sin())
        note("inner", inner)
    torch.cuda.current_stream().wait_stream(side)
    loss = note("loss", inner.sum())
    loss.backward()
    default = torch.cuda.default_stream()
    assert seen == {"loss": [default], "inner": [side, side], "first": [default], "leaf": [default]}
    assert data.grad is not None
    assert torch.allclose(data.grad, 32 * data.exp().cos() * data.exp())
    assert torch.cuda.current_stream() == default
    assert not gpu.hazards
    assert THREAD.entering is None


def test_branches_on_two_streams_overlap_and_join(gpu: vgpu.VirtualGPU) -> None:
    weights = [torch.ones(512, 512, device="cuda", requires_grad=True) for _ in range(2)]
    data = torch.ones(512, 512, device="cuda")
    streams, parts = [torch.cuda.Stream(), torch.cuda.Stream()], []
    torch.cuda.synchronize()
    for weight, stream in zip(weights, streams, strict=True):
        with torch.cuda.stream(stream):
            parts.append((data @ weight) @ data)
    for part, stream in zip(parts, streams, strict=True):
        torch.cuda.current_stream().wait_stream(stream)
        part.record_stream(torch.cuda.current_stream())
    loss = (parts[0] + parts[1]).sum()
    count = len(gpu.timeline)
    loss.backward()
    products = [event for event in list(gpu.timeline)[count:] if event.name == "aten::mm"]
    assert {event.stream for event in products} == {stream.cuda_stream for stream in streams}
    for weight in weights:
        assert weight.grad is not None
        weight.grad.add_(1)  # on the caller's stream, which has waited
    assert not gpu.hazards


def test_streams_without_graphs_leave_no_note(gpu: vgpu.VirtualGPU) -> None:
    side, data = torch.cuda.Stream(), torch.ones(4, device="cuda", requires_grad=True)
    for _ in range(3):
        with torch.cuda.stream(side):
            torch.ones(4, device="cuda")
        (data * 2).sum().backward()
    assert THREAD.stream_notes == []


def test_an_error_in_a_pass_gives_the_callers_streams_back(gpu: vgpu.VirtualGPU) -> None:
    side, data = torch.cuda.Stream(), torch.ones(4, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        loss = data.exp().sum()
    data.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
