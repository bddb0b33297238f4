"""A device in a process of its own tells a program the same times as one next to it, and keeps its record to itself."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import pytest
import torch

import vgpu
from vgpu.device import messages
from vgpu.device.kernel_work import KernelWork, Product
from vgpu.device.queue import LAUNCH_QUEUE_DEPTH, Kernel
from vgpu.device.remote import DeviceLost, Line
from vgpu.device.service import Service, condition_of

fork = multiprocessing.get_context("fork")


def names(what: str, kernels: Sequence[Kernel], begin: int, end: int, arguments: Mapping[str, Any]) -> Any:
    """A reading."""
    return [what, [kernel.name for kernel in kernels[begin:end]], dict(arguments)]


def serve(
    lines: list[Connection], control: Connection, gpus: int, conditions: list[dict[str, Any]], open_record: bool
) -> None:
    spec = vgpu.get_spec("T4")
    service = Service(
        spec, vgpu.get_interconnect(spec.interconnect, spec), ranks=len(lines), gpus=gpus, reader=names,
        conditions=[condition_of(condition) for condition in conditions], open_record=open_record,
    )  # fmt: skip
    service.serve(lines, control)
    control.recv()
    control.send((service.readings, service.faults))


class Device:
    """The process of a device, seen from who started it."""

    def __init__(self, gpus: int = 1, conditions: Sequence[dict[str, Any]] = (), open_record: bool = False) -> None:
        self.line, far_line = fork.Pipe()
        self.control, far_control = fork.Pipe()
        arguments = ([far_line], far_control, gpus, list(conditions), open_record)
        self.process = fork.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        far_line.close()
        far_control.close()

    def end(self) -> tuple[list[list[Any]], list[str]]:
        """What it has read, and its faults."""
        self.control.send("end")
        report: tuple[list[list[Any]], list[str]] = self.control.recv()
        self.process.join()
        return report


@pytest.fixture
def device() -> Iterator[Callable[..., Device]]:
    """Makes devices, and ends them."""
    made: list[Device] = []

    def make(**options: Any) -> Device:
        made.append(Device(**options))
        return made[-1]

    yield make
    for running in made:
        running.process.terminate()
        running.process.join()


@contextmanager
def attached(device: Device | None, gpus: int = 1, *, values: bool = False) -> Iterator[vgpu.VirtualGPU]:
    with vgpu.attach("T4", gpus=gpus, values=values) as gpu:
        if device is not None:
            gpu.machine.move_to(device.line)
        yield gpu


def several_streams(gpu: vgpu.VirtualGPU) -> list[float]:
    """Copies, products, events across streams, a full queue, a pool: moments of all of them."""
    x = torch.ones(1024, 1024, device="cuda")
    side, moments = torch.cuda.Stream(), []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        torch.mm(x, x)
    end.record()
    with torch.cuda.stream(side):
        side.wait_event(end)
        y = torch.exp(x)
        moments.append(float(end.query()))
        side.synchronize()
    moments += [gpu.now(), begin.elapsed_time(end)]
    for _ in range(LAUNCH_QUEUE_DEPTH + 500):
        torch.exp(x)
    moments.append(gpu.now())  # the queue was full
    y.cpu()
    moments.append(gpu.now())
    y.record_stream(side)
    del y
    torch.empty(1024, 1024, device="cuda")
    streams = [torch.cuda.Stream().stream_id for _ in range(34)]
    torch.cuda.synchronize()
    return [*moments, gpu.now(), gpu.queue.busy_seconds, *streams, torch.cuda.utilization()]


def test_every_time_is_that_of_a_device_beside_the_program(device: Callable[..., Device]) -> None:
    with attached(None) as gpu:
        here = several_streams(gpu)
    with attached(device()) as gpu:
        assert several_streams(gpu) == here


def test_several_gpus_and_copies_between_them(device: Callable[..., Device]) -> None:
    def run(gpu: vgpu.VirtualGPU) -> list[float]:
        x = torch.ones(512, 512, device="cuda:1")
        y = torch.mm(x.to("cuda:0"), torch.ones(512, 512, device="cuda:0"))
        y.to("cuda:1", non_blocking=True)
        torch.cuda.synchronize(1)
        return [gpu.now(), *(card.queue.busy_seconds for card in gpu.machine.gpus)]

    with attached(None, gpus=2) as gpu:
        here = run(gpu)
    with attached(device(gpus=2), gpus=2) as gpu:
        assert run(gpu) == here


def test_a_profile_is_the_same(device: Callable[..., Device]) -> None:
    def run() -> list[tuple[str, float]]:
        x = torch.ones(256, 256, device="cuda")
        with torch.profiler.profile() as profile:
            torch.softmax(torch.mm(x, x), dim=-1)
            torch.cuda.synchronize()
        return [(row.key, row.self_device_time_total) for row in profile.key_averages()]

    with attached(None):
        here = run()
    with attached(device()):
        assert run() == here
    assert any(seconds > 0 for _, seconds in here)


def test_a_slow_device_can_be_measured_and_not_be_asked(device: Callable[..., Device]) -> None:
    def seconds() -> float:
        x = torch.ones(2048, 2048, device="cuda")
        torch.mm(x, x)
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.mm(x, x)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    with attached(None):
        usual = seconds()
    with attached(device(conditions=[{"factor": 3.0}])) as gpu:
        assert seconds() == pytest.approx(3 * usual, rel=0.01)
        with pytest.raises(RuntimeError, match="keeps its record to itself"):
            gpu.timeline  # noqa: B018


def test_whoever_opens_the_record_may_read_it(device: Callable[..., Device]) -> None:
    with attached(device(open_record=True)) as gpu:
        torch.exp(torch.ones(8, device="cuda"))
        assert [kernel.name for kernel in gpu.timeline][-1] == "aten::exp"
        assert gpu.timeline[-1].shapes == ((8,),)


def test_conditions_begin_with_a_stage_and_for_a_rank(device: Callable[..., Device]) -> None:
    conditions = [{"factor": 5.0, "stage": 2, "name": "aten::mm"}, {"factor": 100.0, "rank": 1}]
    with attached(device(conditions=conditions)) as gpu:
        x = torch.ones(2048, 2048, device="cuda")
        torch.mm(x, x)
        took = []
        for _ in range(3):
            torch.cuda.synchronize()
            before = gpu.queue.busy_seconds
            torch.mm(x, x)
            took.append(gpu.queue.busy_seconds - before)
            gpu.queue.line.next_stage()  # type: ignore[attr-defined]
    assert took[1:] == pytest.approx([took[0], 5 * took[0]])


def test_products_of_a_slow_host(device: Callable[..., Device]) -> None:
    def seconds(gpu: vgpu.VirtualGPU) -> float:
        x = torch.ones(256, 256)
        before = gpu.now()
        torch.mm(x, x)
        return gpu.now() - before

    with attached(device()) as gpu:
        usual = seconds(gpu)
        with questions() as asked:
            seconds(gpu)
        assert asked == [], "a host that nobody slows asks nobody"
    with attached(device(conditions=[{"factor": 2.0, "on_host": True}])) as gpu:
        assert seconds(gpu) == pytest.approx(2 * usual)
    with attached(device(open_record=True)) as gpu:
        gpu.inject_host_slowdown(4.0)
        assert seconds(gpu) == pytest.approx(4 * usual)


def test_readings_reach_who_started_it_alone(device: Callable[..., Device]) -> None:
    made = device()
    with attached(made) as gpu:
        line = gpu.queue.line  # type: ignore[attr-defined]
        torch.exp(torch.ones(8, device="cuda"))
        begin = line.mark()
        x = torch.ones(64, 64, device="cuda")
        torch.mm(x, x)
        end = line.mark()
        torch.sin(x)
        assert line.read(0, "names", begin, end, {"of": "all"}) == 0
    readings, faults = made.end()
    assert readings == [[["names", ["aten::ones", "aten::mm"], {"of": "all"}]]]
    assert faults == [""]


def test_memory_is_read_whatever_peaks_a_program_resets(device: Callable[..., Device]) -> None:
    made = device(gpus=2)
    with attached(made, gpus=2) as gpu:
        line = gpu.queue.line  # type: ignore[attr-defined]
        other = gpu.machine.gpus[1]
        kept = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
        begin, elsewhere = gpu.mark_memory(), other.mark_memory()
        torch.empty(8 * 2**20, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        middle = gpu.mark_memory()
        more = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        there = torch.empty(512, dtype=torch.uint8, device="cuda:1")
        for what, first, last in (
            ("peak", begin, middle),
            ("added", begin, gpu.mark_memory()),
            ("held", begin, gpu.mark_memory()),
            ("added", middle, gpu.mark_memory()),
        ):
            line.read_memory(0, what, first, last)
        line.read_memory(1, "added", elsewhere, other.mark_memory())
        del kept, more, there
    readings, faults = made.end()
    assert readings == [[11 * 2**20, 8 * 2**20, 2**20, 2**20, 512]]
    assert faults == [""]


def test_launches_cost_a_program_no_question(device: Callable[..., Device]) -> None:
    with attached(device()):
        x = torch.ones(64, 64, device="cuda")
        with questions() as asked:
            for _ in range(LAUNCH_QUEUE_DEPTH // 2):
                torch.mm(x, x)
        assert asked == []


def test_a_forked_child_has_a_device_of_its_own(device: Callable[..., Device]) -> None:
    with attached(device()) as gpu:
        gpu.machine.forked()
        assert gpu.timeline == []


@contextmanager
def questions() -> Iterator[list[tuple[Any, ...]]]:
    """What programs ask their devices in this block."""
    asked: list[tuple[Any, ...]] = []
    ask = Line.ask

    def noting(line: Line, *question: Any) -> Any:
        asked.append(question)
        return ask(line, *question)

    with mock.patch.object(Line, "ask", noting):
        yield asked


GOOD = messages.text("work", KernelWork("aten::mm", 64, product=Product(1, 2, 2, 2))) + messages.text("thread", "main")
BAD = {
    "memory that nobody has marked": messages.text("memory", 0, "peak", 0, 0, 0),
    "memory of no kind": messages.MEMORY.pack(b"A", 0, 1, 1)
    + messages.text("memory", 0, "all", 0, 0, messages.MEMORY.size),
    "no message": b"?",
    "a work cut off": messages.text("work", "aten::mm"),
    "a work of texts": messages.text("work", KernelWork("aten::mm", "many")),  # type: ignore[arg-type]
    "negative bytes": messages.text("work", KernelWork("aten::mm", -1)),
    "a kind of work": messages.text("work", KernelWork("aten::mm", kind="magic")),
    "a work that is nobody's": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 0, 1, 0.0, 0.0, math.nan),
    "a stream that is none": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 1, 0, 0.0, 0.0, math.nan),
    "a GPU that is none": GOOD + messages.LAUNCH.pack(b"L", 1, 0, 0, 0, 0.0, 0.0, math.nan),
    "a launch before the beginning": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 0, 0, -1.0, 0.0, math.nan),
    "a kernel that gives time back": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 0, 0, 0.0, 0.0, -1.0),
    "a kernel without end": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 0, 0, 0.0, 0.0, math.inf),
    "half a launch": GOOD + messages.LAUNCH.pack(b"L", 0, 0, 0, 0, 0.0, 0.0, math.nan)[:-1],
    "a wait for no number": messages.HOLD.pack(b"H", 0, 0, math.nan),
    "a wait for no event": messages.HOLD_EVENT.pack(b"h", 0, 0, 0),
    "a text that never ends": messages.TEXT.pack(b"T", 100),
    "a text of nothing": messages.TEXT.pack(b"T", 2) + b"[]",
    "a text that is none": messages.TEXT.pack(b"T", 1) + b"\xff",
    "a deep text": messages.TEXT.pack(b"T", 100_000) + b"[" * 100_000,
    "a text of an unknown kind": messages.text("exec", "1"),
    "a question about nothing": messages.text("ask", "pace", 0),
    "a question about the record": messages.text("ask", "kernels", 0),
    "a question without its words": messages.text("ask", "slowed", 0),
    "a device of another speed": messages.text("slow", 0, 2.0, 0, 1, 0.0, None, False),
    "a reading without marks": messages.text("read", 0, "names", 0, 0, {}, 0),
    "bytes of somebody else's": messages.MARK.pack(b"M") + messages.text("read", 0, "names", 0, 0, {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_program_that_sends_nonsense_is_cut_off(what: str, device: Callable[..., Device]) -> None:
    made = device()
    made.line.send_bytes(BAD[what])
    with pytest.raises((EOFError, ConnectionError)):
        made.line.recv_bytes()
    _, (fault,) = made.end()
    assert fault


def test_a_device_that_is_gone_is_an_error_of_its_own(device: Callable[..., Device]) -> None:
    made = device()
    line = Line(made.line)
    made.end()
    with pytest.raises(DeviceLost):
        line.ask("ready", 0, None)
