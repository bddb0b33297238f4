"""What Lab 1 measures: products, the memory of a training step, operations, and the environment they ran in.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass

STAGES = ("baseline", "model", "forward", "loss", "backward", "step", "zero_grad")
"""The stages of one training step whose memory Lab 1 looks at, in the order in which they happen."""


@dataclass(frozen=True, kw_only=True)
class MatmulResult:
    """How long one product of two `size` x `size` matrices took."""

    device: str
    """Where it ran: "cpu" or "cuda"."""
    dtype: str
    """Element type of the operands, as in "float32"."""
    size: int
    """Rows and columns of each operand."""
    iterations: int
    """How many products were timed."""
    seconds: float
    """Median seconds per product."""
    tflops: float
    """2 size^3 / seconds / 1e12: a product needs size^3 multiplications and as many additions."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same product on the CPU and on the GPU."""

    size: int
    cpu: MatmulResult
    gpu: MatmulResult
    speedup: float
    """Ratio cpu.seconds / gpu.seconds: above 1 the GPU is faster."""


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Device memory at the end of one stage, and the most that was held during it."""

    stage: str
    """One of STAGES."""
    allocated_bytes: int
    """Held by live tensors when the stage ends."""
    reserved_bytes: int
    """Held by the caching allocator when the stage ends: live tensors and what it keeps for later ones."""
    peak_bytes: int
    """Most allocated bytes at any moment since the previous stage ended."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Memory of one training step, stage by stage in the order of STAGES."""

    device: str
    """Where it ran: "cuda"."""
    dtype: str
    """Element type of parameters and inputs, as in "float32"."""
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, kw_only=True)
class OperationTime:
    """Time spent in one kind of operation, without what it called in turn (self time), summed over its calls."""

    name: str
    """As PyTorch names it, for example "aten::addmm"."""
    calls: int
    cpu_seconds: float
    """On the host: choosing and launching kernels, or on a CPU the computation itself."""
    device_seconds: float
    """In kernels on the GPU; 0.0 on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The software and hardware that an experiment ran on."""

    python: str
    torch: str
    cuda: str | None
    """CUDA version that PyTorch was built for; None for a CPU build."""
    driver: str | None
    """Version of the NVIDIA driver as NVML reports it; None without one."""
    device: str
    """"cuda" or "cpu"."""
    device_name: str
    memory_bytes: int | None
    """Total memory of the GPU; None on a CPU."""
    compute_capability: tuple[int, int] | None
    """Major and minor; None on a CPU."""
    profiler: bool
    """Whether this build of PyTorch carries a working torch.profiler."""
    simulated: bool
    """Whether the device is a virtual GPU."""
