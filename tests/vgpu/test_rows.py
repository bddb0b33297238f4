"""Times of kernels that work on rows: read again or not, selected, and added up to a loss.

Expected figures are those that Liger-Kernel's benchmark measured on an A100 (benchmarks/published/tables/liger.csv).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import vgpu
from benchmarks.published import older_pytorch
from vgpu.device import messages
from vgpu.device.kernel_work import Again, KernelWork

torch = pytest.importorskip("torch")

F = torch.nn.functional
ROWS = 16384


def _seconds(work: Callable[[], object], gpu: vgpu.VirtualGPU) -> float:
    before = len(gpu.timeline)
    work()
    torch.cuda.synchronize()
    return sum(kernel.seconds for kernel in gpu.timeline[before:])


@pytest.mark.parametrize(("columns", "milliseconds"), [(1 << 14, 1.42), (1 << 15, 4.79), (1 << 17, 20.2)])
def test_rows_are_read_again_as_far_as_the_caches_lost_them(columns: int, milliseconds: float) -> None:
    """An A100 takes two passes for rows of 64 KB, four for those of 512 KB, and less than four for 128 KB."""
    with vgpu.attach("A100-80GB", values=False) as gpu:
        x = torch.empty(ROWS, columns, device="cuda")
        assert _seconds(lambda: F.log_softmax(x, -1), gpu) == pytest.approx(milliseconds / 1e3, rel=0.1)


def test_few_long_rows_stay_in_the_cache() -> None:
    with vgpu.attach("A100-80GB", values=False) as gpu:
        few, many = (torch.empty(rows, 1 << 17, device="cuda") for rows in (8, 8 * 64))
        assert _seconds(lambda: F.log_softmax(few, -1), gpu) < _seconds(lambda: F.log_softmax(many, -1), gpu) / 64


def test_the_l1_cache_holds_the_rows_of_a_layer_norm_on_a_card_with_little_l2() -> None:
    """Twelve rows of 4 KB: so a V100 reads them once, and rows of 16 KB twice."""
    with vgpu.attach("V100", values=False) as gpu:
        took = []
        for columns in (1 << 10, 1 << 12):
            x = torch.empty(1 << 26 >> columns.bit_length() - 1, columns, device="cuda")
            took.append(_seconds(lambda x=x: F.layer_norm(x, x.shape[-1:]), gpu))
    assert took[1] / took[0] == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(("width", "milliseconds"), [(768, 0.1703), (4096, 0.8634)])
def test_rows_were_selected_element_by_element(width: int, milliseconds: float) -> None:
    with vgpu.attach("A100-80GB", values=False) as gpu:
        table, rows = torch.empty(ROWS, width, device="cuda"), torch.empty(ROWS, dtype=torch.int64, device="cuda")
        with older_pytorch.before_2_8():
            assert _seconds(lambda: F.embedding(rows, table), gpu) == pytest.approx(milliseconds / 1e3, rel=0.05)
        assert _seconds(lambda: F.embedding(rows, table), gpu) < milliseconds / 1e3 / 2.5


def test_rows_that_are_no_whole_vectors_still_are() -> None:
    """Only along the first dimension, and only in steps of 16 bytes: PyTorch's `fast_gather_kernel_eligible`."""
    with vgpu.attach("A100-80GB", values=False) as gpu:
        whole, ragged = (torch.empty(4096, width, device="cuda") for width in (1024, 1023))
        rows = torch.empty(1023, dtype=torch.int64, device="cuda")
        whole_rows, ragged_rows = (_seconds(lambda t=t: t.index_select(0, rows), gpu) for t in (whole, ragged))
        columns = _seconds(lambda: whole.index_select(1, rows), gpu)
    assert ragged_rows > 1.5 * whole_rows
    assert columns > 5 * whole_rows


def test_one_block_adds_up_a_loss_of_classes() -> None:
    with vgpu.attach("A100-80GB", values=False) as gpu:
        x, classes = torch.empty(ROWS, 4096, device="cuda"), torch.empty(ROWS, dtype=torch.int64, device="cuda")
        with older_pytorch.before_2_8():
            by_32_threads = _seconds(lambda: F.nll_loss(x, classes), gpu)
        by_1024 = _seconds(lambda: F.nll_loss(x, classes), gpu)
        each_row = _seconds(lambda: F.nll_loss(x, classes, reduction="none"), gpu)
    assert by_32_threads == pytest.approx(0.53e-3, rel=0.1)
    assert each_row < by_1024 / 3 < by_32_threads / 30


def test_a_step_that_keeps_gradients_adds_to_them() -> None:
    """What the table calls "full": softmax, loss, zeros, the gradient, and the sum with the step's before."""
    with vgpu.attach("A100-80GB", values=False) as gpu, older_pytorch.before_2_8():
        x = torch.empty(ROWS, 1 << 14, device="cuda", requires_grad=True)
        classes = torch.empty(ROWS, dtype=torch.int64, device="cuda")
        first, second = (_seconds(lambda: F.cross_entropy(x, classes).backward(), gpu) for _ in range(2))
    assert second == pytest.approx(6.8e-3, rel=0.05)
    assert first < 0.75 * second


def test_what_is_read_again_reaches_a_device_of_its_own() -> None:
    work = KernelWork("softmax", 8, again=Again(16, 8, 4))
    fields = json.loads(json.dumps(list(work)))
    assert messages.work_of(fields) == work
    place = KernelWork._fields.index("again")
    for forged in ([16, 8], [16, 8, -4], [16, 8, 0.5], 16):
        with pytest.raises(messages.Malformed):
            messages.work_of([*fields[:place], forged, *fields[place + 1 :]])
