"""How long cuDNN's convolutions take: implicit products by tiles, Winograd, depthwise kernels, changes of layout.

A convolution is a product of the images' places by windows with the filters (S. Chetlur et al., "cuDNN: Efficient
Primitives for Deep Learning", 2014), and so are both gradients. So the tiles of products say how long it takes. Fitted
to single convolutions on an H100 (benchmarks/results/h100.json), a V100 and a T4 (benchmarks/published/tables), and to
whole networks (benchmarks/published). An A100 has the V100's kernels for CUDA cores; no table has its tensor cores.
Not here: which convolution an operation is (`vgpu.runtime.operations.convolutions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgpu.device import cost, tiles
from vgpu.device.kernel_work import Convolution
from vgpu.device.spec import Spec

# What a tile waits for, as `cost.FILL_SECONDS`: operands are gathered window by window.
FILL_SECONDS = {
    "cuda cores": 1.4e-6, "tensor cores": 1.0e-6, "volta": 2.0e-6, "turing": 2.0e-6, "hopper": 1.9e-6,
    "hopper cuda cores": 5.0e-7,
}  # fmt: skip
# Share of what products attain on CUDA cores: cuDNN's kernels do worse on Hopper than on the cards that they were
# written for, and worst for the weight's gradient of windows of one.
RATIO = {"cuda cores": 1.0, "hopper cuda cores": 0.53}
WEIGHT_RATIO = {
    "cuda cores": 1.0, "cuda cores 1 x 1": 0.65, "hopper cuda cores": 1.6, "hopper cuda cores 1 x 1": 0.59,
    "tf32": 0.73, "turing": 1.2,
}  # fmt: skip
# The weight's gradient sums over all places, which few multiprocessors share: a part has so many of them at least, as
# an H100 shows, and fewer on cards before Ampere and on their CUDA cores, fewest for windows of one: a V100's
# multiprocessor needs 130 us for a tile of 128 x 128 and 1,568 places, and all of 512 filters of 128 channels take 54.
# On Hopper tiles are large where windows are larger than one, even if there are few filters to fill them.
_SHORTEST_WEIGHT_SPLIT = {"turing": 1536, "volta": 768, "cuda cores": 512, "cuda cores 1 x 1": 112}
_SHORTEST_WEIGHT_SPLIT_OF_OTHERS = 6144
_LARGE, _LEAST_FILLED = 128, 0.25
# In 16 bits, Volta and Turing have one tile for the weight's gradient, of so many filters and channels of one place of
# the window (names: volta_fp16_s884cudnn_fp16_64x64_..._wgrad, turing_fp16_s1688cudnn_fp16_128x128_..._wgrad). So few
# channels, or few filters, leave most of it empty. Turing adds up in FP32 and converts: a kernel before, one after.
_WEIGHT_TILE = {"volta": 64, "turing": 128}
_SUM_BYTES, _SUM_KERNELS = 4 + 4 + 2, {"volta": 1, "turing": 2}
# These kernels wait unless a multiprocessor has several tiles: on a V100, 576 of them reach 94 TFLOP/s in 16 bits, 72
# half of that. `tiles.seconds` says how long lone ones take; that stands for a tile's wait as well. Volta adds up parts
# in 16 bits by three kernels.
WEIGHT_ALONE, _SPLIT_KERNELS = {"volta": 2.0, "cuda cores": 2.0}, {"volta": 3}
# Of their tensor cores: windows of 20 x 5 run at what CUDA cores reach in FP32, on a V100 and on a T4.
_LARGEST_WEIGHT_WINDOW = 64
# The other passes in 16 bits load so many channels of a place at once there. Their tiles have 128 places, and as many
# columns as there are, up to 128: on a T4 all of them, on a V100 images' gradients and what a window passes in steps
# (5 x 5 windows of 832 channels take a T4 26 ns for each step of the inner side, which nobody splits, and V100's 2,048
# channels in steps 25 ns). Operands of narrow tiles are used less often: 64 columns reach three quarters, 32 half.
_CHANNELS_AT_ONCE = 32
_WIDE_TILE, _NARROW_LOSS = 128, 1 / 3
# CUDA cores before Hopper have these (names: maxwell_scudnn_128x128_relu_..., 128x64, 128x32), and something for a few
# columns: 8 and 16 images of 7 x 7 take a V100 equally long.
_TILES_OF_CUDA_CORES = ((128, 128, 1.0), (128, 64, 1.0), (128, 32, 0.8), (128, 8, 0.6))
# For the weight's gradient of windows larger than one, at least as many columns (channels times the window) as with
# tensor cores, and fewer rows (filters): 3 channels of 3 x 3 fill a fifth of that on a T4, and a T4 is that slow.
_WEIGHT_TILES_OF_CUDA_CORES = (
    (128, 128, 1.0), (64, 128, 1.0), (32, 128, 0.8), (128, 64, 0.8), (64, 64, 0.8), (32, 64, 0.64),
)  # fmt: skip
# Windows of one have 128 rows there: with the same products, 512 to 128 channels take a T4 0.35 ms, 64 to 256 0.44, 256
# to 64 0.70, and 64 to 64 0.91, and a V100 likewise.
_WEIGHT_TILES_OF_ONE = ((128, 128, 1.0), (128, 64, 0.8))
# Of the rate, for gradients of images that a window passed in steps: places between the steps meet other products.
STRIDED_INPUT_RATIO = 0.62
# Winograd saves multiplications of 3 x 3 windows, and transforms images and results: less is left of that with few
# channels (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). Tiles of 4 x 4 results
# save most, by several kernels; one fused kernel has tiles of 2 x 2. cuDNN's documentation names 3 x 3 and 5 x 5.
# Fitted to the older cards' table; Hopper's FP32 kernels gain as much.
WINOGRAD_GAIN = {"2 x 2": 1.7, "4 x 4": 3.6}
WINOGRAD_CHANNELS = {"2 x 2": 6.0, "4 x 4": 87.0}
_WINOGRAD_WINDOWS = (9, 25)
# The older cards' cuDNN chooses the large tiles from sixteen images on: with many channels, eight images take nearly as
# long as sixteen. It chooses neither for images below 8 x 8, which fill too little of a tile, but for sixteen with
# 3 x 3 windows; Hopper's does for their gradients. Nor for NHWC before Hopper: a V100 trains ResNet-50 in FP32 1.2
# times as fast in NCHW (benchmarks/published/figures.toml).
_WINOGRAD_PLACES = 64
_WINOGRAD_IMAGES, _WINOGRAD_SIDE = 16, 4
# Depthwise convolutions: clock cycles of a multiprocessor for a product of PyTorch's kernel, mostly to find places
# (DepthwiseConv2d.cu, a thread for each result), and the share of the FP32 peak that cuDNN's reach. Both gradients take
# so many times as long; one figure says it for both kernels of NCHW.
DEPTHWISE_CYCLES, DEPTHWISE_RATIO = 0.28, {"16 bits": 0.078, "NHWC": 0.112}
DEPTHWISE_BACKWARD = {"NCHW": 3.4, "NHWC": 2.2}
# Of a multiprocessor, to bring an element from NCHW to NHWC or back by cuDNN's kernels, which go through shared memory.
LAYOUT_CYCLES = 0.43
# Channels of 16 bytes are what tensor cores load. Fewer are filled up with zeros in 16 bits; for TF32 kernels without
# vector loads are left, at this share of the rate.
_VECTOR_BYTES, UNALIGNED_TF32 = 16, 0.25
# A window of one is a plain product of an image's channels and places, without any change of layout, if rows of places
# can be loaded: in vectors forward, in whole lines of memory for the gradients, whose inner side they are.
_LINE_BYTES = 128
_TURING = (7, 5)


def seconds(spec: Spec, work: Convolution, dtype: str, *, tf32: bool) -> float:
    """Device seconds of all passes of a convolution, or of its gradients, with the changes of layout between."""
    size = cost.BYTES_PER_ELEMENT.get(dtype, 4)
    if not (work.inputs and work.results and work.weights):
        return spec.minimum_kernel_seconds
    if work.groups > 1 and work.channels == work.groups:
        return _depthwise(spec, work, size)
    tensor_cores = cost.uses_tensor_cores(spec, dtype, tf32=tf32)
    taken = 0.0
    for kind in work.passes:
        by_tensor_cores = tensor_cores and not (kind == "weight" and _is_left_to_cuda_cores(spec, work, size))
        kernels_for = dtype if by_tensor_cores or not tensor_cores else "float32"
        taken += _product(spec, work, kind, kernels_for, size, tf32=tf32 and by_tensor_cores)
        if by_tensor_cores:
            taken += _layout(spec, work, kind, size)
    return taken


def _is_left_to_cuda_cores(spec: Spec, work: Convolution, size: int) -> bool:
    """Whether cuDNN takes a kernel for CUDA cores, which needs no change of layout, for the weight's gradient.

    With TF32 it does where the tiles of tensor cores would be empty for more than three quarters: 3 x 3 windows of 32
    filters on an H100 take as long with TF32 as without, and a third of that in NHWC. In 16 bits it does on Volta and
    Turing for large windows.
    """
    if size < 4:
        return cost.is_before_ampere(spec) and work.window > _LARGEST_WEIGHT_WINDOW
    rows, columns, _, groups = _sides(work, "weight", 1)
    tiles_filled = rows * columns / (_rounded(rows, _LARGE) * _rounded(columns, _LARGE))
    return work.planar_input and work.window > 1 and groups == 1 and tiles_filled < _LEAST_FILLED


def _product(spec: Spec, work: Convolution, kind: str, dtype: str, size: int, *, tf32: bool) -> float:
    tensor_cores = cost.uses_tensor_cores(spec, dtype, tf32=tf32)
    kernels = _kernels(spec, dtype, tf32=tf32)
    m, n, k, batch = _sides(work, kind, _channels_at_once(work, kind, kernels, size) if tensor_cores else 1)
    rate = cost.peak_flops(spec, dtype, tf32=tf32) * cost.attained_ratio(spec, dtype, tf32=tf32)
    rate *= _share_of_products(work, kind, kernels, size)
    alone = WEIGHT_ALONE.get(kernels, 0.0) if kind == "weight" and work.groups == 1 else 0.0
    computing = cost.tile_seconds(
        spec, m, n, k, batch, rate=rate, fill_seconds=0.0 if alone else FILL_SECONDS[kernels],
        sizes=_tile_sizes(spec, work, kind, kernels, cost.tile_sizes(spec, dtype, tf32=tf32)),
        splits=_splits(work, kind, kernels, k), shortest_split=_shortest_split(work, kind, kernels), alone=alone,
        sum_kernels=_SPLIT_KERNELS.get(kernels, 1) if kind == "weight" else 1,
    )  # fmt: skip
    moved = size * (_touched_inputs(work, kind) + work.results + work.weights)
    moving = cost.traffic_seconds(spec, moved, cached=True)
    seconds = spec.minimum_kernel_seconds + cost.overlapped(moving, computing)
    if kind == "input" and work.strided and work.window == 1 and kernels == "cuda cores":
        seconds += cost.traffic_seconds(spec, size * work.inputs, cached=True)
    if kind == "weight" and kernels in _SUM_KERNELS:
        seconds += _SUM_KERNELS[kernels] * spec.minimum_kernel_seconds
        if kernels == "turing":
            seconds += cost.traffic_seconds(spec, _SUM_BYTES * work.weights, cached=True)
    return seconds


def _touched_inputs(work: Convolution, kind: str) -> int:
    """Elements of the input that a pass reads; its gradient is written whole.

    A window of 1 x 1 in steps of two passes three quarters of the places by. In NCHW lines of memory bring the other
    columns along, so that only rows are left out.
    """
    if kind == "input" or work.window * work.result_places >= work.input_places:
        return work.inputs
    read_share = work.window * work.result_places / work.input_places
    return round(work.inputs * (math.sqrt(read_share) if work.planar_input else read_share))


def _kernels(spec: Spec, dtype: str, *, tf32: bool) -> str:
    """Which kernels of cuDNN's make products in this precision: a key of FILL_SECONDS."""
    kernels = cost.kernels_of(spec, dtype, tf32=tf32)
    if kernels == "tensor cores" and cost.is_before_ampere(spec):
        return "turing" if _is_turing(spec) else "volta"
    return kernels


def _is_turing(spec: Spec) -> bool:
    return spec.compute_capability >= _TURING and cost.is_before_ampere(spec)


def _channels_at_once(work: Convolution, kind: str, kernels: str, size: int) -> int:
    """So many channels of a place tensor cores load, of which those that there are not count as zeros."""
    if kernels in _WEIGHT_TILE and work.groups == 1:
        return _WEIGHT_TILE[kernels] if kind == "weight" else _CHANNELS_AT_ONCE
    return _VECTOR_BYTES // size


def _tile_sizes(
    spec: Spec, work: Convolution, kind: str, kernels: str, sizes: Sequence[tiles.Tile]
) -> Sequence[tiles.Tile]:
    """The tiles that there are for a pass, of those that products have."""
    if kind == "weight" and work.groups == 1:
        if kernels in _WEIGHT_TILE:
            return ((_WEIGHT_TILE[kernels], _WEIGHT_TILE[kernels], 1.0),)
        if work.window > 1 and cost.is_hopper(spec):
            return tiles.LARGE_TILES if kernels == "hopper" else tiles.TILES[:5]
        if kernels == "cuda cores":
            if work.window == 1:
                return _WEIGHT_TILES_OF_ONE
            least = _WEIGHT_TILE["turing" if _is_turing(spec) else "volta"]
            return tuple(tile for tile in _WEIGHT_TILES_OF_CUDA_CORES if tile[1] >= least)
    if kind != "weight" and kernels == "cuda cores":
        return _TILES_OF_CUDA_CORES
    if kind != "weight" and kernels in _WEIGHT_TILE and (kind == "input" or kernels == "turing" or work.strided):
        columns = (work.channels if kind == "input" else work.filters) // work.groups
        width = min(_WIDE_TILE, _rounded(columns, _CHANNELS_AT_ONCE))
        return ((_WIDE_TILE, width, 1 / (1 + _NARROW_LOSS * (_WIDE_TILE / width - 1))),)
    return sizes


def _shortest_split(work: Convolution, kind: str, kernels: str) -> int:
    """How much of a tile's inner side a multiprocessor has at least."""
    if kind != "weight":
        return tiles.SHORTEST_SPLIT
    of_one = work.window == 1 and work.groups == 1 and kernels == "cuda cores"
    return _SHORTEST_WEIGHT_SPLIT.get(f"{kernels} 1 x 1" if of_one else kernels, _SHORTEST_WEIGHT_SPLIT_OF_OTHERS)


def _splits(work: Convolution, kind: str, kernels: str, k: int) -> int:
    """Among how many multiprocessors a tile's inner side is shared at most."""
    if kind == "weight":
        return max(1, k // _shortest_split(work, kind, kernels))
    return 1 if kernels in ("cuda cores", *_WEIGHT_TILE) else tiles.FEW_SPLITS


def _share_of_products(work: Convolution, kind: str, kernels: str, size: int) -> float:
    """Of the rate that products attain; above 1 where Winograd saves multiplications."""
    share, hopper = 1.0, kernels.startswith("hopper")
    if kind == "input" and work.strided and (work.window == 1 or not hopper):
        share *= STRIDED_INPUT_RATIO
    if "cuda cores" not in kernels:
        if size == 4 and kind == "forward" and work.channels // work.groups * size % _VECTOR_BYTES:
            share *= UNALIGNED_TF32
        if kind == "weight":
            share *= WEIGHT_RATIO["tf32"] if size == 4 else WEIGHT_RATIO.get(kernels, 1.0)
        return share
    share *= RATIO[kernels]
    if kind == "weight":
        share *= WEIGHT_RATIO[f"{kernels} 1 x 1" if work.window == 1 else kernels]
    if hopper or work.planar_input:
        share *= _winograd(work, kind, kernels)
    return share


def _winograd(work: Convolution, kind: str, kernels: str) -> float:
    """How many times as fast as the plain product cuDNN's FP32 kernels are."""
    if work.window not in _WINOGRAD_WINDOWS or work.strided or work.groups > 1:
        return 1.0
    many_places = work.result_places >= _WINOGRAD_PLACES
    if kernels == "hopper cuda cores":
        return _gain(work, "4 x 4") if kind == "input" or (kind == "forward" and many_places) else 1.0
    gains = [1.0]
    many_images = work.images >= _WINOGRAD_IMAGES and (many_places or work.window == _WINOGRAD_WINDOWS[0])
    if many_images or (kind == "weight" and many_places):
        side = math.sqrt(work.result_places)
        filled = side / (math.ceil(side / _WINOGRAD_SIDE) * _WINOGRAD_SIDE)
        gains.append(_gain(work, "4 x 4") * filled**2)
    if kind != "weight" and many_places:
        gains.append(_gain(work, "2 x 2"))
    return max(gains)


def _gain(work: Convolution, kernels: str) -> float:
    """Of one of Winograd's algorithms: each transformation serves a window's products."""
    transformed = (1 / work.channels + 1 / work.filters) / 2 * _WINOGRAD_WINDOWS[0] / work.window
    return max(1.0, WINOGRAD_GAIN[kernels] / (1 + WINOGRAD_CHANNELS[kernels] * transformed))


def _sides(work: Convolution, kind: str, vector: int) -> tuple[int, int, int, int]:
    """(m, n, k, batch) of the product; inner sides have channels filled up to whole vectors."""
    channels, filters = work.channels // work.groups, work.filters // work.groups
    places_in, places_out = work.images * work.input_places, work.images * work.result_places
    if kind == "forward":
        return places_out, filters, _rounded(channels, vector) * work.window, work.groups
    if kind == "input":
        if work.window == 1:  # the other places are zero
            return places_out, channels, _rounded(filters, vector), work.groups
        # A step of two leaves a quarter of the products: each place of the input meets so many places of the result.
        met = max(1, round(work.window * places_out / max(places_in, 1)))
        return places_in, channels, _rounded(filters, vector) * met, work.groups
    return filters, _rounded(channels, vector) * work.window, places_out, work.groups


def _rounded(count: int, vector: int) -> int:
    return -(-count // vector) * vector


def _layout(spec: Spec, work: Convolution, kind: str, size: int) -> float:
    """Seconds to bring what is in NCHW to NHWC, which tensor cores want, and results back.

    In 16 bits, a kernel fills channels up to whole vectors (cuDNN's profile names it `nhwcAddPaddingKernel`).
    """
    row_bytes = work.input_places * size
    line = _VECTOR_BYTES if kind == "forward" else _LINE_BYTES
    plain = work.window == 1 and not work.strided and work.groups == 1
    if plain and row_bytes % line == 0:
        return 0.0
    vector = _VECTOR_BYTES // size if size < 4 and work.groups == 1 else 1
    taken = 0.0
    for planar, elements, channels in (
        (work.planar_input, work.inputs, work.channels),
        (work.planar_result, work.results, work.filters),
        (work.planar_input and work.window > 1, work.weights, work.channels),
    ):
        if planar or channels % vector:
            filled = elements // channels * _rounded(channels, vector)
            moved = (elements + filled) * size
            cycles = LAYOUT_CYCLES * filled if planar else 0.0
            taken += cost.traffic_seconds(spec, moved, cached=True, cycles=cycles)
    return taken


def _depthwise(spec: Spec, work: Convolution, size: int) -> float:
    kernel = "NHWC" if not work.planar_input else "own" if size == 4 else "16 bits"
    each = DEPTHWISE_CYCLES
    if kernel in DEPTHWISE_RATIO:
        each = 2.0 * spec.multiprocessors * spec.clock_hertz / (DEPTHWISE_RATIO[kernel] * spec.peak_flops["float32"])
    taken = 0.0
    for kind in work.passes:
        times = 1.0 if kind == "forward" else DEPTHWISE_BACKWARD["NCHW" if work.planar_input else "NHWC"] / 2
        cycles = times * each * work.results * work.window
        moved = size * (work.inputs + work.results + work.weights)
        taken += cost.traffic_seconds(spec, moved, cached=True, cycles=cycles, phases=2)
    return taken
