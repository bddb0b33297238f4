"""What the judge asks of the sandbox and what it gets back: frozen records, nothing else.

Not for code that runs anything: the judge imports this module, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from numpy.typing import NDArray

Mode = Literal["namespaces", "limits"]

Kind = Literal[
    "ok",  # the probe returned
    "stub",  # NotImplementedError raised by the submission: the task is still open
    "import_error",  # the submission's module does not exist or does not import
    "wrong_return",  # says a probe: a return value is not what the docstring promises
    "error",  # any other exception that passed through the submission, or was provoked by what it defines
    "crashed",  # the process ended without a result: a signal, os._exit, too many processes
    "timeout",  # the wall-clock or CPU limit
    "memory",  # the memory limit, or an allocation that could not succeed under it
    "output",  # too much printed, written to files, or returned
    "unsupported",  # a simulated device does not know it, so neither do we
    "tampered",  # an instrument changed while the submission ran: the reading is void
    "probe_error",  # our own probe failed without a frame of the submission: needs review, never a failed check
]
KINDS: frozenset[str] = frozenset(get_args(Kind))

TAMPERING = "tampering"
"""The kind of a note about a reading that is void."""

VOID = "void"
"""The kind of a note by which a process of the submission says that the reading is void; becomes `TAMPERING`."""

NOTED = "gradebox.noted"
"""The audit event with which a probe notes something: what it measures with has to be what it was at this moment. Its
arguments are what answers for a library's objects just now (modes), none of which may be of the submission's making."""

LISTED = "gradebox.listed"
"""The same where a probe takes what it has noted: then all instruments are compared, and not a sample of them."""

DEFINED_AS = "; it is defined as"
"""In the message of a call whose arguments a function of the submission does not take."""
DESCENDANTS = "descendants"
"""The kind of a note about processes that outlived their run. Which of them are still seen is chance."""


class SandboxError(RuntimeError):
    """The sandbox itself could not do its work; never the submission's fault."""


class CourseFault(SandboxError):
    """What the course wants in the sandbox cannot be had; the message names the file."""


class SubmissionError(SandboxError):
    """The submission folder cannot be graded as it is (missing, too large, ambiguous); the message says what to do."""


@dataclass(frozen=True)
class Limits:
    """What one probe may use. All ranks of a request share each limit unless stated otherwise."""

    wall_seconds: float = 60.0
    cpu_seconds: float = 120.0
    memory_bytes: int = 4 * 2**30
    """Anonymous and shared memory that the processes add to the preloaded interpreter's, shared pages counted once."""
    processes: int = 256
    """Processes and threads together."""
    file_bytes: int = 256 * 2**20
    """Size of one file."""
    tmp_bytes: int = 512 * 2**20
    """All files together; `/dev/shm` has the same cap of its own."""
    output_bytes: int = 64 * 2**20
    """Standard output and error together; the reply keeps the beginning and the end (see `TEXT_BYTES`).

    Half a million lines that somebody has forgotten in a loop are below it, and what prints without an end is above.
    """
    result_bytes: int = 256 * 2**20
    """One rank's result."""
    rank_grace_seconds: float = 5.0
    """How long the other ranks may go on after one rank failed: they usually wait for it in a collective."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"Limits.{name} must be positive, not {value!r}")


TEXT_BYTES = 32 * 1024
"""How much of each output stream a reply keeps."""


@dataclass(frozen=True)
class Environment:
    """What a course wants in the processes that submissions run in."""

    labs: tuple[str, ...] = ()
    """Names of the labs, `lab1`: a folder `lab1_...` or `lab1-...` of a submission is that lab. Empty: any number."""
    preload: tuple[str, ...] = ("numpy",)
    """Modules that the server imports before it forks; `.*` means all modules of a package."""
    optional: tuple[str, ...] = ()
    """Those of `preload` that need not be there: an exercise may need a package that the labs do without."""
    found: tuple[str, ...] = ()
    """Modules that must be there to be found, but are not imported."""
    importable: tuple[str, ...] = ()
    """Packages of the course that a submission may import; all others it cannot see."""
    course: str = ""
    """The course's package: the probe `lab1.basics.product` is `product` of its module `lab1.basics.probes`."""
    course_parent: str = ""
    """The folder that holds it."""
    devices: str = ""
    """Module that attaches what submissions run on, see `gradebox.sandbox.devices`; without it they run on the CPU."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of one, after a journey as JSON."""
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(**frozen)


@dataclass(frozen=True)
class Failure:
    """Why a process that imports what a course needs could not."""

    text: str
    of_course: bool
    """Whether the course is to blame, and not the machine."""


@dataclass(frozen=True)
class Request:
    """One probe to run.

    `probe` is `"lab1.basics.product"` for the function `product` of the course's `lab1/basics/probes.py`. `params`
    (JSON values) and `tensors` (NumPy arrays, handed over as CPU tensors) become its keyword arguments. `device` is
    `"cpu"`, or what the course knows besides (`"cuda"`, `"vgpu:MODEL"`); `values=False` asks a simulated device for
    shapes only. With `student=False` the submission does not exist in the child: a run of our own code that yields a
    reference value.
    """

    probe: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    ranks: int = 1
    device: str = "cpu"
    values: bool = True
    student: bool = True
    limits: Limits | None = None
    conditions: Sequence[Mapping[str, Any]] = ()
    """What a simulated device learns, and the submission's process does not."""

    def __post_init__(self) -> None:
        module, _, function = self.probe.rpartition(".")
        if not (module and function and all(part.isidentifier() for part in self.probe.split("."))):
            raise ValueError(f"Request.probe must look like 'lab1.basics.product', not {self.probe!r}")
        if not 1 <= self.ranks <= 64:
            raise ValueError(f"Request.ranks must lie between 1 and 64, not {self.ranks}")
        if both := set(self.params) & set(self.tensors):
            raise ValueError(f"Request: {sorted(both)} given both as params and as tensors")


@dataclass(frozen=True)
class Note:
    """Something an instructor may want to look at. Never costs points by itself."""

    kind: str
    detail: str
    where: str | None = None


@dataclass(frozen=True)
class RankReply:
    """How one rank ended."""

    kind: Kind
    value: Any = None
    """JSON value the probe returned. The name of a tensor in `tensors` replaces it."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Tensors by path (`"loss"`, `"gradients/weight"`). bfloat16 and float8 arrive as float32, see `dtypes`."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """The type each tensor had in the child: `"bfloat16"`, `"float32"`, ..."""
    error: str | None = None
    """Type of the exception."""
    message: str = ""
    where: str | None = None
    """`"benchmark.py:41 in benchmark_matmul"`: the innermost frame of the submission, or None."""
    line: str | None = None
    """The source line at `where`, stripped."""
    traceback: str = ""
    """Full traceback text, for probe errors and instructors; empty when there is none."""
    importing: bool = False
    """Whether it was ended from outside while a module of the submission was being imported."""
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    starved_seconds: float | None = None
    """If it was ended from outside: how long it could have run, but had no processor; None if nobody counted it."""


@dataclass(frozen=True)
class Reply:
    """What came back from a request."""

    kind: Kind
    """The first rank's kind that is not `"ok"`, in the order tampered first, then by rank; `"ok"` when all are."""
    ranks: tuple[RankReply, ...]
    seconds: float
    """Real time of the round trip."""
    notes: tuple[Note, ...] = ()
    shown: tuple[Sequence[Sequence[Any]], ...] = ()
    """For each rank rows of what ran on a simulated device, which `gradebox.run.pictures.timeline` draws."""

    @property
    def first(self) -> RankReply:
        """The rank that decided `kind`: its error, message and where are the ones to show."""
        return next((rank for rank in self.ranks if rank.kind == self.kind), self.ranks[0])

    @property
    def value(self) -> Any:
        return self.ranks[0].value

    @property
    def tensors(self) -> Mapping[str, NDArray[Any]]:
        return self.ranks[0].tensors

    @property
    def error(self) -> str | None:
        return self.first.error

    @property
    def message(self) -> str:
        return self.first.message

    @property
    def where(self) -> str | None:
        return self.first.where


@dataclass(frozen=True)
class Isolation:
    """How the children are kept apart from the rest of the machine."""

    mode: Mode
    reason: str = ""
    """Why namespaces are not in use; empty when they are."""
    detail: str = ""
    unfiltered: str = ""
    """Why the children's system calls are not filtered; empty when they are."""
    protected: bool = False
    """Whether Landlock keeps the children from the grader and the reference, where there are no namespaces."""

    @property
    def lines(self) -> Sequence[str]:
        """For every report."""
        open_calls = f"  system calls are not filtered, because {self.unfiltered}: keyrings can carry answers along"
        rest = (open_calls,) if self.unfiltered else ()
        if self.mode == "namespaces":
            return (f"isolation: Linux namespaces ({self.detail})", *rest)
        all_but = " (not those of the grader)" if self.protected else ""
        return (
            f"isolation: process limits only, because {self.reason}",
            f"  the submission can see this machine's network and files{all_but}",
            "  grade only code that you would run yourself",
            *rest,
        )
