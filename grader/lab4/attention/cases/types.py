"""What the probes of Lab 4's attention are given, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab4.shared.cases import Fields


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an attention function."""

    dtype: str
    queries: int
    keys: int
    causal: bool
    block_size: int | None = None
    """Keys in a tile, of tiled attention alone."""


@dataclass(frozen=True, kw_only=True)
class DrawnCall(Call):
    """One call with a part of the operands that all calls share."""

    factor: int = 1
    """What the queries are multiplied by."""
    transposed: bool | None = None
    """Whether the operands are views of tensors that have the heads behind the length; None before it is drawn."""
    needed: str = "QKV"
    """Which of the operands require a gradient."""
    alone: bool = False
    """Whether there is one sequence with one head."""


@dataclass(frozen=True, kw_only=True)
class AttendRun:
    """What one call gave."""

    dtype: str
    output: Array
    d_query: Array
    d_key: Array
    d_value: Array
    changed: list[str]
    """Operands that are others afterwards."""


@dataclass(frozen=True, kw_only=True)
class AttendReply:
    """One run for each call."""

    runs: list[AttendRun]


@dataclass(frozen=True, kw_only=True)
class Attend(ProbeInputs[AttendReply], probe="lab4.attention.values.attend"):
    """Call a function, and go back through it from a gradient of its output."""

    function: str
    calls: list[DrawnCall]
    q: Array
    k: Array
    v: Array
    gradient: Array


@dataclass(frozen=True, kw_only=True)
class ChangedKey:
    """So many queries and keys, and the key that is another in the second call."""

    queries: int
    keys: int
    changed: int


Moved: TypeAlias = list[float]
"""How far the output of each query moves."""


@dataclass(frozen=True, kw_only=True)
class FutureReply:
    """By function, for each case in training and then without gradients."""

    moved: Mapping[str, list[Moved]]


@dataclass(frozen=True, kw_only=True)
class Future(ProbeInputs[FutureReply], probe="lab4.attention.values.future"):
    """Change one key and its value, and see which outputs of causal attention move."""

    functions: list[str]
    cases: list[ChangedKey]
    seed: int


@dataclass(frozen=True, kw_only=True)
class LargestRun:
    """What forward and backward of one call made."""

    largest_elements: int
    """Of the largest tensor that an operation was given."""
    flops: float
    """Of the products that the device computed."""
    copied_bytes: int
    """From the device to the host."""
    added_bytes: int
    kept_bytes: int
    """Of them, those that are held between forward and backward."""
    attention_kernels: list[str]
    """Names of kernels of a library that compute attention."""
    values: list[Array]
    """Q, K, V, the output's gradient, the output, and the gradients of Q, K and V, if they are to be returned."""


@dataclass(frozen=True, kw_only=True)
class LargestReply:
    """One run for each case."""

    runs: list[LargestRun]


@dataclass(frozen=True, kw_only=True)
class Largest(ProbeInputs[LargestReply], probe="lab4.attention.tensors.largest"):
    """Look at what forward and backward of one head make."""

    function: str
    cases: list[Call]
    head_dim: int
    returned: bool = False
    """Whether values come back."""


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """One call of flash-attn."""

    module: str
    shapes: list[list[int]]
    """Of queries, keys and values."""
    causal: bool


@dataclass(frozen=True, kw_only=True)
class InstalledReply:
    """What the submission does once a package is installed."""

    before: object
    """What `attention_backend` says before anything is installed."""
    backend: object
    on_cpu: object
    calls: list[LibraryCall]
    outputs: list[Array]
    benchmarked: list[tuple[str, object, object]]
    """For each dtype, the backend in the row of a benchmark, and what `attention_backend` says."""


@dataclass(frozen=True, kw_only=True)
class Installed(ProbeInputs[InstalledReply], probe="lab4.attention.library.installed"):
    """Call flash attention where a stand-in of flash-attn is installed."""

    modules: list[str]
    dtype: str
    q: Array
    k: Array
    v: Array
    causal: bool
    factors: Mapping[str, float] = field(default_factory=lambda: {"flash_attn": 1.0, "flash_attn.cute": 1.0})
    """By what each package's stand-in multiplies its outputs."""
    broken: tuple[str, ...] = ()
    """Packages that are there as well, and whose import fails."""
    benchmarks: tuple[str, ...] = ()
    """Dtypes in which a benchmark runs as well."""


class Result(TypedDict):
    """The fields of a made-up `labkit.results.AttentionResult`."""

    device: str
    method: str
    backend: str
    dtype: str
    length: int
    seconds: float | None
    """None if memory ran out, and so is the peak."""
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkCall:
    """Arguments of `benchmark_attention`; None for what keeps its default."""

    lengths: list[int]
    methods: list[str]
    dtype: str
    batch: int
    heads: int
    head_dim: int
    causal: bool
    iterations: int | None = None
    warmup: int | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """Forward and backward of one method at one length, measured by us; None for both if memory ran out."""

    seconds: list[float] | None
    """Of each measurement."""
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkReply:
    """What the submission's benchmarks say, and what they are compared with."""

    rows: list[Fields]
    """Of the benchmark, and of one length the other way: with a mask or without."""
    costs: list[AttentionCost]
    """For each row."""
    backend: object
    device: str
    small: list[Fields]
    """Rows of the benchmark whose iterations are counted."""
    flops: float
    """Work in products of the counted benchmark."""
    flops_of_one_each: float
    """Work in products of one iteration of each of its methods."""
    gradients: Mapping[str, list[int]]
    """By method, how many operands have a gradient when each call begins."""
    operands: Mapping[str, list[int]]
    """By method, how many tensors of their own the operands of each call are: three."""
    own_gradients: int
    """How many outputs went backward with themselves for their gradient."""
    least_operands: float
    """Of all backward passes: how many times as large as an output its operands are together; 3, if they are three."""
    busy_seconds: float
    """How long the device works in addition in each of the first iterations."""
    on_cpu: list[Fields]
    fits_again: list[bool]
    """Whether memory suffices for a length alone, for a longer one, and for the first after that; empty on a real
    GPU."""
    of_integers: str
    """The error that a benchmark of integers raises; empty if it raises none."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(ProbeInputs[BenchmarkReply], probe="lab4.attention.benchmark.measured"):
    """Let the submission measure attention, and measure the same functions."""

    measured: BenchmarkCall
    counted: BenchmarkCall
    on_cpu: BenchmarkCall
