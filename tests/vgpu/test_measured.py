"""The laws with an H100 that was measured (`benchmarks/results/h100.json`), as the docs quote it."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vgpu
from benchmarks.measured import captured, fitting
from benchmarks.published import contradictions, figures, held_out, older_cards, run
from vgpu.device import attention_cost, convolution_cost
from vgpu.device.kernel_work import Convolution

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def rows(group: str) -> list[dict[str, Any]]:
    compared = json.loads((RESULTS / "h100_compared.json").read_text(encoding="utf-8"))
    return [row for row in compared["rows"] if row["group"].startswith(group)]


def sides(name: str) -> tuple[int, int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    return (numbers[0],) * 3 if "cubed" in name else (numbers[0], numbers[1], numbers[2])


@pytest.mark.parametrize("precision", DTYPES)
def test_products_take_what_they_took(precision: str) -> None:
    """And what the committed comparison says: a law that changes asks for a new one."""
    spec, ratios = vgpu.get_spec("H100"), []
    for row in rows(f"kernel: product {precision}"):
        seconds = vgpu.device.cost.matmul_seconds(
            spec, *sides(row["name"]), DTYPES[precision], tf32=precision == "tf32"
        )
        assert seconds == pytest.approx(row["simulated"], rel=0.02), row["name"]
        ratios.append(row["measured"] / seconds)
    assert len(ratios) >= 10
    assert 0.9 < statistics.median(ratios) < 1.25
    assert all(0.5 < ratio < 2.1 for ratio in ratios)


def test_rows_that_are_not_aligned_cost_what_they_did() -> None:
    for row in rows("kernel: product"):
        if row["name"] == "4096 x 4096 x 4095":
            assert 0.8 < row["ratio"] < 1.25, row


def test_peaks_of_training_are_those_of_the_card() -> None:
    """Networks of 17 kinds; the largest difference is a cuDNN workspace."""
    ratios = [row["ratio"] for row in rows("training step, peak bytes")]
    assert len(ratios) == 17
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.01
    assert all(0.85 < ratio < 1.05 for ratio in ratios)


def test_an_operand_that_is_there_twice_is_loaded_once() -> None:
    with vgpu.attach("H100", values=False) as gpu:
        x, y = (torch.empty(1 << 26, device="cuda") for _ in range(2))
        seconds = []
        for call in (lambda: x + 1, lambda: x * x, lambda: x * y):
            call()
            torch.cuda.synchronize()
            seconds.append(gpu.timeline[-1].seconds)
    assert seconds[0] == pytest.approx(seconds[1])
    assert seconds[2] == pytest.approx(1.5 * seconds[0], rel=0.01)


def test_fp32_attention_runs_on_tensor_cores_where_there_is_tf32() -> None:
    """The memory-efficient kernel, by three products each; on a T4 on CUDA cores."""
    efficiency = {"H100": 1 / 3, "T4": 1.0}
    for name, share in efficiency.items():
        spec = vgpu.get_spec(name)
        assert 1 / attention_cost.products_of("efficient", "float32", spec) == pytest.approx(share)
        assert attention_cost.products_of("efficient", "float16", spec) == 1


def test_calls_take_the_host_what_they_took() -> None:
    ratios = [row["ratio"] for row in rows("host call")]
    assert len(ratios) == 51
    assert statistics.median(max(ratio, 1 / ratio) for ratio in ratios) < 1.25


def test_on_hopper_cuda_cores_do_less_for_convolutions_than_for_products() -> None:
    """A 1 x 1 window is a product: in FP32 it takes longer there, and longer still in backward."""
    ratios = {}
    for gpu in ("A100-80GB", "H100"):
        with vgpu.attach(gpu, values=False) as card, torch.backends.cudnn.flags(allow_tf32=False):
            layer = torch.nn.Conv2d(2048, 2048, 1, bias=False, device="cuda")
            pixels = torch.empty(16, 2048, 32, 32, device="cuda", requires_grad=True)
            layer(pixels).backward(torch.empty_like(pixels))
            matrix = torch.empty(16 * 32 * 32, 2048, device="cuda") @ torch.empty(2048, 2048, device="cuda")
            took = {kernel.name: kernel.seconds for kernel in card.timeline}
        assert matrix.shape == (16384, 2048)
        names = ("aten::convolution", "aten::convolution_backward")
        ratios[gpu] = [took[name] / took["aten::mm"] for name in names]
    # A gradient of images, and one of filters, which takes 1.5 times as long on a T4 and a V100 (DeepBench).
    assert ratios["A100-80GB"] == pytest.approx([1, 1 + 1.5], rel=0.15)
    # The record has 1.6 for 1,024 to 256 channels, and 2.9 for each of their gradients.
    assert 1.4 < ratios["H100"][0] < 2
    assert ratios["H100"][1] > 1.2 * 2 * ratios["H100"][0]


# ---- single kernels that had no part in the fit (`python -m benchmarks.measured.cross_validation`) -------------------


def test_kernels_left_out_are_within_what_the_page_promises() -> None:
    result = json.loads((RESULTS / "h100_kernels.json").read_text(encoding="utf-8"))
    assert result["kernels"] > 300
    for split in ("half left out", "shape left out", "group left out"):
        assert result["errors"][split]["median_error"] <= 0.15
        assert result["errors"][split]["beyond_a_factor_of_two"] == 0
        assert result["order"][split]["share"] >= 0.95
        assert [group for group, errors in result["groups"].items() if errors[split] > 0.20] == []


def test_tables_of_others_are_met_as_the_page_says() -> None:
    """And priced by these constants: a law that changes asks for `python -m benchmarks.published.held_out`."""
    result = json.loads((RESULTS / "published_held_out.json").read_text(encoding="utf-8"))
    deepbench = [*held_out._products(), *held_out._convolutions()]
    for row, committed in zip(deepbench, result["rows"], strict=False):
        assert math.exp(row.error) == pytest.approx(committed["ratio"], rel=0.02), row
    products = [abs(row.error) for row in deepbench if row.group.startswith("products")]
    assert len(products) == 640
    assert statistics.median(products) < math.log(1.15)
    assert statistics.median(abs(row.error) for row in deepbench) < math.log(1.2)
    assert len(result["rows"]) > len(deepbench) + 50


def test_convolutions_of_older_cards_that_had_no_part_in_the_fit_are_met() -> None:
    """Halves, kinds of window and cards left out: every group of card, type and pass in 25 %, halves in 20 %."""
    result = json.loads((RESULTS / "published_held_out.json").read_text(encoding="utf-8"))
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in (row for row in result["rows"] if row["fitted"] and row["group"].startswith("convolutions")):
        for split, ratio in row["left_out"].items():
            groups.setdefault((split, row["gpu"], row["group"]), []).append(abs(math.log(ratio)))
    assert {split for split, *_ in groups} == {"nothing fitted", *older_cards.SPLITS}
    assert result["groups"]["DeepBench, V100: products FP16"]["contradicted"] > 0
    assert sum(summary["beyond_and_not_contradicted"] for summary in result["groups"].values()) <= 4
    for (split, gpu, group), sizes in groups.items():
        if split != "nothing fitted":
            allowed = 1.20 if split == "half left out" else 1.25
            assert statistics.median(sizes) < math.log(allowed), (split, gpu, group)
            assert sum(size > math.log(2) for size in sizes) <= 0.15 * len(sizes), (split, gpu, group)


def gradient_of_filters(gpu: str, channels: int, filters: int) -> float:
    """Seconds, in 16 bits and NHWC, for each product of 3 x 3 windows."""
    places = 350 * 80
    work = Convolution(
        ("weight",), 16, channels, filters, places, places, 9, planar_input=False, planar_result=False
    )  # fmt: skip
    return convolution_cost.seconds(vgpu.get_spec(gpu), work, "float16", tf32=False) / (channels * filters)


def test_few_channels_leave_a_tile_of_the_filters_gradient_empty() -> None:
    """A T4's tile is 128 wide and a V100's 64, for each place of the window."""
    assert gradient_of_filters("T4", 64, 64) > 3 * gradient_of_filters("T4", 128, 128)
    assert gradient_of_filters("V100", 64, 64) < 1.5 * gradient_of_filters("V100", 128, 128)
    for gpu in ("T4", "V100"):
        assert gradient_of_filters(gpu, 8, 64) > 6 * gradient_of_filters(gpu, 64, 64)


@pytest.mark.parametrize(("places", "channels", "filters", "reached"), [(420, 512, 512, 94.1), (784, 128, 128, 49.3)])
def test_a_v100_reaches_its_rate_with_several_tiles_for_each_multiprocessor(
    places: int, channels: int, filters: int, reached: float
) -> None:
    """Gradients of 3 x 3 filters in 16 bits, in TFLOP/s: 576 tiles of 64 x 64, and 36 of them (DeepBench)."""
    work = Convolution(("weight",), 16, channels, filters, places, places, 9)
    seconds = convolution_cost.seconds(vgpu.get_spec("V100"), work, "float16", tf32=False)
    assert 2.0 * 16 * places * channels * filters * 9 / seconds == pytest.approx(reached * 1e12, rel=0.2)


def test_filters_gradients_of_a_v100_that_had_no_part_in_the_fit_are_met() -> None:
    result = json.loads((RESULTS / "published_held_out.json").read_text(encoding="utf-8"))
    for precision in ("FP16", "FP32"):
        summary = result["groups"][f"DeepBench, V100: convolutions {precision}, gradient of filters"]
        assert summary["median_error"] <= 0.20
    for kernel in ("cross entropy", "embedding", "layer norm"):
        assert result["groups"][f"Liger-Kernel, A100-80GB: {kernel}"]["median_error"] <= 0.20


@pytest.mark.parametrize("gpu", ["T4", "V100", "A100-40GB"])
def test_winograd_on_older_cards_gains_more_for_sixteen_images_and_needs_planes(gpu: str) -> None:
    spec = vgpu.get_spec(gpu)

    def seconds(kind: str, images: int, *, planar: bool = True) -> float:
        places = 28 * 28
        work = Convolution((kind,), images, 256, 512, places, places, 9, planar_input=planar, planar_result=planar)
        return convolution_cost.seconds(spec, work, "float32", tf32=False)

    for kind in ("forward", "input", "weight"):
        assert seconds(kind, 16, planar=False) > 1.4 * seconds(kind, 16)
    # Forward, eight images take a V100 716 us and sixteen 801; filters' gradients 420 and 766.
    for kind in ("forward", "input"):
        assert seconds(kind, 8) > 0.75 * seconds(kind, 16)
    assert seconds("weight", 8) < 0.65 * seconds("weight", 16)


# Rows of DeepBench that show a rule of the cost model: without it they are off by more than 40 %.
SHOWN = {
    "a window of one in steps of two reads a quarter": (
        "T4: convolutions FP16, forward", "1x1, 256 to 128, 16 of 56 x 56", 53e-6,
    ),
    "large windows are left to CUDA cores": (
        "T4: convolutions FP16, gradient of filters", "20x5, 1 to 32, 16 of 700 x 161", 7622e-6,
    ),
    "nobody splits the inner side of a T4's tile": (
        "T4: convolutions FP16, forward", "5x5, 832 to 128, 16 of 7 x 7", 549e-6,
    ),
    "narrow tiles are slower": ("V100: convolutions FP16, gradient of images", "3x3, 32 to 64, 16 of 120 x 12", 43e-6),
    "a T4's tiles have 128 columns for filters": (
        "T4: convolutions FP32, gradient of filters", "3x3, 3 to 64, 16 of 224 x 224", 3460e-6,
    ),
    "Winograd's small tiles serve few channels": (
        "T4: convolutions FP32, forward", "3x3, 16 to 32, 16 of 240 x 24", 203e-6,
    ),
    "Winograd transforms for a whole window": (
        "V100: convolutions FP32, gradient of filters", "5x5, 192 to 32, 16 of 28 x 28", 189e-6,
    ),
    "zeros are written before a gradient in steps": (
        "T4: convolutions FP32, gradient of images", "1x1, 256 to 128, 16 of 56 x 56", 580e-6,
    ),
    "a gradient of 1 x 1 filters has tiles of 128 rows": (
        "T4: convolutions FP32, gradient of filters", "1x1, 64 to 64, 16 of 112 x 112", 1757e-6,
    ),
    "few places of 1 x 1 filters are shared out": (
        "V100: convolutions FP32, gradient of filters", "1x1, 832 to 256, 16 of 7 x 7", 79e-6,
    ),
    "a lone tile takes twice as long": ("V100: products FP16", "2048 x 128 x 2048 TN", 31e-6),
}  # fmt: skip


@pytest.mark.parametrize("rule", SHOWN)
def test_a_rule_is_met_by_the_row_that_shows_it(rule: str) -> None:
    group, name, seconds = SHOWN[rule]
    kernels = held_out._products() if "products" in group else held_out._convolutions()
    found = [row for row in kernels if f"{row.gpu}: {row.group}" == group and row.name == name]
    assert [row.published for row in found] == pytest.approx([seconds])
    assert abs(found[0].error) < math.log(1.36)


def test_a_table_contradicts_itself_where_something_larger_took_less_than_half() -> None:
    kernels = [
        contradictions.Kernel("forward", sides, seconds)
        for sides, seconds in (((8, 64), 9.0), ((16, 64), 4.4), ((16, 32), 9.0), ((8, 128), 4.6), ((8, 32), 8.0))
    ]
    # The larger one took less than half as long; one that is larger in one side only does not count.
    assert contradictions.of(kernels) == [True, False, True, False, False]
    assert contradictions.of([kernels[0], kernels[1]._replace(kind="weight")]) == [False, False]
    assert contradictions.of([kernels[0], kernels[0]]) == [False, False]


def test_the_committed_result_is_of_these_constants() -> None:
    """Convolutions, which need no tensors: a constant that changes asks for a new comparison."""
    spec = vgpu.get_spec("H100")
    image = Convolution(("forward",), 64, 256, 256, 14 * 14, 14 * 14, 9)
    for precision, dtype in (("fp32", "float32"), ("tf32", "float32"), ("fp16", "float16")):
        (row,) = (
            each for each in rows(f"kernel: convolution {precision} NHWC")
            if each["name"] == "3x3, 256, 14" and "backward" not in each["group"]
        )  # fmt: skip
        seconds = convolution_cost.seconds(spec, image, dtype, tf32=precision == "tf32")
        assert seconds == pytest.approx(row["simulated"], rel=0.02)
        assert 0.5 < row["ratio"] < 2


def test_no_fit_begins_with_what_it_is_to_find() -> None:
    """Priors are round figures that a data sheet or the kernel's source gives, apart from the fitted values."""
    known = fitting.constants()
    assert len(known) > 30
    assert sum(constant.prior == constant.value for constant in known) <= 2


# ---- how published programs are run ----------------------------------------------------------------------------------


def test_convolutions_are_tuned_where_the_published_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.WORKLOADS, "cnn_train", lambda sizes, precision: float(torch.backends.cudnn.benchmark))
    figure = next(figure for figure in figures.load() if figure.id == "rn50-v100-128-amp-nhwc")
    tuned, plain = run.run_all([figure, replace(figure, id="plain", tuned=False)], say=lambda line: None)
    assert (tuned.simulated, plain.simulated) == (1, 0)
    assert not torch.backends.cudnn.benchmark


def test_watching_a_step_leaves_autograd_its_gradients() -> None:
    """Autograd copies a gradient that somebody else holds, which the program itself would not see."""
    with vgpu.attach("A100-80GB", values=False):
        x = torch.empty(1024, 1024, device="cuda", requires_grad=True)
        loss = (x * 2.0).sum()
        with captured.watched() as pieces:
            loss.backward()
    assert [piece.operation.name for piece in pieces if "copy" in piece.operation.name] == []
    assert any(piece.operation.name == "aten::mul" for piece in pieces)


def test_every_call_of_an_operation_is_watched_once() -> None:
    with vgpu.attach("A100-80GB", values=False):
        x = torch.empty(256, 256, device="cuda")
        for times in (1, 2, 3):
            with captured.watched() as pieces:
                for _ in range(times):
                    torch.mm(x, x)
            assert [piece.operation.name for piece in pieces] == ["aten::mm"] * times
