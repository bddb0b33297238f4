"""`torch.Stream` and `torch.Event`, which belong to any accelerator, next to those of `torch.cuda`.

The expectations were read from PyTorch 2.15's CUDA build, whose host code runs without a card
(`vgpu.tools.cuda_rules.stand_in`).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

STREAM = "torch/csrc/Stream.cpp; https://github.com/pytorch/pytorch/pull/178027"
EVENT = "torch/csrc/Event.cpp; https://github.com/pytorch/pytorch/issues/173792"


@program(EVENT)
def test_cuda_events_and_streams_are_generic_ones_and_not_the_reverse(cuda: Gpu) -> None:
    assert issubclass(torch.cuda.Event, torch.Event)
    assert issubclass(torch.cuda.Stream, torch.Stream)
    stream, event = torch.Stream("cuda"), torch.Event("cuda")
    assert not isinstance(stream, torch.cuda.Stream)
    assert not isinstance(event, torch.cuda.Event)
    assert not isinstance(torch.accelerator.current_stream(), torch.cuda.Stream)
    for thing, names in ((stream, ("cuda_stream", "priority")), (event, ("cuda_event", "ipc_handle"))):
        assert not any(hasattr(thing, name) for name in names)
    assert type(stream.record_event()) is torch.Event
    assert type(torch.cuda.Stream().record_event()) is torch.cuda.Event
    assert torch.accelerator.current_stream() != torch.cuda.current_stream()


@program(STREAM)
def test_a_generic_stream_records_generic_events_only(cuda: Gpu) -> None:
    stream, event = torch.Stream("cuda"), torch.cuda.Event()
    with pytest.raises(RuntimeError, match=r"expected event to be a torch\.Event object"):
        stream.record_event(event)
    event.record(stream)  # type: ignore[arg-type]
    stream.wait_event(event)
    own = torch.Event("cuda")
    for recording in (stream, torch.cuda.Stream()):
        assert recording.record_event(own) is own
        own.synchronize()
    own.record(torch.cuda.current_stream())
    own.wait(torch.cuda.Stream())


@program(EVENT)
def test_times_are_between_events_of_one_kind(cuda: Gpu) -> None:
    events = [torch.cuda.Event(enable_timing=True), torch.Event("cuda", enable_timing=True)]
    for first, other, name in (
        (*events, r"torch\.cuda\.Event"),
        (*events[::-1], r"torch\.Event"),
    ):
        first.record()
        other.record()
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match=f"expected other to be a {name} object"):
            first.elapsed_time(other)
        with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
            type(first)().elapsed_time(first)  # before it is recorded


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.Event(True), lambda: torch.Event("cuda", True), lambda: torch.Event(unknown=1),
        lambda: torch.cuda.Event(unknown=1), lambda: torch.Stream(unknown=1), lambda: torch.cuda.Stream(unknown=1),
        lambda: pickle.dumps(torch.cuda.Event()), lambda: pickle.dumps(torch.Stream("cuda")),
        lambda: copy.deepcopy(torch.cuda.Stream()),
    ],
)  # fmt: skip
@program(STREAM)
def test_what_a_stream_or_event_cannot_be(cuda: Gpu, call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


@program("c10/cuda/CUDAStream.cpp: getStreamFromPool")
def test_priorities_are_in_their_range(cuda: Gpu) -> None:
    lowest, greatest = torch.cuda.Stream.priority_range()
    assert torch.cuda.Stream(priority=3).priority == lowest
    assert greatest <= torch.cuda.Stream(priority=-9).priority <= -1


@program("torch/csrc/Stream.cpp: a device of its own")
def test_other_devices_have_streams_and_events_of_their_own(cuda: Gpu) -> None:
    assert torch.Stream("cpu").device.type == "cpu"
    assert torch.Event("cpu").device.type == "cpu"


@program("aten/src/ATen/native/native_functions.yaml: record_stream is CUDA's")
def test_only_cuda_tensors_are_recorded_on_streams(cuda: Gpu) -> None:
    with pytest.raises(NotImplementedError, match="Could not run 'aten::record_stream' with arguments from the 'CPU'"):
        torch.ones(2).record_stream(torch.cuda.Stream())
    with pytest.raises(RuntimeError, match="unknown parameter type"):
        torch.ones(2, device="cuda").record_stream(None)  # type: ignore[arg-type]
