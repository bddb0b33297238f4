"""The command line, and how large the work is on which device."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.acceptance.faults import FAULTS, Fault, parse_fault
from labkit import data, program

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for."""

    device: str
    ranks: int | None
    validation_only: bool
    thorough: bool
    load_seconds: float | None
    """Of --thorough; None: as the device's sizes have it."""
    epochs: int
    batch_size: int | None
    steps: int | None
    data: str
    data_dir: Path | None
    baseline: Path | None
    report: Path
    expect: Path | None
    write_expectations: Path | None
    expect_nodes: int | None
    expect_gpus: int | None
    max_latency_ms: float | None
    stage_seconds: float
    sysfs: Path
    inject: tuple[Fault, ...]

    @property
    def kind(self) -> str:
        """ "auto", "cpu", "cuda" or "vgpu"."""
        return self.device.partition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work each stage is on a device; a real GPU gets enough to be busy, a CPU what it can do in seconds."""

    rows: int
    """Matrix products are [rows, depth] times [depth, rows]."""
    depth: int
    """At most 2048: sums of so many small integers are exact in half precision."""
    samples: int
    """Measured products, after one that is not."""
    message_bytes: tuple[int, ...]
    """Of collectives, as nccl-tests counts them: the whole buffer."""
    iterations: int
    batch_size: int
    steps: int | None
    """Per epoch, at most; None: all."""
    memory_bytes: int | None
    """Of the memory test; None: all that is free."""
    memory_rounds: int
    load_seconds: float
    """Of --thorough, by the device's clock."""
    pair_bytes: int
    copy_bytes: int
    steady_seconds: float
    """Of products one after the other, to see whether their pace varies."""
    steady_samples: int
    """At most."""
    steady_messages: int


REAL_GPU = Sizes(
    rows=8192,
    depth=2048,
    samples=20,
    message_bytes=(KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB),
    iterations=50,
    batch_size=128,
    steps=None,
    memory_bytes=None,
    memory_rounds=1,
    load_seconds=600.0,
    pair_bytes=256 * MIB,
    copy_bytes=256 * MIB,
    steady_seconds=5.0,
    steady_samples=2000,
    steady_messages=5000,
)
VIRTUAL_GPU = Sizes(
    rows=2048,
    depth=1024,
    samples=2,
    message_bytes=(KIB, 64 * KIB, MIB),
    iterations=5,
    batch_size=32,
    steps=8,
    memory_bytes=16 * MIB,
    memory_rounds=1,
    load_seconds=0.05,
    pair_bytes=MIB,
    copy_bytes=16 * MIB,
    steady_seconds=60.0,
    steady_samples=6,
    steady_messages=6,
)
CPU = Sizes(
    rows=512,
    depth=512,
    samples=5,
    message_bytes=(KIB, 64 * KIB, MIB),
    iterations=20,
    batch_size=32,
    steps=8,
    memory_bytes=MIB,
    memory_rounds=1,
    load_seconds=3.0,
    pair_bytes=MIB,
    copy_bytes=MIB,
    steady_seconds=0.1,
    steady_samples=6,
    steady_messages=20,
)


def sizes(*, torch_device: str, simulated: bool) -> Sizes:
    """The sizes for a device."""
    return CPU if torch_device == "cpu" else VIRTUAL_GPU if simulated else REAL_GPU


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; leaves with status 2 when it is wrong, as "could not run" has it."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.acceptance",
        description="Acceptance test of GPUs for distributed training. Exit codes: 0 pass, 1 fail, 2 could not run, "
        "3 incomplete.",
    )
    number = program.positive_int
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (CUDA, else the CPU), cpu, cuda, or vgpu:MODEL, which is simulated and marked so (default: auto)",
    )
    parser.add_argument(
        "--ranks",
        type=number,
        metavar="N",
        help="processes that the plain command starts (default: one per GPU, else 2)",
    )
    parser.add_argument(
        "--expect", type=Path, metavar="FILE", help="TOML: what this cluster should be; see --write-expectations"
    )
    parser.add_argument(
        "--write-expectations", type=Path, metavar="FILE", help="write what this cluster is, unless the run fails"
    )
    parser.add_argument("--expect-nodes", type=number, metavar="N", help="fail unless N nodes take part")
    parser.add_argument("--expect-gpus", type=number, metavar="N", help="fail unless each node has N GPUs")
    parser.add_argument("--validation-only", action="store_true", help="leave the training out")
    parser.add_argument(
        "--thorough", action="store_true", help="ten minutes of load on every GPU as well, and the memory thrice"
    )
    parser.add_argument(
        "--load-seconds", type=float, metavar="S", help="how long --thorough loads each GPU (default: 600)"
    )
    parser.add_argument("--epochs", type=number, default=1, help="of the training (default: 1)")
    parser.add_argument("--batch-size", type=number, metavar="N", help="per rank (default: 128; off real GPUs 32)")
    parser.add_argument(
        "--steps", type=number, metavar="N", help="at most so many steps an epoch (default: all; off real GPUs 8)"
    )
    data.add_options(
        parser,
        default="auto",
        also="auto: cifar10 or fashion-mnist if it is there, else digits; off real GPUs digits (default: auto)",
    )
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="an earlier report to compare with")
    parser.add_argument("--report", type=Path, default=Path("reports"), metavar="DIR", help="default: reports")
    parser.add_argument(
        "--max-latency-ms",
        type=float,
        metavar="MS",
        help="of small collectives, 95th percentile (default: by what joins the ranks)",
    )
    parser.add_argument(
        "--stage-seconds", type=float, default=600, metavar="S", help="a stage that takes longer hangs (default: 600)"
    )
    parser.add_argument(
        "--sysfs",
        type=Path,
        default=Path("/sys"),
        metavar="DIR",
        help="where the network's ports are read; in a container the host's, if it is mounted (default: /sys)",
    )
    parser.add_argument(
        "--inject",
        type=_fault,
        action="append",
        default=[],
        metavar="FAULT[:RANK]",
        help=f"for tests, repeatable: {', '.join(FAULTS)}",
    )
    arguments = parser.parse_args(argv)
    options = Options(**{**vars(arguments), "inject": tuple(arguments.inject)})
    if options.kind not in ("auto", "cpu", "cuda", "vgpu") or (":" in options.device and options.kind != "vgpu"):
        parser.error(f"there is no device {options.device!r}: choose auto, cpu, cuda, vgpu or vgpu:MODEL")
    if options.load_seconds is not None and not (options.thorough and options.load_seconds > 0):
        parser.error("--load-seconds says how long --thorough loads each GPU: give both, and more than 0 seconds")
    return options


def _fault(text: str) -> Fault:
    try:
        return parse_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
