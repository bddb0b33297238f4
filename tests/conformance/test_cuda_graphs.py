"""CUDA graphs: capture runs nothing, a replay runs all of it on the same memory; what may not be captured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB
from tests.conformance.programs import program

GRAPHS = "PyTorch CUDA semantics notes: CUDA graphs"
CAPTURE = "CUDA C++ Programming Guide: CUDA Graphs, prohibited and unhandled operations"


def captured(run: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()  # type: ignore[operator]
    return graph


@program(GRAPHS)
def test_a_replay_computes_with_what_lies_in_the_memory_now(cuda: Gpu) -> None:
    x = torch.zeros(4, device="cuda")
    results = []
    graph = captured(lambda: results.append(torch.relu(x * 2 - 1)))
    for value in (3.0, -1.0, 0.75):
        x.fill_(value)
        graph.replay()
        assert results[0].tolist() == [max(0.0, 2 * value - 1)] * 4


@program(GRAPHS)
def test_capture_runs_nothing(cuda: Gpu) -> None:
    x = torch.ones(3, device="cuda")
    graph = captured(lambda: x.mul_(5))
    assert x.tolist() == [1.0] * 3
    graph.replay()
    graph.replay()
    assert x.tolist() == [25.0] * 3


@program(GRAPHS)
def test_random_numbers_go_on_with_every_replay(cuda: Gpu) -> None:
    results = []
    torch.cuda.manual_seed(7)
    graph = captured(lambda: results.append(torch.rand(64, device="cuda")))
    torch.cuda.manual_seed(7)
    graph.replay()
    first = results[0].clone()
    graph.replay()
    assert not torch.equal(first, results[0])
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.rand(64, device="cuda"), first)


@program(GRAPHS)
def test_a_whole_training_step_is_captured(cuda: Gpu) -> None:
    """The example of the notes, with a momentum that its warm-up has made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(5, 16, device="cuda"), torch.randn(5, 4, device="cuda")

    def step() -> torch.Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    state, random = copy.deepcopy((model.state_dict(), optimizer.state_dict())), torch.cuda.get_rng_state()
    batches = [(torch.randn(5, 16), torch.randn(5, 4)) for _ in range(3)]
    replayed = []
    for batch, target in batches:
        inputs.copy_(batch)
        targets.copy_(target)
        graph.replay()
        replayed.append(loss.item())
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    torch.cuda.set_rng_state(random)
    for (batch, target), expected in zip(batches, replayed, strict=True):
        inputs.copy_(batch)
        targets.copy_(target)
        optimizer.zero_grad(set_to_none=True)
        assert step().item() == pytest.approx(expected, rel=1e-5)
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.allclose(parameter, weight, atol=1e-6)


@program(GRAPHS)
def test_callables_are_graphed_with_their_backward(cuda: Gpu) -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).cuda()
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(plain), (torch.randn(4, 6, device="cuda"),))
    for _ in range(2):
        x = torch.randn(4, 6, device="cuda")
        results = []
        for model in (plain, graphed):
            model.zero_grad(set_to_none=True)
            out = model(x)
            out.square().sum().backward()
            results.append([out.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for tensor, other in zip(*results, strict=True):
            assert torch.allclose(tensor, other, atol=1e-6)


@program(GRAPHS)
def test_two_graphs_may_share_a_pool(cuda: Gpu) -> None:
    x = torch.ones(2, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = x + 1
    with torch.cuda.graph(second, pool=first.pool()):
        z = y * 10
    first.replay()
    second.replay()
    assert z.tolist() == [20.0, 20.0]
    assert isinstance(torch.cuda.graph_pool_handle(), tuple)


@program(GRAPHS)
def test_copies_of_pinned_memory_are_captured(cuda: Gpu) -> None:
    source, target = torch.zeros(3).pin_memory(), torch.zeros(3).pin_memory()
    x = torch.ones(3, device="cuda")

    def run() -> None:
        x.copy_(source, non_blocking=True)
        target.copy_(x * 2, non_blocking=True)

    graph = captured(run)
    assert (x.tolist(), target.tolist()) == ([1.0] * 3, [0.0] * 3)
    source.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert (x.tolist(), target.tolist()) == ([4.0] * 3, [8.0] * 3)


@program(CAPTURE)
def test_what_waits_for_the_device_cannot_be_captured(cuda: Gpu) -> None:
    x = torch.ones(2, device="cuda")
    for forbidden in (lambda: x.sum().item(), torch.cuda.synchronize, x.cpu):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
            forbidden()
        assert not torch.cuda.is_current_stream_capturing()
    assert (x + 1).tolist() == [2.0, 2.0]


@program(GRAPHS)
def test_whether_a_stream_is_captured_can_be_asked(cuda: Gpu) -> None:
    states = [torch.cuda.is_current_stream_capturing()]
    captured(lambda: states.append(torch.cuda.is_current_stream_capturing()))
    assert [*states, torch.cuda.is_current_stream_capturing()] == [False, True, False]


@program(GRAPHS)
def test_a_graph_is_captured_before_it_is_replayed(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError):
        torch.cuda.CUDAGraph().replay()


FORKS = "CUDA C++ Programming Guide: Cross-stream Dependencies and Events"


@program(FORKS)
def test_a_stream_that_waits_for_the_capture_takes_part(cuda: Gpu) -> None:
    x, side, states = torch.ones(4, device="cuda"), torch.cuda.Stream(), []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
            states.append(torch.cuda.is_current_stream_capturing())
        torch.cuda.current_stream().wait_stream(side)
        z = y * 2
    x.fill_(5)
    graph.replay()
    assert (z.tolist(), states) == ([12.0] * 4, [True])


@program(f"{FORKS}: cudaErrorStreamCaptureUnjoined")
def test_a_stream_that_took_part_must_be_waited_for(cuda: Gpu) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def fork() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x + 1

    with pytest.raises(RuntimeError, match="unjoined work"):
        captured(fork)
    assert (x + 1).tolist() == [2.0] * 4


@program(f"{FORKS}; cudaStreamBeginCapture: other streams are not captured")
def test_other_streams_run_meanwhile(cuda: Gpu) -> None:
    x, y, side = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x * 2
        with torch.cuda.stream(side):
            y.add_(1)
    torch.cuda.synchronize()
    assert y.tolist() == [1.0] * 4
    graph.replay()
    assert (y.tolist(), z.tolist()) == ([1.0] * 4, [2.0] * 4)


@program(f"{FORKS}: cudaErrorStreamCaptureIsolation, cudaErrorCapturedEvent")
@pytest.mark.parametrize("mistake", ["an event from outside", "a query of an event inside"])
def test_a_capture_stands_alone(cuda: Gpu, mistake: str) -> None:
    x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    event.record()

    def run() -> None:
        x * 2
        if mistake == "an event from outside":
            torch.cuda.current_stream().wait_event(event)
        else:
            inside = torch.cuda.Event()
            inside.record()
            inside.query()

    with pytest.raises(RuntimeError, match="captur") as caught:
        captured(run)
    assert isinstance(caught.value.__context__, RuntimeError)  # the first one; leaving the block raises another
    assert "captur" in str(caught.value.__context__)
    assert type(caught.value) is type(caught.value.__context__)


@program("CUDACachingAllocator.cpp: Note [Interaction with CUDA graph capture]")
def test_a_graph_keeps_its_memory_for_itself(cuda: Gpu) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).mul_(2).sum()

    x = torch.ones(16 * MIB, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        kept = work(x)
    assert torch.cuda.memory_allocated() - allocated < MIB
    torch.cuda.empty_cache()
    own = torch.cuda.memory_reserved() - before
    assert own >= 64 * MIB
    other = torch.empty(16 * MIB, device="cuda")
    assert torch.cuda.memory_reserved() - before >= own + 64 * MIB  # what is free in the graph's pool is not for it
    with torch.cuda.graph(second, pool=first.pool()):
        also = work(x)  # shares what is free there
    del other
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < own + 8 * MIB
    first.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before >= own  # the second one keeps it
    second.reset()
    del kept, also
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 8 * MIB
