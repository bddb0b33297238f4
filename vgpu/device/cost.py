"""What an operation costs on a GPU: the roofline with a launch overhead and an efficiency. Pure Python, no torch.

A kernel takes max(FLOPs / (peak * efficiency), bytes / (bandwidth * efficiency), a minimum) seconds on the device
(S. Williams et al., "Roofline", CACM 52(4), 2009). The efficiency of a product comes from how its tiles fill the
multiprocessors (NVIDIA, "Matrix Multiplication Background User's Guide": tile and wave quantisation, alignment).
Not here: clocks and queues (`vgpu.runtime.host_clock`, `vgpu.device.queue`), which turn costs into points in time.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence

from vgpu.device import tiles
from vgpu.device.kernel_work import Again
from vgpu.device.spec import Interconnect, Spec

BYTES_PER_ELEMENT = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

# What a tile waits for its first operands and for its last results, by the kernels that make it (`kernels_of`). Fitted
# to products on three cards (benchmarks/published) and an H100 (benchmarks/results/h100.json).
FILL_SECONDS = {"cuda cores": 2.1e-6, "tensor cores": 0.4e-6, "hopper": 1.35e-6, "hopper cuda cores": 3.0e-6}
# A tile alone on a multiprocessor of Volta or Turing waits for operands, which later cards copy to shared memory
# beforehand (cp.async, Ampere), so it takes longer than the multiprocessor computes for it. Tensor cores compute
# faster than they get operands: a tile takes twice as long. Gradients of filters on a V100 (`convolution_cost`) and
# products of few tiles show that.
ALONE = {"tensor cores": 2.0, "cuda cores": 1.0}
# Share of the peak that remains when rows do not start at a multiple of 16 bytes, by the power of two they do start at.
_ALIGNMENT = {16: 1.0, 8: 0.85, 4: 0.7, 2: 0.5}
# Hopper's own kernels load operands by the tensor memory accelerator, which wants 16 bytes; all others are the previous
# generation's (CUTLASS). Products of 4096 x 4095 on an H100: 0.38 with rows at multiples of 4 bytes, 0.19 of 2; 8 is
# modelled.
_HOPPER, _AMPERE = 9, (8, 0)
_ALIGNMENT_ON_HOPPER = {16: 1.0, 8: 0.6, 4: 0.38, 2: 0.19}
_ALIGNMENT_WITHOUT_TENSOR_CORES = {16: 1.0, 8: 0.97, 4: 0.92, 2: 0.9}

# What an elementwise kernel moves, as a multiple of the L2 cache, of which half is still there, and the width around it
# in which that falls from all to nothing. Half of it is there at 0.85 on an A100, 0.95 on an H200, 1.1 on an L40
# (te42kyfo/gpu-benches@1c36d50, gpu-small-kernels: one array scaled into another and back, by CUDA graphs).
_L2_HOLDS_HALF, _L2_FALL = 0.85, 0.4
# What all multiprocessors work on at a time, as a multiple of the L2 cache, of which half is still there when a kernel
# reads its rows again, and the width around it: softmax of 64 KB rows on an A100 reads them once (0.35), of 128 KB
# twice (0.7, and so on an H100), layer norms of 16 KB rows on both are between (linkedin/Liger-Kernel, benchmark/data).
# The least L1 cache, a T4's, holds so much for each multiprocessor.
_ROWS_HOLD_HALF, _ROWS_FALL = 0.53, 0.46
_L1_BYTES = 64 * 1024
# How well moving and computing overlap: if both take as long, together they take 2 ** (1 / 3) = 1.26 times that. One
# after the other would be an exponent of 1. Fitted to single kernels (benchmarks/results/h100.json).
_OVERLAP = 3.0


# Blocks of threads that a multiprocessor needs at once, for some to compute while others wait for their operands.
_BLOCKS_TO_FILL = 2


def launch_seconds(spec: Spec, call: str = "") -> float:
    """Host time to launch one kernel, its Python call included.

    `call` names the kind of call, a key of `HostSpec.call_seconds`: "product" for `torch.mm`, "convolution" for
    `torch.conv2d`, ...; without it, the time of an elementwise operation.
    """
    return spec.launch_seconds + call_seconds(spec, call)


def call_seconds(spec: Spec, call: str) -> float:
    """What a kind of call adds to a launch, in the host that the card usually sits in."""
    return spec.host.call_seconds.get(call, 0.0) * _slowness_of_host(spec) if call else 0.0


def optimizer_seconds(spec: Spec) -> float:
    """Host time that an optimizer's step takes for each tensor, its kernels aside."""
    return spec.host.optimizer_tensor_seconds * _slowness_of_host(spec)


def autocast_seconds(spec: Spec) -> float:
    """Host time that autocast takes for a cast, the cast itself aside."""
    return spec.host.autocast_seconds * _slowness_of_host(spec)


def module_seconds(spec: Spec) -> float:
    """Host time that calling an `nn.Module` takes, the operations in it aside."""
    return spec.host.module_seconds * _slowness_of_host(spec)


def _slowness_of_host(spec: Spec) -> float:
    """How many times as long as on the host that calls were measured on."""
    return spec.launch_seconds / spec.host.launch_seconds


def sync_seconds(spec: Spec) -> float:
    """Host time of a `torch.cuda.synchronize()` that finds nothing to wait for."""
    return spec.synchronize_seconds


def peak_flops(spec: Spec, dtype: str, *, tf32: bool = False) -> float:
    """FLOP/s of a precision; integers and unknown types run at the FP32 rate, as CUDA cores do.

    Raises SpecError for FP8 where the card has none.
    """
    if dtype.startswith("float8"):
        return spec.peak_tflops("float8") * 1e12
    if tf32 and dtype == "float32" and "tf32" in spec.peak_flops:
        return spec.peak_flops["tf32"]
    return spec.peak_flops.get(dtype, spec.peak_flops["float32"])


def uses_tensor_cores(spec: Spec, dtype: str, *, tf32: bool = False) -> bool:
    """Whether products in this precision run faster than on the CUDA cores."""
    return peak_flops(spec, dtype, tf32=tf32) > spec.peak_flops["float32"]


def kernel_seconds(
    spec: Spec,
    *,
    flops: float,
    bytes: float,
    dtype: str = "float32",
    efficiency: float = 1.0,
) -> float:
    """Device time of one kernel. `efficiency` is the ratio of the peak that this shape reaches."""
    arithmetic = flops / (peak_flops(spec, dtype) * efficiency) if flops else 0.0
    return max(arithmetic, _moving_seconds(spec, bytes, 1.0), spec.minimum_kernel_seconds)


def traffic_seconds(
    spec: Spec,
    bytes: float,
    share: float = 1.0,
    *,
    cached: bool = False,
    cycles: float = 0.0,
    phases: int = 1,
    blocks: int = 0,
    again: Again | None = None,
) -> float:
    """Device time of a kernel that moves `bytes`, at a `share` of the rate that a plain copy reaches.

    To start and to end takes as long as the shortest kernel (`x + 1` of 1 to 256 Mi elements on an H100), and so does
    each further one of `phases` that wait for each other, such as a reduction's. `cycles` are those of all threads'
    instructions, by a multiprocessor's clock; few `blocks` of threads leave multiprocessors idle. Moving and computing
    overlap as far as `_OVERLAP` says. What is read `again` counts as far as the caches have lost it.

    Where a kernel has both a share and cycles, its accesses are single elements: cycles count on Hopper, where they
    were measured, and the share on older cards, where published programs say so.

    What a `cached` kernel moves is taken to be in the L2 cache where it fits, since another kernel has just used
    it: so it is on repeating, and mostly from one layer to the next.
    """
    if again:
        bytes += again.bytes * _lost_share(spec, again)
    if cycles and share < 1.0:
        share, cycles, cached = (1.0, cycles, cached) if is_hopper(spec) else (share, 0.0, False)
    seconds = _traffic_seconds(spec, bytes, share, cached=cached)
    if cycles:
        busy = min(blocks / _BLOCKS_TO_FILL if blocks else spec.multiprocessors, spec.multiprocessors)
        seconds = overlapped(seconds, cycles / (busy * spec.clock_hertz))
    return spec.minimum_kernel_seconds * phases + seconds


def _lost_share(spec: Spec, again: Again) -> float:
    """Of what is read again, the share that no cache holds any more."""
    if again.at_once <= _L1_BYTES:
        return 0.0
    worked_on = min(again.whole, again.at_once * spec.multiprocessors)
    return min(1.0, max(0.0, 0.5 + (worked_on / spec.l2_bytes - _ROWS_HOLD_HALF) / _ROWS_FALL))


def overlapped(moving: float, computing: float) -> float:
    """Seconds of a kernel that moves so long and computes so long, one behind the other as far as it can."""
    together: float = (moving**_OVERLAP + computing**_OVERLAP) ** (1 / _OVERLAP)
    return together


def _traffic_seconds(spec: Spec, bytes: float, share: float, *, cached: bool) -> float:
    """Seconds to move `bytes` through memory, or through the L2 cache as far as that holds what is `cached`."""
    seconds = _moving_seconds(spec, bytes, share)
    if not cached or not spec.l2_bytes_per_second:
        return seconds
    there_share = 0.5 + (_L2_HOLDS_HALF - bytes / spec.l2_bytes) / _L2_FALL
    there = bytes / (spec.l2_bytes_per_second * share)
    return seconds + min(1.0, max(0.0, there_share)) * min(0.0, there - seconds)


def _moving_seconds(spec: Spec, bytes: float, share: float) -> float:
    return bytes / (spec.bandwidth_bytes_per_second * spec.bandwidth_efficiency_ratio * share)


def product_efficiency(
    spec: Spec, m: int, n: int, k: int, *, batch: int = 1, dtype: str = "float32", tf32: bool = False
) -> float:
    """Ratio of the peak reached by `batch` products of (m, k) with (k, n)."""
    if min(m, n, k, batch) < 1:
        return 1.0
    if m == 1 or n == 1:
        # cuBLAS has kernels without tiles for a matrix times a vector (gemv) and for dot products: memory bounds them.
        return attained_ratio(spec, dtype, tf32=tf32)
    attained = attained_ratio(spec, dtype, tf32=tf32)
    tensor_cores = uses_tensor_cores(spec, dtype, tf32=tf32)
    table = _ALIGNMENT if tensor_cores else _ALIGNMENT_WITHOUT_TENSOR_CORES
    if tensor_cores and is_hopper(spec):
        table = _ALIGNMENT_ON_HOPPER
    row_bytes = math.gcd(n, k) * BYTES_PER_ELEMENT.get(dtype, 4)
    alignment = table[math.gcd(row_bytes, 16)] if row_bytes % 2 == 0 else table[2]
    peak = peak_flops(spec, dtype, tf32=tf32)
    kernels = kernels_of(spec, dtype, tf32=tf32)
    taken = tile_seconds(
        spec, m, n, k, batch, rate=attained * alignment * peak, fill_seconds=FILL_SECONDS[kernels],
        sizes=tile_sizes(spec, dtype, tf32=tf32), alone=ALONE[kernels] if is_before_ampere(spec) else 0.0,
    )  # fmt: skip
    efficiency: float = 2.0 * batch * m * n * k / (peak * taken)
    return efficiency


def kernels_of(spec: Spec, dtype: str, *, tf32: bool = False) -> str:
    """Which of a library's kernels make products in this precision: a key of FILL_SECONDS."""
    if not uses_tensor_cores(spec, dtype, tf32=tf32):
        return "hopper cuda cores" if is_hopper(spec) else "cuda cores"
    return "hopper" if is_hopper(spec) else "tensor cores"


def tile_sizes(spec: Spec, dtype: str, *, tf32: bool = False) -> Sequence[tiles.Tile]:
    """Sizes of the tiles that a library's kernels for this precision have."""
    if not uses_tensor_cores(spec, dtype, tf32=tf32):
        return tiles.TILES_OF_CUDA_CORES
    if not is_hopper(spec):
        return tiles.TILES
    return tiles.LARGE_TILES if dtype == "float32" else tiles.TILES_OF_HOPPER


def is_before_ampere(spec: Spec) -> bool:
    """Whether it is a Volta or a Turing, or older."""
    return spec.compute_capability < _AMPERE


def is_hopper(spec: Spec) -> bool:
    """Whether the libraries have kernels for Hopper or what came after it."""
    return spec.compute_capability[0] >= _HOPPER


def tile_seconds(
    spec: Spec,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    rate: float,
    fill_seconds: float,
    sizes: Sequence[tiles.Tile],
    splits: int = tiles.FEW_SPLITS,
    shortest_split: int = tiles.SHORTEST_SPLIT,
    alone: float = 0.0,
    sum_kernels: int = 1,
) -> float:
    """Device seconds of `batch` products by tiles of these sizes, at `rate` FLOP/s of the whole card.

    Parts of a split inner side are added up by so many `sum_kernels`; `shortest_split` and `alone` are those of
    `tiles.seconds`.
    """
    return tiles.seconds(
        spec.multiprocessors, m, n, k, batch, rate=rate / spec.multiprocessors, fill_seconds=fill_seconds,
        sum_bytes_per_second=spec.l2_bytes_per_second or spec.bandwidth_bytes_per_second,
        sum_start_seconds=sum_kernels * spec.minimum_kernel_seconds, sizes=sizes, splits=splits,
        shortest_split=shortest_split, alone=alone,
    )  # fmt: skip


def attained_ratio(spec: Spec, dtype: str, *, tf32: bool = False) -> float:
    """Ratio of the peak that large products reach: the library's share, at the clock that the board's power allows."""
    precision = "tf32" if tf32 and dtype == "float32" and "tf32" in spec.peak_flops else dtype
    precision = "float8" if dtype.startswith("float8") else precision
    return spec.product_efficiency_ratio * spec.sustained_clock_ratio.get(precision, 1.0)


def product_start_seconds(spec: Spec, m: int, n: int) -> float:
    """What a kernel of tiles takes before its first products and after its last: as long as the shortest kernel.

    So the smallest products take twice the shortest kernel's time (256 cubed in FP16 on an H100: 3.9 us, and 2.2).
    Products with a vector have no tiles.
    """
    return spec.minimum_kernel_seconds if m > 1 and n > 1 else 0.0


# Products of the inner side at which a product's operands and result pass through memory at half of its rate: a tile is
# written after its last step, and short loops leave less to hide that behind. Hopper's kernels write a tile while the
# next one is computed. Fitted to benchmarks/published, and on Hopper to benchmarks/results/h100.json.
EPILOGUE_DEPTH = {"others": 20, "hopper": 5}


def product_traffic_share(spec: Spec, m: int, n: int, k: int) -> float:
    """Share of the memory's rate at which a product (m, k) @ (k, n) moves its operands and result."""
    return k / (k + EPILOGUE_DEPTH["hopper" if is_hopper(spec) else "others"]) if min(m, n) > 1 else 1.0


def product_seconds(
    spec: Spec, m: int, n: int, k: int, *, batch: int = 1, times: float = 1.0, bytes: float, dtype: str, tf32: bool
) -> float:
    """Device time of `batch` products of (m, k) with (k, n), `times` after each other, which move `bytes`.

    Operands of a batched product are activations, which another kernel has just made: they are in the L2 cache where it
    holds them. Those of a plain one are weights too, which come from memory.
    """
    efficiency = product_efficiency(spec, m, n, k, batch=batch, dtype=dtype, tf32=tf32)
    computing = 2.0 * batch * m * n * k * times / (peak_flops(spec, dtype, tf32=tf32) * efficiency)
    moving = _traffic_seconds(spec, bytes, product_traffic_share(spec, m, n, k), cached=batch > 1)
    return product_start_seconds(spec, m, n) + max(overlapped(moving, computing), spec.minimum_kernel_seconds)


def batched_matmul_seconds(
    spec: Spec, batch: int, m: int, n: int, k: int, dtype: str = "float32", *, tf32: bool = False
) -> float:
    """Device time of `batch` products of (m, k) with (k, n), each operand and the result moved once."""
    moved = batch * (m * k + k * n + m * n) * BYTES_PER_ELEMENT.get(dtype, 4)
    return product_seconds(spec, m, n, k, batch=batch, bytes=moved, dtype=dtype, tf32=tf32)


def matmul_seconds(spec: Spec, m: int, n: int, k: int, dtype: str = "float32", *, tf32: bool = False) -> float:
    """Device seconds of a product (m, k) @ (k, n): exactly what the virtual GPU charges for `aten::mm`."""
    return batched_matmul_seconds(spec, 1, m, n, k, dtype, tf32=tf32)


def transfer_seconds(spec: Spec, bytes: int, *, pinned: bool) -> float:
    """Time to move `bytes` between host and device over PCIe, from or to pageable or pinned host memory."""
    rate = spec.pinned_bytes_per_second if pinned else spec.pageable_bytes_per_second
    return spec.transfer_latency_seconds + bytes / rate


def cpu_seconds(spec: Spec, *, flops: float, bytes: float, dtype: str = "float32") -> float:
    """Host time of one CPU operation."""
    host = spec.host
    peak = host.peak_flops.get(dtype, host.peak_flops["float32"])
    arithmetic = flops / (peak * host.product_efficiency_ratio)
    return host.operation_seconds + max(arithmetic, bytes / host.bandwidth_bytes_per_second)


def cpu_matmul_seconds(spec: Spec, m: int, n: int, k: int, dtype: str = "float32") -> float:
    """Host seconds of a product (m, k) @ (k, n) on the CPU: exactly what is charged there for `aten::mm`."""
    moved = (m * k + k * n + m * n) * BYTES_PER_ELEMENT.get(dtype, 4)
    return cpu_seconds(spec, flops=2.0 * m * n * k, bytes=moved, dtype=dtype)


# Bytes that pass each GPU's link per byte of the buffer, and hops that come after each other, for n ranks in a ring
# (NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"; P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2),
# 2009). Gather, scatter, all-to-all and point to point are grouped sends, which need one hop.
_COLLECTIVES: dict[str, tuple[Callable[[int], float], Callable[[int], int]]] = {
    "all_reduce": (lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
    "all_gather": (lambda n: (n - 1) / n, lambda n: n - 1),
    "reduce_scatter": (lambda n: (n - 1) / n, lambda n: n - 1),
    "broadcast": (lambda n: 1.0, lambda n: n - 1),
    "reduce": (lambda n: 1.0, lambda n: n - 1),
    "all_to_all": (lambda n: (n - 1) / n, lambda n: 1),
    "gather": (lambda n: (n - 1) / n, lambda n: 1),
    "scatter": (lambda n: (n - 1) / n, lambda n: 1),
    "send": (lambda n: 1.0, lambda n: 1),
}


# NCCL lets NVLink's switch add for more GPUs than this (nccl/src/graph/tuning.cc).
_SWITCH_RANKS = 4


# Standard deviation, as a ratio, of how long equal ranks take for equal work: clocks, memory, input. Fitted to training
# on eight GPUs (benchmarks/published, "multi-GPU scaling").
STRAGGLER_RATIO = 0.025


@functools.cache
def straggler_ratio(ranks: int) -> float:
    """How much longer than usual the slowest of so many equal ranks takes for its work, as a ratio.

    The expected largest of `ranks` normal numbers (G. Blom, "Statistical Estimates and Transformed Beta-Variables",
    1958: the quantile (n - 3/8) / (n + 1/4)), times STRAGGLER_RATIO.
    """
    if ranks < 2:
        return 0.0
    return STRAGGLER_RATIO * statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def collective_seconds(link: Interconnect, name: str, bytes: float, ranks: int) -> float:
    """Time of a collective among `ranks` GPUs in a pipelined ring: start + hops x latency + bytes / bandwidth + ramp.

    `bytes` is the size that nccl-tests reports: the tensor for "all_reduce", "broadcast", "reduce" and "send", else the
    whole buffer of all ranks ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"). One rank takes 0.

    A message that takes `wire` seconds is cut into chunks that follow each other through the ring: m chunks take
    (hops + m) x (latency + wire / m), least where m = sqrt(hops x wire / latency); so the ramp is 2 sqrt(hops x latency
    x wire). (The same trade of chunks against latency: E. Chan et al., Concurrency Computat. 19(13), 2007.)
    """
    if ranks < 2:
        return 0.0
    share, hops = _COLLECTIVES[name]
    rate, filling = link.bandwidth_bytes_per_second, hops(ranks) * link.latency_seconds
    if name == "all_reduce" and ranks > _SWITCH_RANKS and link.switch_bytes_per_second:
        # The switch adds: up to it, and down again (NVLink SHARP; NCCL's NVLS algorithm).
        rate, filling = link.switch_bytes_per_second, 2 * link.latency_seconds
    wire = share(ranks) * bytes / rate
    return link.start_seconds + filling + wire + 2 * math.sqrt(filling * wire)
