"""Threads in virtual time: what they do to each other happens in the order of its time, the same in every run.

Expectations: Python's documentation of `threading`, `queue`, `concurrent.futures` and `asyncio`, and arithmetic.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import torch

import vgpu
from vgpu.runtime import thread_scheduler
from vgpu.runtime.thread_scheduler import ThreadClock
from vgpu.torch_integration.patches.clocks import _real

LOCK = threading.Lock()


def _all(count: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _since(begin: float) -> float:
    return round(time.perf_counter() - begin, 3)


def _pool() -> Any:
    begin = time.perf_counter()

    def work(number: int) -> int:
        time.sleep(0.1)
        return number

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))
    return results, _since(begin)


def _pool_that_computes() -> Any:
    begin, x = time.perf_counter(), torch.ones(256, 256)

    def work(_: int) -> float:
        started = time.perf_counter()
        for _ in range(20):
            x @ x
        return time.perf_counter() - started

    with ThreadPoolExecutor(4) as pool:
        whole = sum(pool.map(work, range(8)))
    # Eight equal tasks on four threads.
    return round((time.perf_counter() - begin) / whole, 2)


def _completed() -> Any:
    def work(number: int) -> int:
        time.sleep(1 - number / 10)
        return number

    with ThreadPoolExecutor(5) as pool:
        return [done.result() for done in as_completed([pool.submit(work, number) for number in range(5)])]


def _late_result() -> Any:
    begin = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(time.sleep, 10)
        with pytest.raises(TimeoutError):
            pending.result(timeout=1)
        return _since(begin)


def _producer_and_consumer() -> Any:
    begin = time.perf_counter()
    items: queue.Queue[int] = queue.Queue(maxsize=2)
    taken: list[tuple[int, float]] = []

    def produce(count: int = 6) -> None:
        for number in range(count):
            time.sleep(0.05)
            items.put(number)

    def consume() -> None:
        for _ in range(6):
            item = items.get()
            time.sleep(0.1)
            taken.append((item, _since(begin)))

    _all(2, lambda number: (produce, consume)[number]())
    return taken


def _empty_queue() -> Any:
    begin = time.perf_counter()
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=2)
    return _since(begin)


def _timer() -> Any:
    begin, rung = time.perf_counter(), []
    timer = threading.Timer(1.5, lambda: rung.append(_since(begin)))
    timer.start()
    time.sleep(3)
    timer.join()
    return rung, _since(begin)


def _barrier() -> Any:
    begin, barrier, passed = time.perf_counter(), threading.Barrier(3), []

    def work(number: int) -> None:
        time.sleep(number)
        barrier.wait()
        passed.append(_since(begin))

    _all(3, work)
    return passed


def _guarded(guard: Any) -> Callable[[], Any]:
    def run() -> Any:
        begin, done, lock = time.perf_counter(), [], guard()

        def work(_: int) -> None:
            with lock:
                time.sleep(1)
                done.append(_since(begin))

        _all(4, work)
        return done

    return run


def _condition() -> Any:
    begin, condition, ready = time.perf_counter(), threading.Condition(), []

    def work() -> None:
        time.sleep(1)
        with condition:
            ready.append(True)
            condition.notify_all()

    thread = threading.Thread(target=work)
    thread.start()
    with condition:
        notified = condition.wait_for(lambda: bool(ready), timeout=5)
    thread.join()
    with condition:
        late = condition.wait_for(lambda: False, timeout=5)
    return notified, late, _since(begin)


def _polling() -> Any:
    begin, done = time.perf_counter(), []

    def work() -> None:
        time.sleep(1)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    while not done:
        time.sleep(0.01)
    return _since(begin)


def _joined_too_early() -> Any:
    begin = time.perf_counter()
    thread = threading.Thread(target=time.sleep, args=(3,))
    thread.start()
    thread.join(timeout=1)
    early = thread.is_alive(), _since(begin)
    thread.join()
    return early, thread.is_alive(), _since(begin)


def _event_loop() -> Any:
    async def program() -> Any:
        begin = time.perf_counter()
        results = await asyncio.gather(*[asyncio.sleep(seconds, seconds) for seconds in (1, 2, 3)])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 1)
        return results, _since(begin)

    return asyncio.run(program())


def _event_loop_with_threads() -> Any:
    async def program() -> Any:
        begin = time.perf_counter()
        await asyncio.gather(*[asyncio.to_thread(time.sleep, 1) for _ in range(2)])
        return _since(begin)

    return asyncio.run(program())


EXPECTED: dict[str, tuple[Callable[[], Any], Any]] = {
    "a pool of four sleeps eight times": (_pool, (list(range(8)), 0.2)),
    "a pool of four computes eight times": (_pool_that_computes, 0.25),
    "tasks complete in the order of their time": (_completed, [4, 3, 2, 1, 0]),
    "a result that is late": (_late_result, 1.0),
    "producer and consumer": (_producer_and_consumer, [(n, round(0.15 + 0.1 * n, 3)) for n in range(6)]),
    "an empty queue": (_empty_queue, 2.0),
    "a timer": (_timer, ([1.5], 3.0)),
    "a barrier": (_barrier, [2.0, 2.0, 2.0]),
    "a lock": (_guarded(lambda: threading.Lock()), [1.0, 2.0, 3.0, 4.0]),
    "a lock that may be taken twice": (_guarded(lambda: threading.RLock()), [1.0, 2.0, 3.0, 4.0]),
    "a semaphore of two": (_guarded(lambda: threading.Semaphore(2)), [1.0, 1.0, 2.0, 2.0]),
    "a condition": (_condition, (True, False, 6.0)),
    "polling": (_polling, 1.0),
    "a join with a time limit": (_joined_too_early, ((True, 1.0), False, 3.0)),
    "an event loop": (_event_loop, ([1, 2, 3], 4.0)),
    "an event loop with threads": (_event_loop_with_threads, 1.0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_time_passes_as_it_should(gpu: vgpu.VirtualGPU, name: str) -> None:
    program, expected = EXPECTED[name]
    began = _real.perf_counter()
    assert program() == expected
    assert _real.perf_counter() - began < 30


@pytest.mark.parametrize("guard", ["Lock", "RLock"])
def test_locks_made_while_attached_are_python_locks_in_every_respect(gpu: vgpu.VirtualGPU, guard: str) -> None:
    lock = getattr(threading, guard)()
    assert lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    fresh = threading.Lock()
    with fresh:
        assert fresh.locked()
        assert not fresh.acquire(blocking=False)
        begin = time.perf_counter()
        assert not fresh.acquire(timeout=2)
        assert _since(begin) == 2.0
    assert not fresh.locked()


def _monitored(wait: Callable[[threading.Event], bool]) -> tuple[list[tuple[float, int]], float]:
    """Samples (time, allocated bytes) of a monitor thread next to a loop that allocates."""
    with vgpu.attach("T4", values=False):
        x, stop, samples = torch.ones(512, 512, device="cuda"), threading.Event(), []

        def monitor() -> None:
            while not wait(stop):
                samples.append((time.perf_counter(), torch.cuda.memory_allocated()))

        thread = threading.Thread(target=monitor, daemon=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        thread.start()
        kept = []
        for _ in range(2000):
            kept.append(x @ x)
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
        stop.set()
        thread.join()
        return samples, elapsed


@pytest.mark.parametrize(
    "wait", [lambda stop: stop.wait(0.01), lambda stop: time.sleep(0.01) or stop.is_set()], ids=["Event.wait", "sleep"]
)
def test_a_monitor_takes_the_same_samples_in_every_run(wait: Callable[[threading.Event], bool]) -> None:
    samples, elapsed = _monitored(wait)
    assert len(samples) == int(elapsed / 0.01)
    assert [bytes_ for _, bytes_ in samples] == sorted(bytes_ for _, bytes_ in samples)
    assert _monitored(wait) == (samples, elapsed)


def test_nvml_samples_are_the_same_in_every_run() -> None:
    pynvml = pytest.importorskip("pynvml")

    def run() -> list[tuple[int, int]]:
        with vgpu.attach("T4", values=False):
            pynvml.nvmlInit()
            handle, stop, samples = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event(), []

            def monitor() -> None:
                while not stop.wait(0.1):
                    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).used
                    samples.append((memory, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

            thread = threading.Thread(target=monitor, daemon=True)
            thread.start()
            x = torch.empty(4096, 4096, device="cuda")
            for _ in range(40):
                x @ x
                torch.cuda.synchronize()
                time.sleep(0.02)
            stop.set()
            thread.join()
            return samples

    first = run()
    assert len(first) > 10
    assert 20 < first[-1][1] < 95
    assert run() == first


def test_threads_launch_on_the_gpu_in_the_order_of_their_time() -> None:
    def run() -> list[tuple[float, float]]:
        with vgpu.attach("T4", values=False) as gpu:

            def work(number: int) -> None:
                x = torch.ones(64, 64, device="cuda")
                for _ in range(30):
                    x = x @ x
                    time.sleep(1e-5 * (number + 1))

            _all(3, work)
            torch.cuda.synchronize()
            return [(kernel.launched_at, kernel.start) for kernel in gpu.timeline]

    kernels = run()
    assert len(kernels) >= 93
    launched = [moment for moment, _ in kernels]
    assert launched == sorted(launched)
    assert run() == kernels
    # Whoever comes while another thread creates the CUDA context waits for it.
    assert launched[0] >= vgpu.get_spec("T4").context_seconds


def _look_at_a_thread_that_returns() -> None:
    """Ends with exit code 1 if a variable outlives its function. An audit hook stays, hence a process of its own."""
    here = ThreadClock(ident=threading.get_ident())
    done = threading.Event()
    # While a hook written in Python is called, another thread can run.
    sys.addaudithook(lambda event, arguments: sum(range(9)))

    def look() -> None:
        while not done.is_set():
            thread_scheduler._place_of(here)

    def returned() -> weakref.ref[set[int]]:
        mine = set(range(3))
        return weakref.ref(mine)

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    is_held = not all(returned()() is None for _ in range(20_000))
    done.set()
    for thread in threads:
        thread.join()
    os._exit(is_held)


def test_looking_at_a_thread_keeps_nothing_of_it_alive() -> None:
    """A frame that is held when its function returns keeps the variables, among them results for PyTorch."""
    child = multiprocessing.get_context("fork").Process(target=_look_at_a_thread_that_returns)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_thread_that_computes_for_long_is_not_taken_for_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ThreadClock(ident=threading.get_ident(), native_id=threading.get_native_id())
    states: list[thread_scheduler.State] = []
    ours, theirs = socket.socketpair()

    def look() -> None:
        looks = thread_scheduler._Looks()
        for _ in range(40):
            _real.sleep(0.005)
            states.append(looks.at(here))
        theirs.send(b"x")

    thread = threading.Thread(target=look)
    thread.start()
    while thread.is_alive():
        sum(range(1000))
    assert set(states) == {thread_scheduler.State.RUNNING}
    ours.recv(1)

    states.clear()
    threading.Thread(target=look).start()
    ours.recv(1)
    assert thread_scheduler.State.AWAY in states

    # Imports from a slow disk: it sleeps whenever somebody looks, and gets on.
    places = itertools.count()
    monkeypatch.setattr(thread_scheduler, "_place_of", lambda clock: next(places))
    states.clear()
    threading.Thread(target=look).start()
    ours.recv(1)
    assert set(states) == {thread_scheduler.State.RUNNING}
    ours.close()
    theirs.close()


def test_a_thread_that_waits_where_nobody_sees_it_holds_up_nobody_for_long(gpu: vgpu.VirtualGPU) -> None:
    """The main thread waits in C code for what another thread sends."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        time.sleep(5)
        theirs.send(b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    began = _real.perf_counter()
    assert ours.recv(1) == b"x"
    thread.join()
    ours.close()
    theirs.close()
    assert _real.perf_counter() - began < 5
    assert time.perf_counter() > 5


def test_a_lock_from_before_still_orders_what_happens(gpu: vgpu.VirtualGPU) -> None:
    """It is a lock in C, so waiting for it is seen late: but nobody goes on before it was free."""
    assert _guarded(lambda: LOCK)() == [1.0, 2.0, 3.0, 4.0]


def test_a_loop_that_only_looks_does_not_hang(gpu: vgpu.VirtualGPU) -> None:
    done, event = [], threading.Event()

    def work() -> None:
        done.append(True)
        event.set()

    threading.Thread(target=work).start()
    while not event.is_set():
        pass
    assert done


def test_an_error_in_a_thread_frees_those_who_wait(gpu: vgpu.VirtualGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: failures.append(arguments.exc_type))

    def work() -> None:
        time.sleep(2)
        raise KeyError

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == [KeyError]
    assert time.perf_counter() > 2
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError):
        pool.submit(work).result()


def _started_beside(poll: Callable[[], object] | None) -> tuple[float, int]:
    """When the main thread's context is there, and how often another thread has polled by then."""
    polls = []
    with vgpu.attach("T4", force=True) as gpu:
        over = threading.Event()

        def run() -> None:
            while not over.is_set():
                polls.append(poll and poll())

        thread = threading.Thread(target=run)
        if poll is not None:
            thread.start()
        torch.ones(8, device="cuda")
        torch.cuda.synchronize()
        now = gpu.now()
        over.set()
        if poll is not None:
            thread.join()
        return now, len(polls)


def test_who_asks_in_vain_again_and_again_asks_less_often_and_nobody_waits_longer() -> None:
    alone, _ = _started_beside(None)
    beside, polls = _started_beside(torch.cuda.memory_allocated)
    assert beside == pytest.approx(alone, abs=1e-9)
    assert 500 < polls < 5000  # a microsecond each would be 250,000


@pytest.mark.parametrize("between", [lambda: torch.ones(8), lambda: None], ids=["work", "nothing"])
def test_who_works_in_between_or_whom_nobody_waits_for_asks_as_often_as_ever(between: Callable[[], object]) -> None:
    def work() -> None:
        between()
        torch.cuda.memory_allocated()

    with vgpu.attach("T4", force=True) as gpu:
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        begin = gpu.now()
        for _ in range(2000):
            work()
        first = gpu.now() - begin
        begin = gpu.now()
        for _ in range(2000):
            work()
        assert gpu.now() - begin == pytest.approx(first)
        done.set()
        thread.join()


def test_a_library_is_loaded_once_and_nobody_uses_it_before() -> None:
    """By a thread of the program on one GPU, while autograd on another one needs it, too."""
    spec = vgpu.get_spec("T4")
    with vgpu.attach("T4", gpus=2) as gpu:
        x = torch.ones(64, 64, device="cuda:1", requires_grad=True)
        y = (torch.ones(64, 64, device="cuda:0") * 2).sum()
        torch.cuda.synchronize()
        begin = gpu.now()

        def forward() -> None:
            torch.ones(64, 64, device="cuda:0") @ torch.ones(64, 64, device="cuda:0")

        def other() -> None:
            x @ x

        _all(2, lambda number: (forward, other)[number]())
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        products = [
            kernel.launched_at
            for card in gpu.machine.gpus
            for kernel in card.timeline
            if "mm" in kernel.name and kernel.launched_at >= begin
        ]
        assert len(products) == 2
        assert min(products) >= begin + spec.blas_handle_seconds
        assert max(products) < begin + 1.2 * spec.blas_handle_seconds
        assert float(y) == 8192
