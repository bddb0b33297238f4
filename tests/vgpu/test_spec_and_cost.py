"""Specifications and the cost model; expectations from the TOML format's description and the roofline model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vgpu
from vgpu.device import attention_cost, convolution_cost, cost
from vgpu.device.kernel_work import Convolution

torch = pytest.importorskip("torch")


def test_importing_vgpu_does_not_import_torch() -> None:
    code = "import sys, vgpu, vgpu.device.spec, vgpu.device.cost; vgpu.get_spec('T4'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_gpu_states_where_its_peak_bandwidth_and_memory_come_from() -> None:
    for name in vgpu.list_specs():
        assert {"peak_flops", "bandwidth_bytes_per_second", "memory_bytes"} <= set(vgpu.get_spec(name).sources)


def test_the_h200_is_an_h100_with_more_and_faster_memory() -> None:
    h100, h200 = vgpu.get_spec("H100"), vgpu.get_spec("h200")
    assert h200.peak_flops == h100.peak_flops
    assert h200.memory_bytes > h100.memory_bytes
    assert h200.bandwidth_bytes_per_second > h100.bandwidth_bytes_per_second


def test_turing_has_no_bf16_tensor_cores() -> None:
    # NVIDIA Turing architecture whitepaper; products in BF16 are slower than in FP32 there (benchmarks/published).
    spec = vgpu.get_spec("T4")
    assert spec.peak_tflops("bfloat16") < spec.peak_tflops("float32") < spec.peak_tflops("float16") / 4
    assert not cost.uses_tensor_cores(spec, "bfloat16")


def test_a_custom_gpu_changes_only_what_its_file_names(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('[gpu.Small]\nbase = "T4"\nmemory_bytes = 1073741824\n')
    spec = vgpu.get_spec(path)
    assert (spec.name, spec.memory_bytes) == ("Small", 2**30)
    assert spec.bandwidth_bytes_per_second == vgpu.get_spec("T4").bandwidth_bytes_per_second


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gpu.A]\nbase = 'T5'\n", "base = 'T5' is not a built-in GPU"),
        ("[gpu.A]\nbase = 'T4'\nmemory = 3\n", "does not know 'memory'"),
        ("[gpu.A]\nbase = 'T4'\nmemory_bytes = -1\n", "expected a positive whole number"),
        ("[gpu.A]\ntitle = 'x'\n", r"\[gpu.A\] lacks compute_capability"),
        ("[gpu.A]\nbase = 'T4'\nbandwidth_efficiency_ratio = 1.5\n", "expected a ratio of at most 1"),
        ("[host]\nlaunch_seconds = 0.0\n[gpu.A]\nbase = 'T4'\n", r"\[host\] launch_seconds must be positive"),
        ("[gpu.A", "not valid TOML"),
        ("", "exactly one"),
    ],
)
def test_a_bad_file_gives_one_error_that_names_file_and_cause(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(vgpu.SpecError, match=expected) as caught:
        vgpu.get_spec(path)
    assert str(path) in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(vgpu.SpecError, match="T4, A100-40GB"):
        vgpu.get_spec("V200")


@pytest.mark.parametrize("name", ["T4", "A100-80GB", "H200"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 91, 53), (128, 128, 128), (1000, 17, 333)])
def test_matmul_seconds_is_exactly_what_mm_is_charged(name: str, dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    with vgpu.attach(name, values=False) as gpu:
        kind = getattr(torch, dtype)
        _ = torch.ones(m, k, device="cuda", dtype=kind) @ torch.ones(k, n, device="cuda", dtype=kind)
    assert gpu.timeline[-1].name == "aten::mm"
    assert gpu.timeline[-1].seconds == cost.matmul_seconds(gpu.spec, m, n, k, dtype)


def test_tf32_speeds_up_fp32_products_where_the_gpu_has_it() -> None:  # torch.backends.cuda.matmul.allow_tf32
    with vgpu.attach("A100-80GB", values=False) as gpu:
        x = torch.ones(2048, 2048, device="cuda")
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            _ = x @ x
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    expected = cost.matmul_seconds(gpu.spec, 2048, 2048, 2048, tf32=True)
    assert gpu.timeline[-1].seconds == expected < cost.matmul_seconds(gpu.spec, 2048, 2048, 2048)


@pytest.mark.parametrize("name", vgpu.list_specs())
def test_no_product_beats_the_roofline(name: str) -> None:  # Williams et al., CACM 2009
    spec = vgpu.get_spec(name)
    for size in (1, 31, 128, 1000, 1024, 4096, 4097, 16384):
        for dtype in ("float32", "float16"):
            seconds = cost.matmul_seconds(spec, size, size, size, dtype)
            assert 2 * size**3 / seconds <= spec.peak_flops[dtype]
            moved = 3 * size**2 * cost.BYTES_PER_ELEMENT[dtype]
            assert moved / seconds <= spec.bandwidth_bytes_per_second


def test_misaligned_fp16_products_are_slower() -> None:  # NVIDIA Matrix Multiplication Background User's Guide
    spec = vgpu.get_spec("A100-80GB")
    assert cost.matmul_seconds(spec, 4095, 4095, 4095, "float16") > cost.matmul_seconds(
        spec, 4096, 4096, 4096, "float16"
    )


def test_flops_are_those_of_the_flop_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def work(device: str) -> None:
        x = torch.ones(2, 4, 10, 10, device=device, requires_grad=True)
        convolution = torch.nn.Conv2d(4, 6, 3, padding=1, bias=False, device=device)
        convolution(x).sum().backward()
        q = torch.ones(2, 4, 16, 8, device=device, requires_grad=True)
        (torch.ones(3, 5, 7, device=device) @ torch.ones(3, 7, 9, device=device)).sum()
        torch.nn.functional.linear(q, torch.ones(12, 8, device=device), torch.ones(12, device=device))

    with FlopCounterMode(display=False) as counter:
        work("cpu")
    with vgpu.attach("T4") as gpu:
        work("cuda")
    assert sum(kernel.flops for kernel in gpu.timeline) == counter.get_total_flops()


def test_the_cpu_is_charged_by_its_own_model(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(64, 64)
    before = gpu.now()
    _ = torch.mm(x, x)
    assert gpu.now() - before == pytest.approx(cost.cpu_matmul_seconds(gpu.spec, 64, 64, 64), rel=1e-9)
    assert gpu.timeline == []


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1 << 20), (4096, 1, 4096), (1, 4096, 4096)])
def test_a_product_with_a_vector_takes_as_long_as_reading_its_operands(m: int, n: int, k: int) -> None:
    # One multiply-add per element read is far left of the roofline's ridge; cuBLAS has gemv kernels for it.
    spec = vgpu.get_spec("T4")
    seconds = cost.matmul_seconds(spec, m, n, k)
    traffic = 4 * (m * k + k * n + m * n) / (spec.bandwidth_bytes_per_second * spec.bandwidth_efficiency_ratio)
    assert seconds == pytest.approx(traffic, rel=1e-3)


def test_on_hopper_tf32_has_no_tile_below_128_by_128() -> None:
    """So 1 to 16 tiles take equally long: 512 cubed took 8.2 us on an H100, and 4.5 in FP16."""
    spec = vgpu.get_spec("H100")
    smallest = {
        name: min(height * width for height, width, _ in cost.tile_sizes(spec, name, tf32=name == "float32"))
        for name in ("float32", "float16")
    }
    assert smallest["float32"] == 128 * 128 > smallest["float16"]
    few, many, half = (
        cost.matmul_seconds(spec, side, side, 512, dtype, tf32=dtype == "float32")
        for side, dtype in ((16, "float32"), (512, "float32"), (512, "float16"))
    )
    assert few == pytest.approx(many, rel=0.05)
    assert half < 0.7 * many


def test_operands_of_batched_products_are_in_the_cache_where_it_holds_them() -> None:
    """512 products of 128 x 128 x 64 in FP16 took 9.8 us on an H100, which memory alone cannot."""
    spec = vgpu.get_spec("H100")
    moved = 512 * (2 * 128 * 64 + 128 * 128) * 2
    batched, plain = (
        cost.product_seconds(
            spec, 128, 128, 64, batch=batch, times=512 / batch, bytes=moved, dtype="float16", tf32=False
        )
        for batch in (512, 1)
    )
    assert 9.8e-6 / 1.3 < batched < 9.8e-6 * 1.3
    assert cost.batched_matmul_seconds(spec, 512, 128, 128, 64, "float16") == batched < plain


def test_few_filters_leave_a_card_idle_when_their_gradient_is_computed() -> None:
    """3 x 3 windows, 32 to 32 channels: in TF32 and NCHW as long as in FP32, and less than half of that in NHWC."""
    spec = vgpu.get_spec("H100")

    def seconds(filters: int, *, planar: bool, tf32: bool) -> float:
        work = Convolution(
            ("weight",), 128, filters, filters, 1024, 1024, 9, planar_input=planar, planar_result=planar
        )  # fmt: skip
        return convolution_cost.seconds(spec, work, "float32", tf32=tf32)

    assert seconds(32, planar=True, tf32=True) == seconds(32, planar=True, tf32=False)
    assert seconds(32, planar=False, tf32=True) < 0.5 * seconds(32, planar=True, tf32=True)
    assert seconds(128, planar=True, tf32=True) < seconds(128, planar=True, tf32=False)
    # A sixteenth of the products, by a third of the tiles at most.
    assert seconds(32, planar=False, tf32=True) > 0.15 * seconds(128, planar=False, tf32=True)


# ---- fused attention: its products and an exponential for each entry (`attention_cost.efficiency`) ---------------


def _attention(name: str, kernel: str = "flash", *, width: int = 128, backward: bool = False) -> float:
    return attention_cost.efficiency(vgpu.get_spec(name), kernel, 16384, width, backward=backward)


def _rate(spec: vgpu.Spec, megabytes: float, share: float = 1.0, *, cached: bool = True) -> float:
    """Bytes per second once a kernel has begun."""
    seconds = cost.traffic_seconds(spec, megabytes * 1e6, share, cached=cached)
    return megabytes * 1e6 / (seconds - spec.minimum_kernel_seconds)


@pytest.mark.parametrize(
    ("name", "megabytes", "seconds"),
    [  # te42kyfo/gpu-benches, gpu-small-kernels: the best size of blocks
        ("A100-80GB", 9.02, 3.76e-6),
        ("A100-80GB", 22.70, 7.28e-6),
        ("A100-80GB", 30.89, 11.52e-6),
        ("A100-80GB", 57.17, 35.89e-6),
        ("H200", 9.82, 2.92e-6),
        ("H200", 28.02, 5.76e-6),
        ("H200", 39.75, 8.11e-6),
    ],
)
def test_what_fits_the_l2_cache_is_as_fast_as_others_measured(name: str, megabytes: float, seconds: float) -> None:
    assert cost.traffic_seconds(vgpu.get_spec(name), megabytes * 1e6, cached=True) == pytest.approx(seconds, rel=0.25)


def test_so_it_was_on_an_h100_that_nothing_was_fitted_to() -> None:  # benchmarks/results/h100.json: x + 1
    for megabytes, seconds in ((8.4, 3.47e-6), (33.6, 8.93e-6), (134.2, 47.9e-6)):
        predicted = cost.traffic_seconds(vgpu.get_spec("H100"), megabytes * 1e6, cached=True)
        assert predicted == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize("name", vgpu.list_specs())
def test_a_kernel_that_moves_more_takes_longer_across_the_edge_of_the_cache(name: str) -> None:
    spec = vgpu.get_spec(name)
    memory = spec.bandwidth_bytes_per_second * spec.bandwidth_efficiency_ratio
    taken = [cost.traffic_seconds(spec, spec.l2_bytes * part / 50, cached=True) for part in range(1, 100)]
    assert taken == sorted(taken)
    assert (_rate(spec, spec.l2_bytes * 0.5e-6) > 1.3 * memory) is bool(spec.l2_bytes_per_second)
    assert _rate(spec, spec.l2_bytes * 1.1e-6) == pytest.approx(memory)


def test_the_cache_helps_nobody_whose_card_names_no_rate() -> None:
    spec = vgpu.get_spec("H100")
    memory = spec.bandwidth_bytes_per_second * spec.bandwidth_efficiency_ratio
    assert _rate(spec, 8, cached=False) == pytest.approx(memory)
    assert _rate(replace(spec, l2_bytes_per_second=0.0), 8) == pytest.approx(memory)


@pytest.mark.parametrize(
    ("work", "cached"),
    [
        (lambda x: x + 1, True),
        (lambda x: x.clone(), True),
        (lambda x: x.amax(0), True),
        (lambda x: x.t().contiguous(), False),  # a sector of the cache for each element
        (lambda x: x.sort(), False),
    ],
)
def test_which_kernels_find_their_operands_in_the_cache(work: Callable[[torch.Tensor], object], cached: bool) -> None:
    with vgpu.attach("H100") as gpu:
        x = torch.ones(2048, 2048, device="cuda")
        work(x)
        torch.cuda.synchronize()
        kernel = gpu.timeline[-1]
        memory = gpu.spec.bandwidth_bytes_per_second * gpu.spec.bandwidth_efficiency_ratio
        assert (kernel.bytes / (kernel.seconds - 3 * gpu.spec.minimum_kernel_seconds) > memory * 1.01) is cached


def _seconds(work: Callable[[torch.Tensor], object], shape: tuple[int, ...], *, last: bool = False) -> float:
    """Device seconds of what `work` launches on an H100."""
    with vgpu.attach("H100", values=False) as gpu:
        x = torch.empty(shape, device="cuda")
        if last:
            x = x.to(memory_format=torch.channels_last)
        torch.cuda.synchronize()
        before = len(gpu.timeline)
        work(x)
        torch.cuda.synchronize()
        return sum(kernel.seconds for kernel in gpu.timeline[before:])


def test_sums_wait_for_each_other_and_the_place_of_the_largest_longer() -> None:
    shortest = vgpu.get_spec("H100").minimum_kernel_seconds
    rows, all_of_it = (_seconds(work, (64, 64)) for work in (lambda x: x.sum(1), lambda x: x.sum()))
    places = _seconds(lambda x: x.argmax(1), (64, 64))
    assert 2 * shortest < rows < all_of_it < 3.5 * shortest
    assert places == pytest.approx(rows + shortest, rel=0.01)


def test_rows_that_a_block_keeps_are_read_once() -> None:
    kept, long = (_seconds(lambda x: x.softmax(-1), shape) for shape in ((1 << 16, 1 << 10), (1 << 10, 1 << 16)))
    assert long / kept == pytest.approx(2, rel=0.1)  # four passes instead of two


def test_the_gradient_of_softmax_takes_a_product_before() -> None:  # SoftMax.cu, softmax_backward_cuda_out
    def backward(work: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], object]:
        return lambda x: torch.autograd.grad(work(x.requires_grad_()), x, x.detach())

    whole, logarithm = (
        _seconds(backward(work), (1 << 16, 1 << 10)) for work in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1))
    )
    assert whole / logarithm == pytest.approx(8 / 5, rel=0.05)


def test_few_channels_in_nchw_leave_multiprocessors_idle() -> None:
    def norm(x: torch.Tensor) -> object:
        weight = torch.empty(x.shape[1], device="cuda")
        return torch.nn.functional.batch_norm(x, None, None, weight, weight, training=True)

    few, many = (_seconds(norm, shape) for shape in ((64, 64, 56, 56), (64, 256, 28, 28)))
    assert few > 1.5 * many
    assert _seconds(norm, (64, 64, 56, 56), last=True) < few


def test_an_expanded_operand_is_read_once() -> None:
    wide = _seconds(lambda x: x + 1, (1 << 14, 1 << 12))
    column = _seconds(lambda x: x[:, :1].expand(1 << 14, 1 << 12) + 1, (1 << 14, 1 << 12))
    assert column < 0.7 * wide


def test_a_network_of_small_windows_wants_no_other_layout_but_for_windows_of_three() -> None:
    """Tensor cores take NHWC; a window of one is a plain product of each image."""
    with vgpu.attach("H100", values=False) as gpu:
        torch.backends.cudnn.allow_tf32 = True
        seconds = {}
        for window in (1, 3):
            for memory in (torch.contiguous_format, torch.channels_last):
                layer = torch.nn.Conv2d(64, 64, window, padding=window // 2, bias=False, device="cuda")
                x = torch.empty(64, 64, 56, 56, device="cuda").to(memory_format=memory)
                layer.to(memory_format=memory)(x)
                torch.cuda.synchronize()
                seconds[window, memory] = gpu.timeline[-1].seconds
    assert seconds[1, torch.contiguous_format] == pytest.approx(seconds[1, torch.channels_last])
    assert seconds[3, torch.contiguous_format] > 1.5 * seconds[3, torch.channels_last]


def test_the_summary_says_who_is_faster_than_memory() -> None:
    with vgpu.attach("RTX4090") as gpu:
        x = torch.ones(6 * 2**20, device="cuda")
        x.mul_(2)
        torch.cuda.synchronize()
        text = gpu.summary()
    assert "L2 cache: faster than memory" in text


def test_flash_attention_by_hand_on_an_a100() -> None:
    spec = vgpu.get_spec("A100-80GB")
    # 4 x 128 operations at 2,048 in a cycle, at the rate of the best products; then one of 16 exponentials.
    products = 512 / (312e12 / 108 / 1.41e9) / cost.attained_ratio(spec, "float16")
    filled = 16384 / (16384 + attention_cost._ATTENTION_ROWS)
    assert _attention("A100-80GB") == pytest.approx(0.25 / (products + 1 / 16) * filled, rel=0.01)


def test_narrow_heads_leave_less_time_for_each_exponential() -> None:
    narrow, wide = (_attention("A100-80GB", width=width) for width in (64, 128))
    assert 0.7 < narrow / wide < 0.95


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_exponentials_bound_cards_with_many_tensor_cores_more(kernel: str) -> None:
    # Operations of tensor cores per cycle and multiprocessor: 512, 2,048, 3,800 and 7,700; exponentials: 16 on each.
    times = [_attention(name, kernel) for name in ("RTX4090", "A100-80GB", "H100", "B200")]
    assert times == sorted(times, reverse=True)


def test_mma_sync_makes_no_use_of_hoppers_faster_tensor_cores() -> None:
    # FlashAttention-2 on the H100 reaches 370 TFLOP/s, cuDNN about 600 (Shah et al., "FlashAttention-3", figure 5).
    flash, cudnn = (_attention("H100", kernel) * 989.4 for kernel in ("flash", "cudnn"))
    assert 300 < flash < 400
    assert 550 < cudnn < 680


def test_a_backward_pass_reaches_less_than_a_forward_pass() -> None:
    assert _attention("A100-80GB", backward=True) < _attention("A100-80GB")
