"""Probes of Lab 3's checkpoints: who wrote which file, what a failed save leaves, and what comes back.

Each runs in every rank. What is in a file is the student's affair; only what can be loaded from it counts.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.observer import SystemReading
from gradebox.sandbox.probe_loader import Student, WrongReturn
from gradebox.sandbox.probe_types import Array
from grader.lab3.checkpointing.cases import (
    BACK,
    FILE,
    FULL,
    MARK,
    RESUMED,
    CpuModelReply,
    GpuFileReply,
    Interrupted,
    InterruptedReply,
    Load,
    LoadOnACpu,
    LoadReply,
    Network,
    Resume,
    ResumedRun,
    ResumeReply,
    Save,
    SaveOnAGpu,
    SaveReply,
    State,
)
from grader.lab3.shared.cases.modules import DDP
from grader.lab3.shared.probes.models import Layers, flat, regression
from grader.lab3.shared.probes.optimizers import numbers_of, trained
from grader.lab3.shared.probes.versions import content_of, noting_version, version, watch_names, whole_versions
from grader.shared.probes.calls import if_accepted
from grader.shared.probes.kept import function, nap, notes
from grader.shared.probes.looks import written_bytes
from grader.shared.probes.ranks import TIMEOUT_SECONDS, Indexed, full_disk, group, half_squares, numbered
from grader.shared.probes.support import fields, plain
from grader.shared.probes.threads import running_threads
from labkit.results import DdpTraining

_SLOW_SECONDS = 0.2
"""Rank 0's lead for those who do not wait for it, which they need 0.01 s of; once or twice."""
_LATE_SECONDS = 0.3, 1.0
"""By which rank 0 comes late as well, drawn between these: a pause instead of a barrier is not long enough."""
_kept: list[Exception] = []


def _slowly(seconds: float = _SLOW_SECONDS) -> Callable[..., None]:
    """A hook that takes its time whenever somebody asks for a state."""
    wait = nap(seconds)
    return function(lambda *_: wait())


def _network(network: Network, *, frozen: bool = False) -> Layers:
    """The model of a case; of a `frozen` one the last layer needs no gradients."""
    model = Layers(network.first, network.second)
    if frozen:
        [*_, last] = model.parameters()
        last.requires_grad_(False)
    return model


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    states = [optimizer.state[parameter] for parameter in model.parameters() if parameter.requires_grad]
    moments = [state.get(name) for name in ("momentum_buffer", "exp_avg", "exp_avg_sq", "step") for state in states]
    return State(
        parameters=flat(model),
        buffer=model.get_buffer("seen").double(),
        count=model.get_buffer("count").reshape(1).double(),
        rates=torch.tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64),
        options=torch.tensor([numbers_of(group) for group in optimizer.param_groups], dtype=torch.float64),
        momentum=torch.cat([m.double().flatten() for m in moments if m is not None])
        if any(m is not None for m in moments)
        else torch.zeros(0, dtype=torch.float64),
    )


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)


def _written(path: Path, content: Tensor) -> Path:
    """The file with these bytes."""
    path.write_bytes(bytes(content.tolist()))
    return path


def save(student: Student, inputs: Save) -> SaveReply:
    """Each rank saves, and saves again after a step; with a replicated model rank 0 then takes its time.

    Afterwards: which files each rank made, whether rank 0's was what it is in the end when `save_checkpoint` was over
    on every rank, and its bytes. At last rank 0's disk is full: whether `save_checkpoint` returns all the same.
    """
    torch.set_num_threads(1)
    save_checkpoint = student.module(DDP).save_checkpoint
    base = Path(student.rendezvous.removeprefix("file://")).parent
    own, file = base / (f"rank{student.rank}" if student.rank else ""), base / FILE
    for folder in (own, own / FULL):
        folder.mkdir(exist_ok=True)
    os.chdir(own)
    model = _network(inputs.network, frozen=inputs.kind.frozen)
    with group(student):
        replica = DistributedDataParallel(model) if inputs.replicated else model
        optimizer = trained(replica, inputs.network.inputs, rate=inputs.rate, adam=inputs.kind.adam, decay=inputs.decay)
        save_checkpoint(FILE, replica, optimizer, inputs.epoch - 1)
        dist.barrier()
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        if inputs.replicated and student.rank == 0:
            model.register_state_dict_pre_hook(_slowly())  # type: ignore[no-untyped-call]
            optimizer.register_state_dict_pre_hook(_slowly())
            time.sleep(random.SystemRandom().uniform(*_LATE_SECONDS))
        before, threads = written_bytes(), running_threads()
        save_checkpoint(Path(FILE) if inputs.kind.path_object else FILE, replica, optimizer, inputs.epoch)
        wrote = None if before is None else (written_bytes() or 0) - before
        (base / f"{BACK}{student.rank}").touch()
        then = file.read_bytes() if file.exists() else None
        dist.barrier()
        complete = then is not None and then == file.read_bytes()
        content = (own / FILE).read_bytes() if (own / FILE).exists() else b""
        files = sorted(_files(own))
        dist.barrier()
        threads_left = len(running_threads() - threads)
        full = full_disk(inputs.disk_bytes, len(content) // 2) if student.rank == 0 else contextlib.nullcontext()
        returned = False
        with full, contextlib.suppress(Exception):
            # There is no file of this name: to write over one makes room first.
            save_checkpoint(f"{FULL}/{FILE}", replica, optimizer, inputs.epoch + 1)
            returned = True
        del replica
    return SaveReply(
        files=files,
        complete=complete,
        written_bytes=wrote,
        threads_left=threads_left,
        returned_without_a_file=returned,
        left=SystemReading("files"),  # type: ignore[arg-type]
        events=SystemReading("file_events"),  # type: ignore[arg-type]
        content=_bytes(content),
        state=_state(model, optimizer),
    )


def save_on_a_gpu(student: Student, inputs: SaveOnAGpu) -> GpuFileReply:
    """Save a model that is on the GPU, in a process without a group: what is in it, and the file's bytes."""
    model = _network(inputs.network).to(student.device)
    optimizer = trained(model, inputs.network.inputs.to(student.device))
    student.module(DDP).save_checkpoint(FILE, model, optimizer, 1)
    if not Path(FILE).is_file():
        raise WrongReturn(f"save_checkpoint({FILE!r}, ...) wrote no such file")
    return GpuFileReply(content=_bytes(Path(FILE).read_bytes()), parameters=flat(model).cpu())


def load_on_a_cpu(student: Student, inputs: LoadOnACpu) -> CpuModelReply:
    """Load a file on a machine without a GPU."""
    _written(Path(FILE), inputs.content)
    network = inputs.network
    model = Layers(network.first.flip(0), network.second.flip(0))
    optimizer = trained(model, network.inputs)
    student.module(DDP).load_checkpoint(FILE, model, optimizer)
    return CpuModelReply(parameters=flat(model))


def load(student: Student, inputs: Load) -> LoadReply:
    """Load a file into a model of other weights, whose optimizer has gone its own way; then into models that it does
    not fit, and from a file that is not there."""
    torch.set_num_threads(1)
    load_checkpoint = student.module(DDP).load_checkpoint
    file = _written(Path(f"given-{student.rank}.pt"), inputs.content)
    first, second, kind = inputs.network.first, inputs.network.second, inputs.kind
    model = _network(inputs.network, frozen=kind.frozen)
    before = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    with group(student) if student.ranks > 1 else contextlib.nullcontext():
        replica = DistributedDataParallel(model) if inputs.replicated else model
        optimizer = trained(replica, inputs.network.inputs, steps=1, rate=0.5, adam=kind.adam)
        epoch = load_checkpoint(file if kind.path_object else str(file), replica, optimizer)
        del replica
    epoch, state = plain(epoch, "load_checkpoint()"), _state(model, optimizer)
    in_place = before == [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    only = Layers(first, second)
    load_checkpoint(file, only)
    model_only = flat(only)
    misfits = {
        "whose layers have other names": Layers(first, second, prefix="other"),
        "whose layers have other shapes": Layers(first[:1], second[:, :1]),
        "whose layers have shapes to which those of the file could be repeated": Layers(
            torch.stack([first, first]), torch.stack([second, second])
        ),
        "that has a layer more": Layers(first, second, layers=3),
        "that has a layer less": Layers(first, second, layers=1),
    }
    refused, missing = {}, False
    if student.ranks == 1:
        refused = {name: _raises(RuntimeError, load_checkpoint, file, other) for name, other in misfits.items()}
        missing = _raises(OSError, load_checkpoint, Path("not-there.pt"), only)
    return LoadReply(
        epoch=epoch, state=state, in_place=in_place, model_only=model_only, refused=refused, missing=missing
    )


def _raises(kind: type[Exception], function: Callable[..., object], *arguments: object) -> bool:
    try:
        function(*arguments)
    except Exception as error:
        return isinstance(error, kind)
    return False


def interrupted(student: Student, inputs: Interrupted) -> InterruptedReply:
    """Save twice; save a larger model where the disk gets full half-way; load.

    One process alone, without a process group; it works in another folder than that of the checkpoint.
    """
    torch.set_num_threads(1)
    module = student.module(DDP)
    Path("elsewhere").mkdir(exist_ok=True)
    os.chdir("elsewhere")
    path = Path("..", FILE)
    first, second = inputs.network.first, inputs.network.second
    model = _network(inputs.network)
    optimizer = trained(model, inputs.network.inputs)
    named = watch_names(FILE)
    overwritten = _save_twice(module.save_checkpoint, path, model, optimizer)
    *_, renamed = [b"", *named()]
    overwritten |= bool(renamed) and path.is_file() and renamed != path.read_bytes()
    overwritten |= _save_twice(module.save_checkpoint, Path(FILE), model, optimizer)
    Path(FILE).unlink(missing_ok=True)
    if not path.is_file():
        raise WrongReturn(f"save_checkpoint({str(path)!r}, ...) wrote no such file")
    saved, size = flat(model), path.stat().st_size
    refused_there, overwritten_there = _on_another_disk(module.save_checkpoint, model, optimizer)
    unread = _error_of(module.load_checkpoint, path, Layers(second.T.clone(), first.T.clone()))
    silent = _is_silent_where_nothing_can_be_moved(module.save_checkpoint, model, optimizer)
    before = sorted(_files(Path("..")))
    (path.parent / MARK).touch()
    larger = Layers(first, second, layers=6)
    optimizer = trained(larger, inputs.network.inputs)
    failed = False
    # To write over the old file makes room for what that took, and no more.
    with full_disk(inputs.disk_bytes, size // 2):
        try:
            module.save_checkpoint(path, larger, optimizer, 2)
        except Exception as error:
            _kept.append(error)
            failed = True
    for kept in _kept:  # a temporary folder that tidies up after itself does so once no frame holds it
        traceback.clear_frames(kept.__traceback__)
    other = Layers(second.T.clone(), first.T.clone())
    loaded = _error_of(module.load_checkpoint, path, other)
    epoch, parameters = None, None
    if not loaded:
        epoch = plain(module.load_checkpoint(path, other), "load_checkpoint()")
        parameters = flat(other)
    return InterruptedReply(
        failed=failed,
        silent=silent,
        unread=unread,
        refused_there=refused_there,
        overwritten=overwritten,
        overwritten_there=overwritten_there,
        before=before,
        left=SystemReading("files"),  # type: ignore[arg-type]
        events=SystemReading("file_events"),  # type: ignore[arg-type]
        loaded=loaded,
        epoch=epoch,
        saved=saved,
        parameters=parameters,
    )


def _is_silent_where_nothing_can_be_moved(
    save: Callable[..., object], model: nn.Module, optimizer: torch.optim.Optimizer
) -> bool:
    """Whether a save returns although a folder with something in it is where its file would have to go.

    A folder, and no function of ours in the place of `os.replace`: code could ask whether it is Python's own. Nor has
    the path a name that says what is tried.
    """
    path = Path(f"{secrets.token_hex(4)}.pt")
    save(path, model, optimizer, 0)
    path.unlink()
    path.mkdir()
    (path / "kept").touch()
    try:
        save(path, model, optimizer, 1)
    except Exception as error:
        _kept.append(error)
        return False
    # Who moves the file into the folder has written it, if not where it belongs.
    return path.is_dir() and len(list(path.iterdir())) == 1


def _error_of(load: Callable[..., object], path: Path, model: nn.Module) -> str:
    """Why a file cannot be loaded; empty if it can."""
    try:
        load(path, model)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def _on_another_disk(
    save: Callable[..., object], model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[str, bool]:
    """Save twice into a folder on another file system than that of temporary files, if there is one.

    Returns why nothing could be saved there, and whether a save wrote into the file that was there.
    """
    try:
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        return "", False
    try:
        return "", _save_twice(save, folder / FILE, model, optimizer)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or error}", False
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _save_twice(save: Callable[..., object], path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Save one model after another; whether the second one was written into the file of the first."""
    save(path, model, optimizer, 0)
    with open(path, "rb") as first:  # as long as it is open, no other file can be taken for it
        save(path, model, optimizer, 1)
        return path.exists() and os.path.samestat(os.fstat(first.fileno()), path.stat())


def _files(folder: Path) -> set[str]:
    """What is in a folder and below it."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def resume(student: Student, inputs: Resume) -> ResumeReply:
    """`train`, once for each number of epochs, each time with a new model.

    With a checkpoint: what it is after `kept_after` epochs or in the end comes back, and how many versions of it the
    model's forward passes met, with the last one. Nothing else passes from one request to the next: what a module
    remembers does not help.
    """
    torch.set_num_threads(1)
    train = student.module(DDP).train
    dataset = Indexed(numbered(inputs.inputs), inputs.targets.double())
    weights = inputs.weights
    shift = torch.zeros(weights.shape[1])
    port = int(os.environ["MASTER_PORT"]) + 1  # the sandbox's is one of the usual ones
    path = Path(student.rendezvous.removeprefix("file://")).parent / RESUMED
    if inputs.content is not None:
        _written(path.with_name(f"given-{student.rank}.pt"), inputs.content).replace(path)
    runs, kept = [], b""
    for index, epochs in enumerate(inputs.until):
        note, versions = notes()
        passed, passes = notes()
        first: Array = weights[(index + student.rank) % len(weights)] if inputs.content is not None else weights[0]
        model = regression(first, shift, passed, dropout=inputs.dropout)
        model.register_state_dict_pre_hook(_slowly(inputs.saving_seconds))  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(noting_version(path, note))
        torch.rand(7)  # what was drawn before must not matter
        os.environ["MASTER_PORT"] = str(port + index)  # one for each: a rank that is slow to leave meets nobody else
        result = train(
            student.rank,
            student.ranks,
            model=model,
            dataset=dataset,
            criterion=half_squares,
            epochs=epochs,
            **({"checkpoint": path if inputs.path_objects[index] else str(path)} if inputs.checkpointed else {}),
            **if_accepted(train, timeout_seconds=TIMEOUT_SECONDS),
            **inputs.options,
        )
        report = fields(result, DdpTraining, "train()")
        trained = [each for each in passes() if each.training]
        seen = [*versions(), version(path, model)]
        kept = kept or content_of(seen, inputs.kept_after)
        runs.append(
            ResumedRun(
                weight=model.linear.weight.detach(),
                batches=len(trained),
                epochs=report["epochs"],
                steps=report["optimizer_steps"],
                losses=report["losses"],
                seconds=report["seconds"],
                least_seconds=trained[-1].end - trained[0].begin if trained else 0.0,
                versions=whole_versions(seen),
            )
        )
    return ResumeReply(
        runs=runs,
        content=_bytes(kept or (path.read_bytes() if path.is_file() else b"")),
        events=SystemReading("file_events"),  # type: ignore[arg-type]
    )
