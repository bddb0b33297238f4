"""Races between streams, and with copies under way: each is found at its line, and right programs are left alone.

What is a race follows from CUDA's rules (CUDA C++ Programming Guide, "Streams", "Events"; PyTorch's CUDA semantics
notes, "CUDA streams", "Use pinned memory buffers"; `Tensor.record_stream`; "Stream semantics of backward passes").
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import vgpu

from .jobs import Job

SIZE = 1000


def _made() -> torch.Tensor:
    return torch.rand(SIZE, device="cuda") * 2


def _side() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _waiting() -> torch.cuda.Stream:
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    return side


def _here(side: torch.cuda.Stream) -> None:
    torch.cuda.current_stream().wait_stream(side)


# ---- races: the last statement of each is where it shows -------------------------------------------------------------


def reads_what_another_stream_is_writing() -> None:
    side, x = _side(), _made()
    with torch.cuda.stream(side):
        x + 1


def reads_what_was_written_before_there_were_streams() -> None:
    x = _made()
    with torch.cuda.stream(_side()):
        x + 1


def reads_a_result_of_another_stream() -> None:
    x = _made()
    with torch.cuda.stream(_waiting()):
        y = x + 1
    y.sum().item()


def writes_what_another_stream_is_reading() -> None:
    x = _made()
    with torch.cuda.stream(_waiting()):
        x + 1
    x.add_(1)


def writes_what_another_stream_is_writing() -> None:
    x = _made()
    with torch.cuda.stream(_waiting()):
        x.add_(1)
    x[: SIZE // 2].zero_()


def waits_for_an_event_from_before() -> None:
    side, x, event = _side(), _made(), torch.cuda.Event()
    event.record()
    x.add_(1)
    side.wait_event(event)
    with torch.cuda.stream(side):
        torch.relu(x)


def writes_with_out() -> None:
    x, out = _made(), torch.empty(SIZE, device="cuda")
    with torch.cuda.stream(_waiting()):
        torch.exp(x, out=out)
    out.neg()


def reuses_memory_that_a_side_stream_reads() -> None:
    x = torch.rand(SIZE, device="cuda")
    with torch.cuda.stream(_waiting()):
        x + 1
    del x
    torch.zeros(SIZE, device="cuda")


def uses_the_gradient_of_another_streams_backward() -> None:
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    with torch.cuda.stream(_waiting()):
        (weight * weight).sum().backward()
    weight.grad.sum()  # type: ignore[union-attr]


def loads_on_a_side_stream_and_uses_it() -> None:
    with torch.cuda.stream(_side()):
        x = torch.ones(SIZE).pin_memory().to("cuda", non_blocking=True)
    x * 2


def writes_pinned_memory_during_a_copy() -> None:
    pinned = torch.ones(SIZE).pin_memory()
    pinned.to("cuda", non_blocking=True)
    pinned.zero_()


def refills_a_pinned_buffer() -> None:
    pinned, target = torch.ones(SIZE).pin_memory(), torch.empty(SIZE, device="cuda")
    target.copy_(pinned, non_blocking=True)
    pinned[:10] = 0


def reads_before_a_copy_has_arrived() -> None:
    host = _made().to("cpu", non_blocking=True)
    host.sum()


def looks_at_numbers_before_a_copy_has_arrived() -> None:
    host = _made().to("cpu", non_blocking=True)
    host.numpy()


def lists_a_buffer_before_a_copy_has_arrived() -> None:
    buffer = torch.empty(SIZE).pin_memory()
    buffer.copy_(_made(), non_blocking=True)
    buffer.tolist()


def copies_on_before_a_copy_has_arrived() -> None:
    host = _made().to("cpu", non_blocking=True)
    with torch.cuda.stream(_side()):
        host.to("cuda", non_blocking=True)


RACES = [
    reads_what_another_stream_is_writing, reads_what_was_written_before_there_were_streams,
    reads_a_result_of_another_stream, writes_what_another_stream_is_reading, writes_what_another_stream_is_writing,
    waits_for_an_event_from_before, writes_with_out, reuses_memory_that_a_side_stream_reads,
    uses_the_gradient_of_another_streams_backward, loads_on_a_side_stream_and_uses_it,
    writes_pinned_memory_during_a_copy, refills_a_pinned_buffer, reads_before_a_copy_has_arrived,
    looks_at_numbers_before_a_copy_has_arrived, lists_a_buffer_before_a_copy_has_arrived,
    copies_on_before_a_copy_has_arrived,
]  # fmt: skip


@pytest.mark.parametrize("program", RACES)
def test_a_race_is_found_where_it_happens(gpu: vgpu.VirtualGPU, program: Callable[[], None]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
    found = [warning for warning in caught if warning.category is vgpu.StreamHazard]
    lines, first = inspect.getsourcelines(program)
    assert [(warning.filename, warning.lineno) for warning in found] == [(__file__, first + len(lines) - 1)]
    (hazard,) = gpu.hazards
    assert hazard.text == str(found[0].message)
    assert "on a GPU, values may be wrong" in hazard.text


def test_a_race_names_both_lines_and_what_helps(gpu: vgpu.VirtualGPU) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):  # reported once for each pair of lines
            reuses_memory_that_a_side_stream_reads()
    first = inspect.getsourcelines(reuses_memory_that_a_side_stream_reads)[1]
    assert len(caught) == len(gpu.hazards) == 1
    assert gpu.hazards[0].earlier == (__file__, first + 3)
    for part in (f"{__file__}:{first + 3}", "aten::add", "aten::zeros", "stream 0x1 of cuda:0", "record_stream"):
        assert part in gpu.hazards[0].text


@pytest.mark.parametrize("wanted", ["error", "ignore"])
def test_the_environment_says_what_a_race_does(
    gpu: vgpu.VirtualGPU, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("VGPU_RACES", wanted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if wanted == "error":
            with pytest.raises(vgpu.StreamHazard, match="nothing orders the two"):
                writes_what_another_stream_is_reading()
        else:
            writes_what_another_stream_is_reading()
    assert not caught
    assert len(gpu.hazards) == 1


def test_races_can_be_errors(gpu: vgpu.VirtualGPU) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", vgpu.StreamHazard)
        with pytest.raises(vgpu.StreamHazard, match="nothing orders the two"):
            writes_what_another_stream_is_reading()


# ---- right programs --------------------------------------------------------------------------------------------------


def chunks_of_one_tensor() -> None:
    x = _made()
    other = torch.zeros(SIZE, device="cuda")
    sides = [_waiting() for _ in range(4)]
    for place, side in enumerate(sides):
        with torch.cuda.stream(side):
            x.view(4, -1)[place].add_(1)
            other.view(-1, 4)[:, place].add_(1)
    for side in sides:
        _here(side)
    (x + other).sum().item()


def indices_that_the_host_counted() -> None:
    places = _made().nonzero()
    with torch.cuda.stream(_side()):
        places + 1
    torch.cuda.synchronize()


def a_prefetcher() -> None:
    side, current = _side(), torch.cuda.current_stream()
    for _ in range(3):
        with torch.cuda.stream(side):
            batch = torch.ones(SIZE).pin_memory().to("cuda", non_blocking=True)
        current.wait_stream(side)
        batch.record_stream(current)
        (batch * 2).sum()
        del batch


def recorded_memory_that_goes() -> None:
    x, side = _made(), _waiting()
    with torch.cuda.stream(side):
        x + 1
    x.record_stream(side)
    del x
    torch.zeros(SIZE, device="cuda")


def memory_that_goes_after_the_streams_have_met() -> None:
    x, side = _made(), _waiting()
    with torch.cuda.stream(side):
        x + 1
    _here(side)
    del x
    torch.zeros(SIZE, device="cuda")


def events_and_queries() -> None:
    x, side = _made(), _waiting()
    with torch.cuda.stream(side):
        x.add_(1)
        done = side.record_event()
    done.synchronize()
    x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.add_(1)
    while not side.query():
        pass
    x.add_(1)


def an_order_by_way_of_a_third_stream() -> None:
    x, first, second = _made(), _waiting(), _side()
    with torch.cuda.stream(first):
        x.add_(1)
    second.wait_stream(first)
    _here(second)
    x.add_(1)


def a_backward_pass_of_a_side_stream() -> None:
    weight, side = torch.ones(SIZE, device="cuda", requires_grad=True), _waiting()
    with torch.cuda.stream(side):
        loss = (weight * weight).exp().sum()
    _here(side)
    loss.backward()
    weight.grad.sum().item()  # type: ignore[union-attr]


def weights_that_the_host_waited_for() -> None:
    layer = torch.nn.Linear(8, 8).cuda()  # copied from pageable memory
    with torch.cuda.stream(_side()):
        y = layer(torch.ones(1, 8, device="cuda"))
    torch.cuda.synchronize()
    y.sum()


def a_graph_after_its_warm_up() -> None:
    x, side = _made(), _waiting()
    with torch.cuda.stream(side):
        (x * 2).sum()
    _here(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    x.fill_(3)
    graph.replay()
    y.sum().item()


def copies_that_are_waited_for() -> None:
    pinned = torch.ones(SIZE).pin_memory()
    x = pinned.to("cuda", non_blocking=True)
    pinned.sum()  # both read
    back = x.to("cpu", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    pinned.zero_()
    back.numpy()
    torch.ones(SIZE).to("cuda", non_blocking=True)  # pageable memory is staged
    assert x.to("cpu", non_blocking=True).to("cuda", non_blocking=True).sum().item() == SIZE  # one stream


RIGHT = [
    chunks_of_one_tensor, indices_that_the_host_counted, a_prefetcher, recorded_memory_that_goes,
    memory_that_goes_after_the_streams_have_met, events_and_queries, an_order_by_way_of_a_third_stream,
    a_backward_pass_of_a_side_stream, weights_that_the_host_waited_for, a_graph_after_its_warm_up,
    copies_that_are_waited_for,
]  # fmt: skip


@pytest.mark.parametrize("program", RIGHT)
def test_right_programs_are_left_alone(gpu: vgpu.VirtualGPU, program: Callable[[], None]) -> None:
    program()
    program()
    assert gpu.hazards == []


def test_a_program_with_one_stream_is_not_watched(gpu: vgpu.VirtualGPU) -> None:
    model = torch.nn.Linear(8, 8).cuda()
    model(torch.ones(2, 8).cuda()).sum().backward()
    assert gpu.machine.watch is None


def test_a_collective_that_nobody_waited_for_is_a_race(job: Job) -> None:
    def work(rank: int) -> Any:
        side, counts = torch.cuda.Stream(), []
        for waits in (True, False):
            tensor = torch.ones(SIZE, device="cuda")
            under_way = dist.all_reduce(tensor, async_op=True)
            if waits:
                under_way.wait()  # type: ignore[union-attr]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", vgpu.StreamHazard)
                tensor + 1
            counts.append(len(vgpu.current().hazards))  # type: ignore[union-attr]
        return counts, side.query()

    assert job(work) == [([0, 1], True)] * 2
