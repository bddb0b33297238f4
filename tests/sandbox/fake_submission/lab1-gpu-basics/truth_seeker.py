"""Ways to the virtual GPU's record that leave no frame of the submission, or none of a file below it."""

import functools
import operator
import sys

import vgpu

_gpu = vgpu.current()
_found = []
# Called by the probe itself: no Python code of the submission runs when it reads.
asks_in_c = functools.partial(next, map(_found.append, map(operator.attrgetter("timeline"), [_gpu])))
slows_in_c = functools.partial(_gpu.inject_slowdown, 0.5) if _gpu is not None else None


def from_a_file_in_tmp():
    with open("/tmp/gpulabs_truth.py", "w") as file:
        file.write("def read(gpu):\n    return len(gpu.timeline)\n")
    sys.path.append("/tmp")
    import gpulabs_truth

    return gpulabs_truth.read(_gpu)


def moves_the_clock():
    _gpu.clock.mine().now += 1.0
    return 1


def moves_the_clock_back():
    _gpu.clock.advance(-1e-6)
    return 1


def asks_for_the_pace():
    return _gpu.queue.line.ask("pace", 0)


def launches_before_the_beginning():
    import torch

    work = vgpu.device.kernel_work.KernelWork("aten::mm")
    _gpu.queue.line.launch((0, 0, work, -1.0, 0.0, "MainThread", 0.0))
    torch.cuda.synchronize()
    return 1


def fills_the_line():
    _gpu.queue.line._connection.send_bytes(bytes(1000))
    return 1


def changes_the_data_sheet():
    object.__setattr__(_gpu.spec, "launch_seconds", 0.0)
    return 1


def exchanges_the_queue():
    import copy

    _gpu.queue = copy.copy(_gpu.queue)
    return 1


def measures_honestly():
    """What a submission may do: run, wait, read clocks and events, profile."""
    import cProfile
    import time

    import torch

    left = torch.rand(64, 64, device="cuda")
    begin = time.perf_counter()
    with cProfile.Profile():
        (left @ left).sum().item()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    left @ left
    last.record()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        left @ left
    return [time.perf_counter() > begin, first.elapsed_time(last) > 0, len(profile.key_averages()) > 0]


def logs_in_a_signal_handler():
    """As a training does that is asked to end; the signals come in the midst of launches."""
    import logging
    import signal

    import torch

    calls = []

    def handler(number, frame):
        calls.append(number)
        logging.getLogger("training").warning("asked to end")

    signal.signal(signal.SIGALRM, handler)
    product = torch.ones(64, 64, device="cuda")
    for number in range(60):
        signal.setitimer(signal.ITIMER_REAL, 1e-3)  # once: it must not come again while it is handled
        while len(calls) == number:
            product @ product
    return len(calls)
