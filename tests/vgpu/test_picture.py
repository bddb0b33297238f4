"""Pictures: files, what the panels show, windows, many events; figures are looked at as matplotlib's objects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vgpu
from vgpu.runtime.views import history, panels, picture, thinning
from vgpu.runtime.views.thinning import Bar


def _small_run() -> float:
    """Two products and a copy after a warm-up; returns when it began."""
    x = torch.ones(1024, 1024, device="cuda")
    x @ x
    torch.cuda.synchronize()
    gpu = vgpu.current()
    assert gpu is not None
    begin = gpu.now()
    with torch.profiler.record_function("work"):
        x @ x
        x.relu()
    x.cpu()
    return begin


def _texts(figure: Any) -> list[str]:
    texts = [text.get_text() for text in figure.texts]
    for axis in figure.axes:
        texts += [text.get_text() for text in axis.texts]
        texts += [label.get_text() for label in axis.get_yticklabels()]
        if axis.get_legend() is not None:
            texts += [text.get_text() for text in axis.get_legend().get_texts()]
    return texts


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(shapes: vgpu.VirtualGPU, tmp_path: Path, suffix: str, begins: bytes) -> None:
    _small_run()
    path = shapes.save_picture(tmp_path / f"run{suffix}")
    assert path.read_bytes().startswith(begins)


def test_another_suffix_is_an_error_that_names_the_formats(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf"):
        shapes.save_picture(tmp_path / "run.jpg")


def test_without_matplotlib_the_error_says_what_to_do(
    shapes: vgpu.VirtualGPU, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(vgpu.Unsupported, match="pip install matplotlib"):
        shapes.save_picture(tmp_path / "run.png")


def test_the_picture_says_which_gpu_and_that_it_is_simulated(shapes: vgpu.VirtualGPU) -> None:
    _small_run()
    texts = _texts(picture.draw(history.record(shapes)))
    assert "NVIDIA A100-SXM4-80GB" in texts
    assert "simulated by vgpu - modelled, not measured" in texts


def test_the_picture_names_kernels_waits_regions_and_the_peak(shapes: vgpu.VirtualGPU) -> None:
    begin = _small_run()
    texts = _texts(picture.draw(history.record(shapes, start=begin)))
    for expected in (
        "mm",
        "waits for copy to host",
        "work",
        "main thread",
        "default stream",
        "launches kernels",
        "copy",
    ):
        assert expected in texts, (expected, texts)
    assert any(text.startswith("peak ") for text in texts)


def test_each_launch_has_an_arrow_to_its_kernel(shapes: vgpu.VirtualGPU) -> None:
    begin = _small_run()
    run = history.record(shapes, start=begin)
    figure = picture.draw(run)
    assert len(figure.artists) == len(run.devices[0].kernels) == 3


def test_start_up_is_left_out_unless_asked_for(shapes: vgpu.VirtualGPU) -> None:
    _small_run()
    run = history.record(shapes)
    assert run.start >= shapes.spec.context_seconds + shapes.spec.blas_handle_seconds
    assert "start-up" in run.left_out
    whole = history.record(shapes, start=0.0)
    assert {span.kind for span in whole.threads["MainThread"]} >= {"start", "launch", "wait"}


def test_a_window_shows_only_what_overlaps_it(shapes: vgpu.VirtualGPU) -> None:
    begin = _small_run()
    product = [kernel for kernel in shapes.timeline if kernel.name == "aten::mm"][-1]
    run = history.record(shapes, start=product.start, stop=product.end)
    assert run.devices[0].kernels == [product]
    assert begin < product.start
    with pytest.raises(ValueError, match="nothing happened"):
        history.record(shapes, start=5.0, stop=5.0)


def test_memory_in_a_window_begins_with_what_was_there(shapes: vgpu.VirtualGPU) -> None:
    keep = torch.ones(1 << 20, device="cuda")
    begin = shapes.now()
    torch.cuda.synchronize()
    torch.ones(8, device="cuda")
    run = history.record(shapes, start=begin)
    assert run.devices[0].memory[0].allocated_bytes == keep.nbytes


def test_streams_and_threads_have_lanes_of_their_own(shapes: vgpu.VirtualGPU) -> None:
    import threading

    x, other = torch.ones(512, 512, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(other):
            x.relu()

    thread = threading.Thread(target=work, name="prefetcher")
    thread.start()
    thread.join()
    run = history.record(shapes)
    assert list(run.devices[0].streams) == [0, other.stream_id]
    assert set(run.threads) == {"MainThread", "prefetcher"}
    assert "prefetcher" in _texts(picture.draw(run))


def test_several_gpus_have_a_block_each_or_one_is_chosen() -> None:
    with vgpu.attach("A100-40GB", gpus=3, values=False) as gpu:
        torch.ones(64, device="cuda:0")
        torch.ones(64, device="cuda:2")
        run = history.record(gpu)
        assert [device.index for device in run.devices] == [0, 2]
        titles = [axis.get_title(loc="left") for axis in picture.draw(run).axes]
        assert [title for title in titles if title] == [
            "cuda:0  NVIDIA A100-SXM4-40GB", "cuda:2  NVIDIA A100-SXM4-40GB"
        ]  # fmt: skip
        assert [device.index for device in history.record(gpu, gpus=[2]).devices] == [2]
        with pytest.raises(ValueError, match="no such GPU"):
            history.record(gpu, gpus=[3])


def test_thousands_of_kernels_become_shares_of_time(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    x = torch.ones(64, device="cuda")
    for _ in range(1500):
        x.relu()
    figure = picture.draw(history.record(shapes))
    assert "default stream\n(share of time)" in _texts(figure)
    artists = sum(len(axis.collections) + len(axis.patches) for axis in figure.axes)
    assert artists < 50  # not one per kernel


def test_texts_do_not_overlap(shapes: vgpu.VirtualGPU) -> None:
    """Labels inside the panels, as matplotlib lays them out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    begin = _small_run()
    figure = picture.draw(history.record(shapes, start=begin))
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axis in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in axis.texts]
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_shares_of_slots_add_up() -> None:
    bars = [Bar(0.0, 0.5, "a", ""), Bar(0.5, 0.75, "b", ""), Bar(0.9, 2.0, "a", "")]
    shares = thinning.shares(bars, 0.0, 1.0, slots=10)
    assert sum(shares["a"]) / 10 == pytest.approx(0.6)
    assert sum(shares["b"]) / 10 == pytest.approx(0.25)
    assert max(map(max, shares.values())) <= 1.0 + 1e-9


def test_busy_shares_count_overlapping_kernels_once(shapes: vgpu.VirtualGPU) -> None:
    x, other = torch.ones(2048, 2048, device="cuda"), torch.cuda.Stream()
    x @ x
    torch.cuda.synchronize()
    begin = shapes.now()
    x @ x
    with torch.cuda.stream(other):
        x @ x
    torch.cuda.synchronize()
    run = history.record(shapes, start=begin)
    shares = history.busy_shares(run.devices[0].kernels, run.start, run.stop, 50)
    busy = max(kernel.end for kernel in run.devices[0].kernels) - min(kernel.start for kernel in run.devices[0].kernels)
    assert sum(shares) / 50 == pytest.approx(busy / (run.stop - run.start), rel=0.02)


def test_thinned_memory_keeps_its_peak_and_its_end() -> None:
    samples = [(number / 5000, (float(number % 7),)) for number in range(5000)] + [(0.5, (99.0,)), (1.0, (3.0,))]
    samples.sort(key=lambda sample: sample[0])
    thin = thinning.highest(samples, 0.0, 1.0, slots=100)
    assert len(thin) <= 2 * 101
    assert (0.5, (99.0,)) in thin
    assert thin[-1] == (1.0, (3.0,))


def test_nested_regions_lie_deeper() -> None:
    bars = [Bar(0, 10, "region", "outer"), Bar(1, 4, "region", "inner"), Bar(12, 13, "region", "next")]
    assert [(depth, bar.name) for depth, bar in thinning.with_depth(bars)] == [(0, "outer"), (1, "inner"), (0, "next")]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (1e-3, "1 ms"), (0.9e-3, "900 µs"), (12e-6, "12 µs"), (3e-9, "3 ns")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert thinning.seconds_text(seconds) == text


def test_every_colour_of_a_panel_is_different() -> None:
    for table in (panels.HOST, panels.DEVICE):
        colours = [colour for colour, _ in table.values()]
        assert len(set(colours)) == len(colours)
