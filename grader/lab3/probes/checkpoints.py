"""Probes of Lab 3's checkpoints: who wrote which file, what a failed save leaves, and what comes back.

Each runs in every rank. What is in a file is the student's affair; only what can be loaded from it counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.probe_loader import WrongReturn
from grader.lab3.probes.training import DDP, Regression, flat
from grader.shared.probes.calls import if_accepted
from grader.shared.probes.ranks import TIMEOUT_SECONDS, Indexed, disk_full_after, group, half_squares, numbered
from grader.shared.probes.support import fields, plain
from labkit.results import DdpTraining

FILE = "checkpoint.pt"
_SLOW_SECONDS = 0.2
"""Rank 0's lead for those who do not wait for it, which they need 0.01 s of; once or twice."""
_kept: list[Exception] = []


class Network(nn.Module):
    """Two layers and two buffers, one of whole numbers; what computes is in float64."""

    def __init__(self, first: Tensor, second: Tensor, *, prefix: str = "layer", layers: int = 2) -> None:
        super().__init__()
        for index in range(layers):
            weight = (first, second)[index % 2]
            layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
            layer.weight.data = weight.double().clone()
            self.add_module(f"{prefix}{index + 1}", layer)
        self.register_buffer("seen", first.double().sum().reshape(1))
        self.register_buffer("count", (first * 1000).long().sum().abs())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class _Slow:
    """Takes its time whenever somebody asks for a state."""

    def __call__(self, *_: Any) -> None:
        time.sleep(_SLOW_SECONDS)


def _trained(
    model: nn.Module, inputs: Tensor, *, steps: int = 3, rate: float = 0.01, adam: bool = False
) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam, that has some; the first parameter has a learning rate of its own."""
    first, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "lr": rate / 2}, {"params": others}]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(groups, lr=rate) if adam else torch.optim.SGD(groups, lr=rate, momentum=0.9)
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs.double()).square().mean().backward()
        optimizer.step()
    return optimizer


def _described(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    states = [optimizer.state[parameter] for parameter in model.parameters() if parameter.requires_grad]
    moments = [state.get(name) for name in ("momentum_buffer", "exp_avg", "exp_avg_sq", "step") for state in states]
    return {
        "parameters": flat(model),
        "buffer": model.get_buffer("seen").double(),
        "count": model.get_buffer("count").reshape(1).double(),
        "rates": torch.tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64),
        "momentum": torch.cat([m.double().flatten() for m in moments if m is not None])
        if any(m is not None for m in moments)
        else torch.zeros(0, dtype=torch.float64),
    }


def save(
    student: Any,
    *,
    first: Tensor,
    second: Tensor,
    inputs: Tensor,
    epoch: int,
    rate: float,
    replicated: bool,
    path_object: bool,
    adam: bool,
    frozen: bool,
) -> dict[str, Any]:
    """Each rank saves in a working directory of its own, under the same name, and saves again after a step; with
    `replicated` rank 0 then takes its time to collect its state. Of the model the last layer may be `frozen`.

    Afterwards: which files each rank made, whether rank 0's was what it is in the end when `save_checkpoint` was over
    on every rank, and its bytes. At last rank 0's disk is full: whether `save_checkpoint` returns all the same.
    """
    torch.set_num_threads(1)
    save_checkpoint = student.module(DDP).save_checkpoint
    base = Path(student.rendezvous.removeprefix("file://")).parent
    own, file = base / f"rank{student.rank}", base / "rank0" / FILE
    own.mkdir(exist_ok=True)
    os.chdir(own)
    model = _network(first, second, frozen=frozen)
    with group(student):
        replica = DistributedDataParallel(model) if replicated else model
        optimizer = _trained(replica, inputs, rate=rate, adam=adam)
        save_checkpoint(FILE, replica, optimizer, epoch - 1)
        dist.barrier()
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        if replicated and student.rank == 0:
            model.register_state_dict_pre_hook(_Slow())  # type: ignore[no-untyped-call]
            optimizer.register_state_dict_pre_hook(_Slow())
        save_checkpoint(Path(FILE) if path_object else FILE, replica, optimizer, epoch)
        then = file.read_bytes() if file.exists() else None
        dist.barrier()
        complete = then is not None and then == file.read_bytes()
        content = (own / FILE).read_bytes() if (own / FILE).exists() else b""
        files = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())
        dist.barrier()
        full = disk_full_after(len(content) // 2) if student.rank == 0 else contextlib.nullcontext()
        returned = False
        with full, contextlib.suppress(Exception):
            save_checkpoint(FILE, replica, optimizer, epoch + 1)
            returned = True
        del replica
    return {
        "files": files,
        "complete": complete,
        "returned_without_a_file": returned,
        "content": torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8),
        **_described(model, optimizer),
    }


def save_on_a_gpu(student: Any, *, first: Tensor, second: Tensor, inputs: Tensor) -> dict[str, Any]:
    """Save a model that is on the GPU, in a process without a group: what is in it, and the file's bytes."""
    model = Network(first, second).to(student.device)
    optimizer = _trained(model, inputs.to(student.device))
    student.module(DDP).save_checkpoint(FILE, model, optimizer, 1)
    if not Path(FILE).is_file():
        raise WrongReturn(f"save_checkpoint({FILE!r}, ...) wrote no such file")
    content = torch.frombuffer(bytearray(Path(FILE).read_bytes()), dtype=torch.uint8)
    return {"content": content, "parameters": flat(model).cpu()}


def load_on_a_cpu(student: Any, *, content: Tensor, first: Tensor, second: Tensor, inputs: Tensor) -> dict[str, Any]:
    """Load a file with these bytes where there is no GPU."""
    Path(FILE).write_bytes(bytes(content.tolist()))
    model = Network(first.flip(0), second.flip(0))
    optimizer = _trained(model, inputs)
    student.module(DDP).load_checkpoint(FILE, model, optimizer)
    return {"parameters": flat(model)}


def _network(first: Tensor, second: Tensor, *, frozen: bool) -> Network:
    model = Network(first, second)
    if frozen:
        [*_, last] = model.parameters()
        last.requires_grad_(False)
    return model


def load(
    student: Any,
    *,
    content: Tensor,
    first: Tensor,
    second: Tensor,
    inputs: Tensor,
    replicated: bool,
    path_object: bool,
    adam: bool,
    frozen: bool,
) -> dict[str, Any]:
    """Load a file with these bytes into a model of other weights, whose optimizer has gone its own way; then into
    models that it does not fit, and from a file that is not there."""
    torch.set_num_threads(1)
    load_checkpoint = student.module(DDP).load_checkpoint
    file = Path(f"given-{student.rank}.pt")
    file.write_bytes(bytes(content.tolist()))
    model = _network(first, second, frozen=frozen)
    before = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    with group(student) if student.ranks > 1 else contextlib.nullcontext():
        replica = DistributedDataParallel(model) if replicated else model
        optimizer = _trained(replica, inputs, steps=1, rate=0.5, adam=adam)
        epoch = load_checkpoint(file if path_object else str(file), replica, optimizer)
        del replica
    seen = {
        "epoch": plain(epoch, "load_checkpoint()"),
        **_described(model, optimizer),
        "in_place": before == [id(tensor) for tensor in (*model.parameters(), *model.buffers())],
    }
    only = Network(first, second)
    load_checkpoint(file, only)
    seen["model_only"] = flat(only)
    misfits = {
        "whose layers have other names": Network(first, second, prefix="other"),
        "whose layers have other shapes": Network(first[:1], second[:, :1]),
        "that has a layer more": Network(first, second, layers=3),
        "that has a layer less": Network(first, second, layers=1),
    }
    if student.ranks == 1:
        seen["refused"] = {name: _raises(RuntimeError, load_checkpoint, file, other) for name, other in misfits.items()}
        seen["missing"] = _raises(OSError, load_checkpoint, Path("not-there.pt"), only)
    return seen


def _raises(kind: type[Exception], function: Any, *arguments: Any) -> bool:
    try:
        function(*arguments)
    except Exception as error:
        return isinstance(error, kind)
    return False


def interrupted(student: Any, *, first: Tensor, second: Tensor, inputs: Tensor) -> dict[str, Any]:
    """Save once; save again where writing fails half-way; load; and watch whether a save opens its file for writing.

    Of the failed save also which files are there afterwards that were not there before.

    One process alone, without a process group.
    """
    torch.set_num_threads(1)
    module = student.module(DDP)
    opened: list[str] = []
    gone: list[str] = []

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if _writes(event, given):
            opened.append(str(given[0]))
        elif event in ("os.remove", "os.rename"):  # also what os.replace and shutil.move tell
            gone.append(os.path.abspath(os.fsdecode(given[0])))

    sys.addaudithook(watch)
    folder = Path("saved")
    folder.mkdir(exist_ok=True)
    path = folder / FILE
    model = Network(first, second)
    optimizer = _trained(model, inputs)
    module.save_checkpoint(path, model, optimizer, 1)
    module.save_checkpoint(path, model, optimizer, 1)
    if not path.is_file():
        raise WrongReturn(f"save_checkpoint({str(path)!r}, ...) wrote no such file")
    overwritten = any(os.path.realpath(name) == os.path.realpath(path) for name in opened)
    taken_away = os.path.abspath(path) in gone
    saved, size = flat(model), path.stat().st_size
    other_disk = _on_another_disk(module.save_checkpoint, model, optimizer, opened)
    unread = _error_of(module.load_checkpoint, path, Network(second.T.clone(), first.T.clone()))
    before = _files()
    for parameter in model.parameters():
        parameter.data.add_(1.0)
    failed = False
    with disk_full_after(size // 2):
        try:
            module.save_checkpoint(path, model, optimizer, 2)
        except Exception as error:
            _kept.append(error)
            failed = True
    seen = {
        "failed": failed,
        "overwritten": overwritten,
        "taken_away": taken_away,
        "unread": unread,
        "loaded": "",
        **other_disk,
    }
    for kept in _kept:  # a temporary folder that tidies up after itself does so once no frame holds it
        traceback.clear_frames(kept.__traceback__)
    seen["left"] = sorted(str(file) for file in _files() - before)
    other = Network(second.T.clone(), first.T.clone())
    if loaded := _error_of(module.load_checkpoint, path, other):
        return {**seen, "loaded": loaded}
    epoch = plain(module.load_checkpoint(path, other), "load_checkpoint()")
    return {**seen, "epoch": epoch, "saved": saved, "parameters": flat(other)}


def _error_of(load: Any, path: Path, model: nn.Module) -> str:
    try:
        load(path, model)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def _on_another_disk(save: Any, model: nn.Module, optimizer: torch.optim.Optimizer, opened: list[str]) -> Any:
    """Save twice into a folder that lies on another file system than temporary files do, where there is one."""
    try:
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        return {"refused_there": "", "overwritten_there": False}
    path, refused = folder / FILE, ""
    try:
        for epoch in (1, 2):
            save(path, model, optimizer, epoch)
    except OSError as error:
        refused = f"{type(error).__name__}: {error.strerror or error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"refused_there": refused, "overwritten_there": str(path) in opened}


def _files() -> set[Path]:
    """What lies in the working directory and below it."""
    return {file for file in Path().rglob("*") if file.is_file()}


def _writes(event: str, given: tuple[Any, ...]) -> bool:
    """Whether an audit event is Python opening a named file for writing; PyTorch's C++ opens its files unseen."""
    return event == "open" and isinstance(given[0], (str, os.PathLike)) and bool(given[2] & (os.O_WRONLY | os.O_RDWR))


def resume(
    student: Any,
    *,
    weights: Tensor,
    inputs: Tensor,
    targets: Tensor,
    until: list[int],
    arguments: dict[str, Any],
    checkpointed: bool,
    content: Tensor | None = None,
    path_objects: Sequence[bool] = (),
) -> dict[str, Any]:
    """`train` with dropout, once for each number of epochs in `until`, each time with a new model.

    The models begin with `weights`, one after the other. With `checkpointed` there is a checkpoint, which `content`
    is, if it is given; what it is in the end comes back, and how many versions of it the model's forward passes saw,
    with the last one. Nothing else passes from one request to the next: what a
    module remembers does not help.
    """
    torch.set_num_threads(1)
    train = student.module(DDP).train
    dataset = Indexed(numbered(inputs), targets.double())
    shift = torch.zeros(weights.shape[1])
    port = int(os.environ["MASTER_PORT"]) + 1  # the sandbox's is one of the usual ones
    path = Path(student.rendezvous.removeprefix("file://")).parent / "resumed.pt"
    if content is not None:
        draft = path.with_name(f"given-{student.rank}.pt")
        draft.write_bytes(bytes(content.tolist()))
        draft.replace(path)
    seen = []
    for index, epochs in enumerate(until):
        versions: list[tuple[int, int] | None] = []
        first = weights[(index + student.rank) % len(weights)] if content is not None else weights[0]
        model = Regression(first, shift, dropout=0.5)
        model.register_forward_pre_hook(lambda *_, seen=versions: seen.append(_version(path)))
        torch.rand(7)  # what was drawn before must not matter
        os.environ["MASTER_PORT"] = str(port + index)  # one for each: who is slow to leave meets nobody else
        result = train(
            student.rank,
            student.ranks,
            model=model,
            dataset=dataset,
            criterion=half_squares,
            epochs=epochs,
            **({"checkpoint": path if path_objects[index] else str(path)} if checkpointed else {}),
            **if_accepted(train, timeout_seconds=TIMEOUT_SECONDS),
            **arguments,
        )
        told = fields(result, DdpTraining, "train()")
        seen.append(
            {
                "weight": model.linear.weight.detach(),
                "batches": len(model.samples),
                "epochs": told["epochs"],
                "steps": told["optimizer_steps"],
                "losses": told["losses"],
                "versions": len({*versions, _version(path)} - {None}),
            }
        )
    written = path.read_bytes() if path.is_file() else b""
    return {"runs": seen, "content": torch.frombuffer(bytearray(written or b"\0"), dtype=torch.uint8)}


def _version(path: Path) -> tuple[int, int] | None:
    """Tells a file from what was there before."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
