"""Leaving an attachment leaves no trace, however it is left; attaching inside an attachment."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader

import vgpu
from vgpu.runtime import thread_scheduler
from vgpu.torch_integration.patches import PatchSet

ROOT = Path(__file__).parents[2]


class _Recorder:
    """Every attribute that a patch sets or rebinds, with its object before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: dict[tuple[int, str], tuple[Any, str, object]] = {}
        put, put_of = PatchSet.set, PatchSet.set_attribute_of

        def record(owner: Any, name: str) -> None:
            self.places.setdefault((id(owner), name), (owner, name, vars(owner).get(name, "missing")))

        def put_and_record(patches: PatchSet, owner: Any, name: str, value: Any) -> None:
            record(owner, name)
            put(patches, owner, name, value)

        def put_of_and_record(patches: PatchSet, owner: Any, name: str, value: Any) -> None:
            self.places.setdefault((id(owner), name), (owner, name, getattr(owner, name)))
            put_of(patches, owner, name, value)

        monkeypatch.setattr(PatchSet, "set", put_and_record)
        monkeypatch.setattr(PatchSet, "set_attribute_of", put_of_and_record)

    def changed(self) -> list[str]:
        """Names that do not hold what they held before."""
        return [
            f"{getattr(owner, '__name__', owner)}.{name}"
            for owner, name, before in self.places.values()
            if (vars(owner).get(name, "missing") if name != "__defaults__" else owner.__defaults__) is not before
        ]


def _names() -> dict[str, int]:
    """Every object that a module of PyTorch, the library modules concerned, or this one binds by name."""
    library = ("torch", "time", "timeit", "threading", "queue", "multiprocessing", "asyncio", "concurrent", "pynvml")
    modules = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and (name.partition(".")[0] in library or name == __name__)
    ]
    return {f"{module.__name__}.{name}": id(value) for module in modules for name, value in list(vars(module).items())}


def _traces(before: dict[str, int]) -> list[str]:
    # PyTorch itself adds names lazily and counts in module variables; those hold numbers, lists or tables.
    after = _names()
    changed = [name for name, value in before.items() if name in after and after[name] != value and "__" not in name]
    return [name for name in changed if callable(_value(name)) or "initialized" in name or "enabled" in name]


def _value(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return vars(sys.modules[module])[attribute]


def _work() -> None:
    layer = torch.nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
    torch.cuda.synchronize()


def _by_exception(error: type[BaseException]) -> Callable[[], None]:
    def leave() -> None:
        with contextlib.suppress(error), vgpu.attach("T4"):
            _work()
            raise error

    return leave


def _plainly() -> None:
    with vgpu.attach("T4"):
        _work()


def _by_closing_a_generator() -> None:
    def program() -> Iterator[None]:
        with vgpu.attach("T4"):
            _work()
            yield

    running = program()
    next(running)
    running.close()


def _in_a_thread() -> None:
    thread = threading.Thread(target=_plainly)
    thread.start()
    thread.join()


def _nested() -> None:
    with vgpu.attach("T4"):
        _work()
        with vgpu.attach("H100", values=False):
            _work()
        _work()


WAYS = [
    _plainly, _by_exception(ValueError), _by_exception(KeyboardInterrupt), _by_exception(SystemExit),
    _by_closing_a_generator, _in_a_thread, _nested,
]  # fmt: skip


@pytest.mark.parametrize("leave", WAYS)
def test_every_patched_name_is_put_back(leave: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    _nested()  # what PyTorch imports and makes at first use
    recorder, before = _Recorder(monkeypatch), _names()
    leave()
    assert len(recorder.places) > 200
    assert recorder.changed() == []
    assert _traces(before) == []
    assert _get_current_function_mode_stack() == []
    assert _get_current_dispatch_mode_stack() == []
    assert vgpu.current() is None
    assert not torch.cuda.is_available()


def test_the_patches_are_seen_while_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass if nothing were recorded."""
    recorder, before = _Recorder(monkeypatch), _names()
    with vgpu.attach("T4"):
        assert len(recorder.changed()) > 100
        assert {"torch.cuda.is_available", "time.sleep", "threading.Lock"} <= set(_traces(before))


@pytest.mark.night
def test_a_hundred_attachments_leave_nothing_in_memory() -> None:
    def some(count: int) -> int:
        for _ in range(count):
            with vgpu.attach("T4", values=False):
                torch.ones(2, device="cuda")
        gc.collect()
        return len(gc.get_objects())

    some(5)
    before = some(5)
    assert some(100) - before < 200


def test_blocks_of_the_program_that_are_still_open_stay_open() -> None:
    class Own(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    own = Own()
    with vgpu.attach("T4"):
        own.__enter__()
        autocast = torch.autocast("cuda")
        autocast.__enter__()
        inference = torch.inference_mode()
        inference.__enter__()
    assert _get_current_function_mode_stack() == [own]
    assert _get_current_dispatch_mode_stack() == []
    own.__exit__(None, None, None)
    inference.__exit__(None, None, None)
    autocast.__exit__(None, None, None)
    assert not torch.is_autocast_enabled("cuda")


def test_leaving_while_a_profiler_records() -> None:
    with vgpu.attach("T4"):
        profiler = torch.profiler.profile()
        profiler.__enter__()
        torch.ones(2, device="cuda") + 1
    profiler.__exit__(None, None, None)
    assert any(event.key == "aten::add" for event in profiler.key_averages())


def test_tensors_that_outlive_the_gpu_are_ordinary_and_free_quietly() -> None:
    with vgpu.attach("T4"):
        layer = torch.nn.Linear(3, 3).cuda()
        loss = layer(torch.ones(2, 3, device="cuda")).sum()
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device.type == "cpu"
    with vgpu.attach("T4"):
        assert not layer.weight.is_cuda
        del layer, loss
        assert torch.cuda.memory_allocated() == 0


def test_threads_that_outlive_the_gpu_go_on_in_real_time() -> None:
    """They were in the middle of a sleep, a wait and a program that waits for its turn."""
    finished: list[str] = []
    release = threading.Event()

    def waiter() -> None:
        release.wait()
        finished.append("waiter")

    def sleeper() -> None:
        time.sleep(1e6)
        finished.append("sleeper")

    def worker() -> None:
        while not release.is_set():
            torch.ones(10) + 1
            time.sleep(1e-3)
        finished.append("worker")

    with vgpu.attach("T4"):
        threads = [threading.Thread(target=target, daemon=True) for target in (waiter, sleeper, worker)]
        for thread in threads:
            thread.start()
        torch.ones(2, device="cuda") + 1
    release.set()
    for thread in threads:
        thread.join(10)
    assert sorted(finished) == ["sleeper", "waiter", "worker"]


def test_a_thread_that_outlives_its_gpu_sees_plain_pytorch() -> None:
    devices: list[str] = []
    attached, left = threading.Event(), threading.Event()

    def worker() -> None:
        tensor = torch.ones(2, device="cuda")
        attached.set()
        left.wait()
        devices.append((tensor + 1).device.type)

    with vgpu.attach("T4"):
        thread = threading.Thread(target=worker)
        thread.start()
        attached.wait()
    left.set()
    thread.join(10)
    assert devices == ["cpu"]


def test_another_thread_cannot_attach_beside_one_that_has() -> None:
    failures: list[BaseException] = []

    def attach() -> None:
        try:
            with vgpu.attach("H100"):
                pass
        except vgpu.AttachError as error:
            failures.append(error)

    with vgpu.attach("T4"):
        thread = threading.Thread(target=attach)
        thread.start()
        thread.join()
        assert torch.cuda.get_device_name() == "Tesla T4"
    assert "other threads" in str(failures[0])


# ---- nested --------------------------------------------------------------------------------------------------------


def test_an_inner_attach_is_a_fresh_machine(gpu: vgpu.VirtualGPU) -> None:
    _outer = torch.ones(1000, device="cuda")
    with vgpu.attach("H100", gpus=2, values=False) as inner:
        assert (torch.cuda.get_device_name(), torch.cuda.device_count()) == ("NVIDIA H100 80GB HBM3", 2)
        assert (torch.cuda.memory_allocated(), inner.now(), vgpu.current()) == (0, 0, inner)
        torch.cuda.set_device(1)
        assert torch.ones(2, device="cuda").device == torch.device("cuda:1")


def test_the_outer_machine_is_as_it_was(gpu: vgpu.VirtualGPU) -> None:
    tensor, stream = torch.arange(4.0, device="cuda"), torch.cuda.Stream()
    torch.cuda.manual_seed(7)
    torch.rand(3, device="cuda")
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    torch.rand(3, device="cuda")
    with torch.cuda.stream(stream), torch.device("cuda"):
        before = (gpu.now(), torch.cuda.memory_allocated(), len(gpu.timeline))
        with vgpu.attach("H100"):
            time.sleep(100)
            torch.randn(10_000, device="cuda").sum().item()
            torch.cuda.manual_seed(0)
        assert (gpu.now(), torch.cuda.memory_allocated(), len(gpu.timeline)) == before
        assert torch.cuda.current_stream() == stream
        assert torch.ones(1).is_cuda
    assert (tensor * 2).tolist() == [0, 2, 4, 6]
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    start = time.perf_counter()
    time.sleep(3)
    assert time.perf_counter() - start == pytest.approx(3, abs=1e-6)


@pytest.mark.parametrize(
    "use", [lambda t: t + 1, lambda t: t.cpu(), lambda t: t.device, lambda t: torch.ones(2, device="cuda").copy_(t)]
)
def test_tensors_of_the_outer_machine_are_foreign_inside(gpu: vgpu.VirtualGPU, use: Callable[[Any], Any]) -> None:
    tensor = torch.ones(2, device="cuda")
    with vgpu.attach("T4"), pytest.raises(RuntimeError, match=r"outer vgpu\.attach"):
        use(tensor)
    use(tensor)


def test_outer_tensors_freed_inside_are_freed_outside(gpu: vgpu.VirtualGPU) -> None:
    tensor = torch.ones(1000, device="cuda")
    with vgpu.attach("T4"):
        del tensor
        assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_allocated() == 0


def test_an_error_inside_restores_the_outer_machine(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(KeyError), vgpu.attach("H100"):
        raise KeyError
    assert torch.cuda.get_device_name() == "Tesla T4"
    assert torch.ones(1, device="cuda").is_cuda


def test_a_clock_that_the_program_bound_stays_virtual_after_an_inner_attach(gpu: vgpu.VirtualGPU) -> None:
    module = ModuleType("student_module_of_exits")
    module.__file__ = "/somewhere/student.py"
    sys.modules[module.__name__] = module
    try:
        exec("from time import perf_counter", module.__dict__)
        with vgpu.attach("T4"):
            pass
        before = module.perf_counter()
        time.sleep(50)
        assert module.perf_counter() - before == pytest.approx(50, abs=1e-6)
    finally:
        del sys.modules[module.__name__]


def test_an_inner_attach_is_refused_while_other_threads_use_the_machine(gpu: vgpu.VirtualGPU) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with pytest.raises(vgpu.AttachError, match="other threads"), vgpu.attach("T4"):
        pass
    stop.set()
    thread.join()
    with vgpu.attach("T4"):
        pass


# ---- where and how to attach ---------------------------------------------------------------------------------------


def test_real_cuda_is_replaced_only_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(vgpu.AttachError, match="force=True"), vgpu.attach("T4"):
        pass
    with vgpu.attach("T4", force=True), vgpu.attach("H100"):  # inside, the CUDA that is there is the virtual one
        assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"


def test_a_thread_started_before_may_attach() -> None:
    results: list[Any] = []
    go = threading.Event()

    def program() -> None:
        go.wait()
        with vgpu.attach("T4") as gpu:
            start = time.perf_counter()
            time.sleep(2)
            results.extend([time.perf_counter() - start, gpu.now() > 2, torch.ones(2, device="cuda").sum().item()])

    thread = threading.Thread(target=program)
    thread.start()
    go.set()
    thread.join()
    assert results == [pytest.approx(2, abs=1e-6), True, 2.0]


def test_threads_that_were_there_before_stay_in_real_time() -> None:
    durations: list[float] = []
    stop = threading.Event()

    def program() -> None:
        while not stop.is_set():
            begin = time.monotonic()
            time.sleep(0.001)
            durations.append(time.monotonic() - begin)

    thread = threading.Thread(target=program)
    thread.start()
    with vgpu.attach("T4") as gpu:
        for _ in range(20):
            torch.ones(2, device="cuda")
            thread_scheduler.sleep_real(0.002)
        assert gpu.now() < 1
    stop.set()
    thread.join()
    assert len(durations) > 2


BEGINNING = """
import json, os, re, sys, threading, time
import pynvml, torch, vgpu

def told(function, *arguments):
    try:
        return re.sub(" object at 0x[0-9a-f]+", "", str(function(*arguments)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def look(gpu):
    found = [gpu.now(), time.perf_counter(), torch.cuda.device_count(), torch.cuda.initial_seed(), gpu.values]
    found += [torch.rand(2, device="cuda").tolist(), (torch.ones(4, 4, device="cuda") @ torch.ones(4, 4).cuda()).shape]
    thread = threading.Thread(target=time.sleep, args=(3.0,))
    thread.start()
    thread.join()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    for name in [one for one in dir(pynvml) if one.startswith(("nvmlDeviceGet", "nvmlSystemGet"))]:
        found.append(f"{name}: {told(getattr(pynvml, name), *([handle] if 'Device' in name else []))}")
    for name in ("get_device_properties", "mem_get_info", "memory_stats", "get_rng_state", "memory_fraction"):
        found.append(f"{name}: {told(getattr(torch.cuda, name, None), 1)} {told(getattr(torch.cuda, name, None), 2)}")
    found += [torch.cuda.get_arch_list(), torch.cuda.is_bf16_supported(False), torch._C._get_sdp_priority_order()]
    found += [len(torch.cuda.default_generators), torch.__future__.get_swap_module_params_on_conversion()]
    wall = time.time() - float(int(real_time()))
    found += [torch.cuda.memory_stats()["allocated_bytes.all.peak"], gpu.now(), len(gpu.timeline), -2.0 < wall < 5.0]
    tensor = torch.ones(2, device="cuda")
    return found, tensor

arguments = dict(spec="H100", gpus=2, values=sys.argv[2] == "values")
from vgpu.torch_integration.patches import clocks
real_time = clocks._real.time

if sys.argv[1] == "attach":
    with vgpu.attach(force=True, **arguments) as gpu:
        found, tensor = look(gpu)
    print(json.dumps(found), tensor.device)
    sys.exit()

prepared = vgpu.prepare()
clocks._wall_start[0] -= 1000.0  # as if that had been long ago
assert time.time() - real_time() < 1 and vgpu.current() is None and torch.ones(2).device.type == "cpu"
for wrong in (vgpu.prepare, vgpu.attach("T4", force=True).__enter__, prepared.begin(**arguments).__enter__):
    try:
        wrong()
    except vgpu.AttachError:
        continue
    sys.exit("no AttachError")
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0:  # as a worker is forked from a supervisor
            with prepared.begin(**arguments) as gpu:
                found, tensor = look(gpu)
            print(json.dumps(found), tensor.device, flush=True)
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
"""


@pytest.mark.night
@pytest.mark.parametrize("values", ["values", "shapes"])
def test_children_of_a_prepared_process_begin_as_if_they_had_attached(tmp_path: Path, values: str) -> None:
    program = tmp_path / "beginning.py"
    program.write_text(BEGINNING)

    def lines(way: str) -> list[str]:
        command = [sys.executable, str(program), way, values]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    assert lines("prepare") == lines("attach") * 2


BEFORE = """
import json, os
import pynvml, torch, vgpu

def error(function, *args):
    try:
        function(*args)
    except Exception as error:
        return str(error)

prepared = vgpu.prepare()
if os.fork() == 0:
    torch.manual_seed(7)
    torch.cuda.manual_seed_all(8)
    CPU = torch.rand(2)
    pynvml.nvmlInit()
    before = [torch.cuda.is_available(), torch.accelerator.is_available(), torch.cuda.device_count()]
    before += [torch.cuda.is_initialized(), pynvml.nvmlDeviceGetCount()]
    refused = [error(torch.cuda.get_device_capability), error(torch.cuda.init), error(torch.cuda.current_device)]
    with prepared.begin("H100", gpus=2) as gpu:
        after = [torch.cuda.is_available(), torch.accelerator.is_available(), torch.cuda.device_count()]
        after += [torch.cuda.is_initialized(), pynvml.nvmlDeviceGetCount(), gpu.now(), torch.cuda.initial_seed()]
        again = error(prepared.begin("T4").__enter__)
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1))
        after += [torch.cuda.get_device_capability(), name]
    torch.manual_seed(7)
    print(json.dumps([before, refused, after, again, torch.equal(CPU, torch.rand(2))]), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.night
def test_before_it_begins_a_prepared_machine_has_no_gpu(tmp_path: Path) -> None:
    program = tmp_path / "before.py"
    program.write_text(BEFORE)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    before, refused, after, again, same_numbers = json.loads(done.stdout)
    assert before == [False, False, 0, False, 0]
    assert all("no virtual GPU has begun yet" in message for message in refused), refused
    assert after == [True, True, 2, False, 2, 0.0, 67280421310721, [9, 0], "NVIDIA H100 80GB HBM3 (simulated)"]
    assert "begun already" in again
    assert same_numbers


def test_a_data_loader_that_was_left_open_does_not_hang() -> None:
    with vgpu.attach("T4"):
        batches = iter(DataLoader(torch.arange(64.0), batch_size=4, num_workers=1))  # type: ignore[arg-type]
        next(batches)
    begin = time.monotonic()
    del batches
    assert time.monotonic() - begin < 8


PROGRAM = """
import time, torch, vgpu
with vgpu.attach("T4") as gpu:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
    data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randint(0, 8, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, pin_memory=True, shuffle=True)
    for inputs, targets in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs.cuda(non_blocking=True)), targets.cuda())
        optimizer.zero_grad(); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
    torch.cuda.synchronize()
    print(repr(time.perf_counter()), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(), loss.item())
    print([(kernel.name, kernel.start, kernel.seconds) for kernel in gpu.timeline])
    print(gpu.memory_timeline)
"""


@pytest.mark.night
def test_two_processes_give_the_same_times_and_bytes() -> None:
    runs = [
        subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout) > 10_000
