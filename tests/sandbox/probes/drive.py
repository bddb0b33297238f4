"""A probe that calls any function of the fake submission; the tests' stand-in for a lab's `probes/`."""

from __future__ import annotations

from typing import Any

from gradebox.sandbox.observer import READINGS, SystemReading


def call(student: Any, *, module: str, function: str, **arguments: Any) -> dict[str, Any]:
    """Call `labs.lab1_gpu_basics.MODULE.FUNCTION(**arguments)` and report what it returned."""
    target = getattr(student.module(f"lab1_gpu_basics.{module}"), function)
    return {"returned": target(**arguments)}


def forgets(student: Any, *, module: str, function: str, secret: str, several: list[str]) -> dict[str, Any]:
    """Call it when this frame shows the arguments no more."""
    del secret, several
    return call(student, module=module, function=function)


def url_of(student: Any, *, module: str, function: str) -> dict[str, Any]:
    """An attribute of what the function returns."""
    return {"url": getattr(student.module(f"lab1_gpu_basics.{module}"), function)().url}


def observed(student: Any, *, module: str, function: str) -> dict[str, Any]:
    """Call it; what the system tells of the run stands in three places of what is returned."""
    for attempt in range(2):
        getattr(student.module(f"lab1_gpu_basics.{module}"), function)(attempt)
    return {name: SystemReading(name) for name in READINGS}


def exchanged(student: Any) -> dict[str, Any]:
    """Each rank sends a megabyte to the others, over gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=student.rendezvous, rank=student.rank, world_size=student.ranks)
    dist.all_reduce(torch.ones(2**18))
    dist.destroy_process_group()
    return {"loopback_bytes": SystemReading("loopback_bytes")}


def fixed_signature(student: Any, *, module: str, function: str) -> dict[str, Any]:
    """Call with two arguments, whatever the function takes."""
    return {"returned": getattr(student.module(f"lab1_gpu_basics.{module}"), function)(1, 2)}


def broken(student: Any) -> dict[str, Any]:
    """A bug of ours."""
    return {"never": [][1]}


def wrong_return(student: Any) -> dict[str, Any]:
    """A probe that finds a return value unlike the docstring."""
    raise WrongReturn("double() returned None, expected a number")


class WrongReturn(Exception):
    sandbox_kind = "wrong_return"


def about(student: Any) -> dict[str, Any]:
    """What the child is told about itself."""
    return {
        "device": student.device,
        "gpu": student.gpu is not None,
        "rank": student.rank,
        "ranks": student.ranks,
        "present": student.present,
    }


def all_reduce(student: Any) -> dict[str, Any]:
    """Sum of the ranks' numbers, over gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=student.rendezvous, rank=student.rank, world_size=student.ranks)
    total = torch.tensor(float(student.rank + 1))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"total": total.item()}


def wait_for_everyone(student: Any, *, misbehaving: int, function: str) -> dict[str, Any]:
    """One rank calls `function` of the fake submission, the others wait for it in a collective."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=student.rendezvous, rank=student.rank, world_size=student.ranks)
    if student.rank == misbehaving:
        getattr(student.module("lab1_gpu_basics.endings"), function)()
    dist.barrier()
    return {}


def one_rank(student: Any, *, misbehaving: int, function: str) -> dict[str, Any]:
    """One rank calls `function`, the others return at once."""
    if student.rank == misbehaving:
        getattr(student.module("lab1_gpu_basics.endings"), function)()
    return {"rank": student.rank}


def tensors(student: Any, *, image: Any) -> dict[str, Any]:
    """Tensors of several types, and the one that came in."""
    import torch

    return {
        "image": image,
        "image_type": f"{type(image).__module__}.{type(image).__name__}",
        "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        "nested": {"weights": [torch.arange(3), torch.ones(2, 2)]},
        "transposed": torch.arange(6).reshape(2, 3).T,
        "scalar": torch.tensor(float("inf")),
    }


def odd_values(student: Any) -> dict[str, Any]:
    """Values JSON has no form for."""
    import numpy

    return {
        "nan": float("nan"),
        "infinities": (float("inf"), -float("inf")),
        "numpy": [numpy.float32(0.5), numpy.int64(3), numpy.bool_(True)],
        "dollar": {"$float": "nan", "x": 1},
        "object": object(),
        "surrogate": "\udc80",
    }


def forks(student: Any) -> dict[str, Any]:
    """Fork as a library would, and what `fork_guards`, imported by the server, knows of the processes down to there."""
    import os
    import sys

    guards = sys.modules["fork_guards"]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(guards.numbers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        return {"numbers": [int(number) for number in file.read().strip("[]").split(",")], "own": os.getpid()}


def machine(student: Any) -> dict[str, Any]:
    """All that a program sees of its machine at the beginning; then the probe leaves nothing as it was."""
    import random
    import time

    import numpy
    import torch

    def drawn() -> list[Any]:
        return [random.random(), numpy.random.rand(), torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()]

    state = {
        "virtual seconds": student.gpu.now(),
        "readings": [time.perf_counter(), time.monotonic(), time.process_time()],
        "model": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "values": (torch.ones(2, device="cuda") + 1).tolist(),
        "seeds": [torch.initial_seed(), torch.cuda.initial_seed()],
        "drawn": drawn() if student.gpu.values else [],
        "busy seconds": student.gpu.queue.busy_seconds,
        "memory": {key: int(value) for key, value in torch.cuda.memory_stats().items()},
        "changes of memory": len(student.gpu.memory_timeline),
        "end": student.gpu.now(),
        "wall": time.time(),
    }
    torch.manual_seed(123)
    student.gpu.inject_host_delay(0.5)
    student.gpu.machine.kept = torch.ones(1 << 20, device="cuda")
    torch.set_default_dtype(torch.float64)
    time.sleep(1000.0)
    torch.cuda.set_per_process_memory_fraction(0.1)
    return state


def secret(student: Any, *, word: str) -> dict[str, Any]:
    """A request that carries a word along."""
    return {"length": len(word)}


def above(student: Any, *, halves: list[str]) -> dict[str, Any]:
    """Whether a word stands in a local variable of any function that is running."""
    import sys

    frame, depth, found = sys._getframe(1), 0, False
    while frame is not None:
        found = found or any("".join(halves) in repr(value) for value in frame.f_locals.values())
        frame, depth = frame.f_back, depth + 1
    return {"found": found, "depth": depth}


def noting(student: Any, *, module: str, function: str) -> dict[str, Any]:
    """Hand out a function that notes something, as probes do."""
    import sys

    return call(student, module=module, function=function, note=lambda: sys.audit("gradebox.noted"))


def handed_out_failing(student: Any, *, module: str, function: str) -> dict[str, Any]:
    """Call it with a function that fails."""

    def fail() -> None:
        raise LookupError("as it should")

    return {"returned": getattr(student.module(f"lab1_gpu_basics.{module}"), function)(fail)}
