"""One rank: set limits, watch, attach the device, run the probe next to the submission, send what it returned.

Everything here happens in a process that ends with the submission's code; what it says is checked by the judge. Not for
isolation (done before, in `supervisor.py`) and not for judging.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import itertools
import mmap
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NoReturn

from gradebox.sandbox import (
    answers,
    audit,
    codec,
    devices,
    failures,
    handlers,
    instruments,
    landlock,
    linux,
    native_code,
    packing,
    probe_loader,
    probe_types,
    seccomp,
    trusted_code,
)
from gradebox.sandbox.channel import ReplyChannel
from gradebox.sandbox.devices import DeviceModule
from gradebox.sandbox.observer import CACHES
from gradebox.sandbox.prefork_state import PreforkState
from gradebox.sandbox.probe_loader import OWN, Student, trial
from gradebox.sandbox.types import Environment, Limits

TAMPERED = codec.join(b'{"kind":"tampered","message":"the sandbox\'s own code, or Python\'s builtins"}', b"")
"""The result of a rank whose own code is not what it was."""


@dataclass(frozen=True)
class Task:
    """What a rank has to do; the same for all ranks of a request except for `rank`."""

    probe: str
    params: dict[str, Any]
    tensors: bytes
    device: str
    values: bool
    present: bool
    rank: int
    ranks: int
    limits: Limits
    submission: str
    """Parent of the package `labs`, as the child sees it."""
    packages: str
    """Folder with `labkit` and `vgpu`, as the child sees it."""
    work: str
    """Working directory; the ranks' meeting place is in it."""
    source_roots: tuple[str, ...]
    course: Environment
    probe_folders: tuple[str, ...]
    """Files and folders of the course's probes."""
    probe_paths: tuple[str, ...]
    port: int
    threads: int
    uid: int | None
    address_bytes: int | None
    process_limit: int | None
    filtered: bool
    """Whether `seccomp.py` filters its system calls."""
    secret: tuple[str, ...] = ()
    """Folders that `landlock.py` keeps it from reading, where it can."""
    visible: tuple[str, ...] = ()
    """What it may read of them."""


@dataclass(frozen=True)
class Pipes:
    """A rank's ways out: descriptors to write to."""

    result: int
    notes: int
    trace: int
    stdout: int
    stderr: int
    control: int
    """A socket, for the listener of `seccomp.py`; closed before the submission runs."""
    device: int | None
    """A socket: the connection to the simulated device's process, if there is one."""


VOIDED, LOST = 0, 1
"""Bytes of the page that a worker shares with its supervisor, not 0 when: the check is void; a note was lost."""


def main(task: Task, ready: PreforkState, pipes: Pipes, channel: ReplyChannel, page: mmap.mmap) -> NoReturn:
    """Be rank `task.rank` of a request, in a process forked for it. Never returns.

    `ready` is what was done before the fork. `channel` is the way back for the result, already begun. `page` is shared
    with the supervisor, and with every process that the submission forks: what is said there needs no descriptor, which
    could be closed or replaced.
    """
    # Bound and made before a submission runs: what it replaces later does not reach these.
    own, getpid, leave = os.getpid(), os.getpid, os._exit
    channel.send((pipes.result, pipes.notes))
    module: Any = devices.load(task.course.devices)
    functions, entries = instruments.seal(sys.modules[__name__], codec, packing, module)
    pack = packing.packer(task.limits.result_bytes)
    try:
        _enter(task, pipes)
        emit = functools.partial(_emit, os.write, os.fstat, os.fstat(pipes.notes), page, pipes.notes)
        line = None if pipes.device is None else Connection(pipes.device)
        outcome, tensors = _observe(task, ready, module, emit, page, line, channel)
    except BaseException as error:  # ours alone: the submission's are caught in _observe
        outcome, tensors = packing.failed(failures.describe(error, submission="\0", importing=(), probe_folders=())), {}
    # A process the submission forked may come back here with our stack; only the rank itself may answer.
    if getpid() != own:
        leave(0)
    # Neither a function nor a builtin may be called before this is over: it is they that are in doubt.
    for function, code in functions:
        if function.__code__ is not code:
            channel.send(None)
            leave(0)
    for namespace, name, value in entries:
        if namespace.get(name) is not value:
            channel.send(None)
            leave(0)
    channel.send(pack(outcome, tensors))
    leave(0)


def _enter(task: Task, pipes: Pipes) -> None:
    """Limits, privileges, environment and standard streams; nothing of the submission runs yet."""
    os.setpgid(0, 0)
    _set_limits(task)
    if linux.AVAILABLE:
        linux.drop_privileges(task.uid)
    elif task.uid is not None:
        os.setuid(task.uid)
    if task.secret and landlock.available():
        landlock.protect(task.secret, (task.submission, task.packages, task.work, *task.visible, *task.probe_paths))
    if task.filtered:
        seccomp.enter(pipes.control, cuda=task.device == "cuda")
    else:
        os.close(pipes.control)
    os.chdir(task.work)
    _set_environment(task)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (pipes.stdout, 1), (pipes.stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = os.fdopen(0, closefd=False)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
    # Written by C code, so a loop that swallows exceptions and a crash still show their line.
    faulthandler.enable(file=pipes.trace, all_threads=False)
    faulthandler.register(signal.SIGTERM, file=pipes.trace, all_threads=False, chain=True)
    hidden = {*task.source_roots, ""}
    sys.path[:] = [task.submission, task.packages, *(entry for entry in sys.path if entry not in hidden)]
    sys.dont_write_bytecode = True
    sys.argv = ["probe"]


def _set_limits(task: Task) -> None:
    limits = task.limits
    by_resource = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: max(1, int(limits.cpu_seconds) + 1),
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_AS: task.address_bytes,
        resource.RLIMIT_NPROC: task.process_limit,
    }
    for which, value in by_resource.items():
        if value is not None:
            hard = resource.getrlimit(which)[1]
            # A student's handler may catch SIGXCPU; the hard limit a second later cannot be caught.
            soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
            top = soft + 1 if which == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else soft
            with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
                resource.setrlimit(which, (soft, top))


def _set_environment(task: Task) -> None:
    kept = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LANG", "TZ")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": task.work,
        "TMPDIR": task.work,
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{task.work}/.matplotlib",
        "XDG_CACHE_HOME": f"{task.work}/.cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{task.work}/.inductor",
        "TRITON_CACHE_DIR": f"{task.work}/.triton",
        "PYTHONPATH": f"{task.submission}:{task.packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(task.threads),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(task.port),
        "RANK": str(task.rank),
        "LOCAL_RANK": str(task.rank),
        "WORLD_SIZE": str(task.ranks),
        "LOCAL_WORLD_SIZE": str(task.ranks),
    }
    if linux.AVAILABLE:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None


def _observe(
    task: Task,
    ready: PreforkState,
    module: DeviceModule,
    emit: Callable[[bytes], None],
    page: mmap.mmap,
    line: Connection | None,
    channel: ReplyChannel,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the probe; the reply's fields and the tensors, as NumPy arrays."""
    places = [*task.probe_folders, *task.probe_paths]
    importing: list[str] = []
    taken: dict[str, tuple[str, Any]] = {}
    readings: dict[str, int] = {}
    of_system: dict[str, str] = {}
    tampered: list[str] = []
    about = module.SIMULATOR
    # Bound before the submission runs, as is all that is used after it.
    of_gpu, put_aside = module.parts, packing.putting_aside(taken, readings, of_system, module.from_probe)
    convert, describe, failed = codec.converter(), failures.describe, packing.failed
    kind_of, table, failure = type, dict, TypeError
    try:
        module.seed(task.device, task.rank, threads=task.threads)
        probe: Callable[..., object] = (
            trial if task.probe == OWN else probe_loader.find(task.probe, task.probe_paths, task.course.course)
        )
        tensors = {name: module.to_probe(array) for name, array in codec.load_tensors(task.tensors).items()}
        whole = {name: tensor for name, tensor in tensors.items() if "/" not in name}
        arguments = codec.put_back(task.params, tensors) | whole
        with module.attach(
            task.device, values=task.values, ranks=task.ranks, prepared=ready.prepared, line=line
        ) as gpu:
            student = Student(
                device=module.visible(task.device),
                gpu=gpu,
                rank=task.rank,
                ranks=task.ranks,
                rendezvous=f"file://{task.work}/rendezvous",
                present=task.present,
                importing=importing,
            )
            # Built here: below, the modules that its type hints name are out of reach.
            kind = probe_types.inputs_type(probe)
            inputs = (
                [probe_types.build(kind, _emptied(arguments, task.params), f"{task.probe} was sent")] if kind else []
            )
            own = instruments.own_packages(task.course, about)
            finish: Callable[[], object] = _nothing
            check: Callable[[], Sequence[str]] = _nothing
            covered = ready.covers(probe.__module__, gpu) or not task.present
            fingerprints = ready.fingerprints if covered else instruments.snapshot(own, module)
            _hide(ready, "gradebox", task.course.course)
            if task.present:
                wrapped = handlers.hide_frames()
                before = instruments.parts(gpu, own, of_gpu)
                check = functools.partial(instruments.changed, fingerprints, before, gpu, own, of_gpu)
                hidden = module.hidden(gpu) if gpu is not None else None
                ours = (channel,)
                libraries = _libraries(task, own)
                known = trusted_code.trusted(
                    task.course.course, libraries, probe.__module__, _observe.__code__, about, hidden, ours
                )
                del channel, ours
                void = functools.partial(_void, page, tampered.append)
                # On a real device it would take time of the host's that is being measured.
                is_real = task.device == "cuda"
                modes = () if gpu is None else module.modes(gpu)
                as_before = list if gpu is None else answers.comparing(module.answering(gpu), module.links(gpu))
                own_code = known.probes | known.simulator
                look = _nowhere if is_real else instruments.watch(fingerprints, own_code, as_before, wrapped)
                finish = audit.install(known, fingerprints.functions, _folders(task), emit, void, look, modes)
                del modes, as_before, wrapped
            # Out of reach of `gc.get_objects`: the probe's frames, a simulator and its record.
            gc.freeze()
            gc.unfreeze = _leave_frozen
            try:
                returned = (
                    probe(student, inputs.pop()) if inputs else probe(student, **_emptied(arguments, task.params))
                )
            finally:
                finish()
                tampered += check()
        # What runs from now on was bound before there was a submission: no comparison comes after it.
        value = convert(returned, put_aside)
        if kind_of(value) is not table:
            raise failure(f"a probe must return a dictionary, and this one returned {kind_of(returned).__name__}")
        outcome: dict[str, Any] = {"kind": "ok", "value": value}
    except BaseException as error:
        outcome = failed(
            describe(
                error,
                submission=task.submission,
                importing=importing,
                probe_folders=[place if place.endswith(".py") else f"{place}/" for place in places],
                simulator=about,
            )
        )
    if tampered:
        # Nothing more is needed from what may have been changed: no tensors, and names that are our own.
        return {"kind": "tampered", "message": ", ".join(list(dict.fromkeys(tampered))[:8])}, {}
    arrays, dtypes = {}, {}
    if outcome["kind"] == "ok":
        dtypes = {name: dtype for name, (dtype, _) in taken.items()}
        arrays = {name: array for name, (_, array) in taken.items()}
    return outcome | {"dtypes": dtypes, "readings": readings, "system": of_system}, arrays


def _nowhere(whole: bool) -> list[str]:
    """Instead of what compares instruments, where that would be measured."""
    return []


def _nothing() -> tuple[()]:
    """Instead of what watches a submission, where there is none."""
    return ()


def _folders(task: Task) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Those in which opening a file deserves no note, those with all native code that there is already, and those in
    the first that libraries alone write to."""
    installed = native_code.installed(task.submission, task.work)
    caches = tuple(f"{task.work}/{name}" for name in CACHES)
    return (task.submission, task.work, task.packages, "/tmp", "/dev/shm", "/etc", *installed), installed, caches


def _libraries(task: Task, packages: Sequence[ModuleType]) -> list[str]:
    """Folders of code that is neither the submission's nor unknown; what is written to `/tmp` later is not in them."""
    folders = [os.path.dirname(str(package.__file__)) for package in packages]
    on_path = [entry for entry in sys.path if os.path.isabs(entry) and entry not in (task.submission, task.work)]
    return [*folders, os.path.dirname(os.path.dirname(__file__)), *task.probe_paths, *on_path]


def _emptied(arguments: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """A copy of `arguments`, which are then empty, and so are `params`: frames above the probe show none of them."""
    taken = dict(arguments)
    arguments.clear()
    params.clear()
    return taken


def _leave_frozen() -> None:
    """`gc.unfreeze` in a child: what is ours stays out of sight, and nobody else has frozen anything."""


def _void(page: mmap.mmap, append: Callable[[str], None], what: str) -> None:
    """Also in a process that the submission forked, whose `append` reaches nobody."""
    page[VOIDED] = 1
    append(what)


def _emit(
    write: Callable[[int, bytes], int],
    look: Callable[[int], os.stat_result],
    pipe: os.stat_result,
    page: mmap.mmap,
    notes: int,
    line: bytes,
) -> None:
    """Write a note to the pipe that descriptor `notes` was; where it is another file by now, say so."""
    try:
        now = look(notes)
        if (now.st_dev, now.st_ino) == (pipe.st_dev, pipe.st_ino) and write(notes, line) == len(line):
            return
    except OSError:  # closed, or full and non-blocking
        pass
    page[LOST] = 1


def _hide(ready: PreforkState, *packages: str) -> None:
    """Take the probes and ourselves out of `sys.modules`, so that a submission cannot measure with them."""
    # The newest stand last. To go through all names would touch, and so copy, a page for every second one.
    added = itertools.islice(reversed(sys.modules), len(sys.modules) - ready.imported)
    for name in [*ready.modules, *added]:
        if name.partition(".")[0] in packages:
            sys.modules.pop(name, None)
