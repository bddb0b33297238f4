"""What a device is asked to do: kernels, copies and collectives, by what they compute and move. No card's figures.

Not here: how long that takes (`vgpu.device.pricing`), and how operations come to be work
(`vgpu.runtime.operations.kernel_cost`).
"""

from __future__ import annotations

from typing import NamedTuple

# Kinds of work. A kernel is a product, or is bound by what it moves; "fixed" is what takes the same time on any card.
TRAFFIC, PRODUCT, COPY, PEER, COLLECTIVE, FIXED = KINDS = (
    "traffic", "product", "copy", "peer copy", "collective", "fixed",
)  # fmt: skip
# What a convolution computes: its result, or the gradient of its input or of its weight.
PASSES = ("forward", "input", "weight")
# Parts of a device that do one thing at a time: the multiprocessors, for a kernel whose blocks fill them, and a copy
# engine per direction (CUDA C++ Programming Guide, "Concurrent Kernel Execution": a kernel that uses many resources is
# less likely to run next to others; "Overlap of Data Transfer and Kernel Execution", asyncEngineCount of 2 or more).
COMPUTE, TO_DEVICE, TO_HOST = ENGINES = ("compute", "copy to device", "copy to host")


class Convolution(NamedTuple):
    """A convolution of `images`, or what of its gradients is wanted. Places are pixels, or voxels, of one image.

    `passes`: of PASSES. A transposed convolution is the input's gradient of
    one whose `channels` are its results. `planar`: in NCHW, channel after channel.
    """

    passes: tuple[str, ...]
    images: int
    channels: int
    filters: int
    input_places: int
    result_places: int
    window: int
    groups: int = 1
    strided: bool = False
    planar_input: bool = False
    planar_result: bool = False

    @property
    def inputs(self) -> int:
        """Elements of the input."""
        return self.images * self.channels * self.input_places

    @property
    def results(self) -> int:
        """Elements of the result."""
        return self.images * self.filters * self.result_places

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return self.filters * (self.channels // self.groups) * self.window


class Product(NamedTuple):
    """A batch of matrix products (m, k) @ (k, n); `times` of them after each other count as one kernel's work.

    `kernel` names one whose efficiency is its own: fused attention ("flash", "efficient", "cudnn"), whose (m, n, k) are
    queries, keys and the heads' width. Of a `convolution` they are the implicit product's.
    `steps` of a recurrent layer depend on each other: each takes at least the shortest kernel.
    """

    batch: int
    m: int
    n: int
    k: int
    times: float = 1.0
    kernel: str = ""
    backward: bool = False
    causal: bool = False
    steps: int = 1
    convolution: Convolution | None = None

    @property
    def flops(self) -> float:
        """Floating-point operations, a multiplication and an addition being two."""
        return 2.0 * self.batch * self.m * self.n * self.k * self.times


class Again(NamedTuple):
    """What a kernel reads once more, of which the caches may still hold what all multiprocessors work on."""

    bytes: int
    whole: int
    """Bytes of all rows."""
    at_once: int
    """Of the rows that a multiprocessor works on at a time."""


class Traffic(NamedTuple):
    """What a kernel that is no product moves, computes and waits for: see the fields of `KernelWork`."""

    bytes: int
    cycles: float = 0.0
    phases: int = 1
    blocks: int = 0
    share: float = 1.0
    again: Again | None = None


class Stored(NamedTuple):
    """What the memory of one argument holds, where a kernel stored something, or where it loaded something."""

    argument: str
    total: float | None
    """The sum of these elements; None if it is not finite, or not known."""
    squares: float | None
    """The sum of their squares."""


class Race(NamedTuple):
    """Two programs of one launch at the same element, which nothing orders."""

    argument: str
    """The kernel's, in whose memory the element lies."""
    element: int
    """Its number there, from the address that the kernel was given."""
    programs: tuple[int, int]
    accesses: tuple[str, str]
    """What each does: "read", "written" or "atomic"."""


class Programs(NamedTuple):
    """What the programs of a watched launch of a program's own kernel did."""

    number: int
    read_bytes: int
    written_bytes: int
    flops: float
    tf32: bool
    strayed: int
    races: tuple[Race, ...] = ()
    stored: tuple[Stored, ...] = ()
    loaded: tuple[Stored, ...] = ()


class KernelWork(NamedTuple):
    """One entry of a stream. Fields that most kernels do not need have a default."""

    name: str
    bytes: int = 0
    """Moved by kernels through the device's memory; by copies over their link; a collective's size."""
    dtype: str = "float32"
    shapes: tuple[tuple[int, ...], ...] = ()
    share: float = 1.0
    """Of the rate that a plain copy within the device's memory reaches; with `cycles`, on cards before Hopper."""
    launches: int = 1
    call: str = ""
    """Through which kind of call the host launches it: a key of `HostSpec.call_seconds`."""
    elements: int = 0
    """Of the largest result, where it matters whether the work fills the device; else 0."""
    kind: str = TRAFFIC
    product: Product | None = None
    tf32: bool = False
    """Whether the program allows an FP32 product TF32, which a card may have."""
    ratio: float = 1.0
    """Times the seconds that it would take: a tuned algorithm, or several runs in one entry."""
    engine: str = ""
    pinned: bool = True
    """Whether a copy's host memory is."""
    ranks: int = 1
    seconds: float = 0.0
    """Of "fixed" work."""
    cached: bool = False
    """Whether what it moves is taken to be in the L2 cache, where that can hold it."""
    programs: Programs | None = None
    """Of a kernel that is watched."""
    cycles: float = 0.0
    """Of a multiprocessor's clock, for the instructions of all elements together."""
    phases: int = 1
    """Parts that wait for each other: each takes at least the shortest kernel's time."""
    blocks: int = 0
    """Of threads, where they may be too few to fill a card's multiprocessors; 0: enough."""
    again: Again | None = None
    """Read once more, beyond `bytes`."""

    @property
    def flops(self) -> float:
        """Floating-point operations; none where algorithms are tried, by several launches."""
        return self.product.flops if self.product is not None and self.launches == 1 else 0.0
