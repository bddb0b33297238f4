"""Bytes on the GPU against bytes counted by hand; rounding from CUDACachingAllocator.cpp, texts from the same file."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.memory import workspaces

# What cuBLAS keeps (tests/vgpu/test_workspaces.py): from PyTorch 2.15 on nothing; before, a workspace per thread and,
# in the thread that adds a bias, one for cuBLASLt.
KEPT = workspaces.torch_version() < (2, 15)
FORWARD = KEPT * (2 * 4096 * 1024 + 8 * 16 * 1024 + (1 << 20))
BACKWARD = KEPT * (2 * 4096 * 1024 + 8 * 16 * 1024)
GIB = 1 << 30


def test_every_stage_of_a_training_step_equals_the_hand_count(gpu: vgpu.VirtualGPU) -> None:
    model = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 10))
    parameters = [4 * 100 * 300, 4 * 300, 4 * 300 * 10, 4 * 10]
    held = torch.cuda.memory_allocated
    assert held() == 0
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    assert held() == rounded(*parameters)
    x, y = torch.randn(64, 100, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    batch = rounded(4 * 64 * 100, 8 * 64)
    assert held() == rounded(*parameters) + batch
    out = model(x)
    # Kept for backward: ReLU's result. The first layer's own output is gone; the second's is `out`.
    activations = rounded(4 * 64 * 300, 4 * 64 * 10)
    assert held() == rounded(*parameters) + batch + activations + FORWARD
    loss = nn.functional.cross_entropy(out, y)
    # The loss, the log-probabilities, and nll_loss's total weight.
    in_loss = rounded(4, 4 * 64 * 10, 4)
    assert held() == rounded(*parameters) + batch + activations + in_loss + FORWARD
    loss.backward()
    # What only the graph held is gone; gradients came; autograd's thread has a cuBLAS handle of its own.
    left = rounded(4 * 64 * 10, 4)
    assert held() == 2 * rounded(*parameters) + batch + left + FORWARD + BACKWARD
    optimizer.step()
    # Two moments per parameter; Adam keeps its step count on the CPU.
    assert held() == 4 * rounded(*parameters) + batch + left + FORWARD + BACKWARD
    optimizer.zero_grad()
    assert held() == 3 * rounded(*parameters) + batch + left + FORWARD + BACKWARD
    del out, loss
    assert held() == 3 * rounded(*parameters) + batch + FORWARD + BACKWARD


def test_half_the_bytes_in_half_precision(gpu: vgpu.VirtualGPU) -> None:
    _model = nn.Linear(1000, 1000).to("cuda", torch.float16)
    assert torch.cuda.memory_allocated() == rounded(2 * 1000 * 1000, 2 * 1000)


def test_moving_a_module_in_a_lower_precision_never_holds_the_high_one(gpu: vgpu.VirtualGPU) -> None:
    nn.Linear(1000, 1000, bias=False).to("cuda", torch.float16)
    assert torch.cuda.max_memory_allocated() == rounded(2 * 1000 * 1000)


def test_the_peak_remembers_what_was_freed_until_it_is_reset(shapes: vgpu.VirtualGPU) -> None:
    x = torch.empty(1000, device="cuda")
    del x
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 4096)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_views_and_in_place_operations_allocate_nothing(shapes: vgpu.VirtualGPU) -> None:
    x = torch.zeros(1000, device="cuda")
    _y = x.view(10, 100)[2:].t()
    x.add_(1).mul_(2)
    assert torch.cuda.max_memory_allocated() == 4096


def test_a_view_keeps_the_whole_storage(shapes: vgpu.VirtualGPU) -> None:
    x = torch.zeros(1000, device="cuda")
    view = x[:1]
    del x
    assert torch.cuda.memory_allocated() == 4096
    del view
    assert torch.cuda.memory_allocated() == 0


def test_an_empty_tensor_occupies_nothing(shapes: vgpu.VirtualGPU) -> None:
    _x = torch.zeros(0, 5, device="cuda")
    assert torch.cuda.memory_allocated() == 0


def test_dropout_keeps_a_mask_of_one_byte_per_element(gpu: vgpu.VirtualGPU) -> None:  # Dropout.cpp, native_dropout
    x = torch.ones(1000, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    _y = torch.nn.functional.dropout(x, 0.5)
    assert torch.cuda.memory_allocated() - before == rounded(4000, 1000)


def test_fused_attention_never_makes_the_scores(shapes: vgpu.VirtualGPU) -> None:  # torch.nn.attention.sdpa_kernel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.ones(1, 8, 4096, 64, device="cuda", dtype=torch.float16)
    scores = 2 * 8 * 4096 * 4096
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert torch.cuda.max_memory_allocated() < scores
    with sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert torch.cuda.max_memory_allocated() > scores


def test_running_out_of_memory_says_what_cuda_says(gpu: vgpu.VirtualGPU) -> None:
    expected = (
        r"CUDA out of memory\. Tried to allocate 20\.00 GiB\. GPU 0 has a total capacity of 14\.74 GiB of which "
        r"14\.64 GiB is free\. Including non-PyTorch memory, this process has .* memory in use\. Of the allocated "
        r"memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated\."
    )
    with pytest.raises(torch.cuda.OutOfMemoryError, match=expected):
        torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")


def test_a_program_goes_on_after_running_out_of_memory(shapes: vgpu.VirtualGPU) -> None:
    def fill(count: int) -> int:
        kept = []
        try:
            for _ in range(count):
                kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return len(kept)
        return count

    assert fill(100) == 78
    assert torch.cuda.memory_allocated() == 0
    assert fill(70) == 70
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def test_running_out_of_memory_in_backward_can_be_caught() -> None:
    spec = dataclasses.replace(vgpu.get_spec("T4"), memory_bytes=400 << 20)
    with vgpu.attach(spec, values=False):
        x = torch.ones(30 << 20, device="cuda", requires_grad=True)
        y = (x * x).sum()
        with pytest.raises(torch.OutOfMemoryError):
            y.backward()
        del y
        assert torch.cuda.memory_allocated() == 120 << 20


def test_mem_get_info_counts_the_context_and_every_reserved_segment(shapes: vgpu.VirtualGPU) -> None:
    free, total = torch.cuda.mem_get_info()
    assert total == shapes.spec.memory_bytes
    assert free == total - shapes.spec.context_bytes
    _x = torch.empty(1, device="cuda")
    assert torch.cuda.mem_get_info()[0] == free - (2 << 20)


def test_the_memory_fraction_limits_the_process(shapes: vgpu.VirtualGPU) -> None:
    torch.cuda.set_per_process_memory_fraction(0.1)
    with pytest.raises(torch.OutOfMemoryError, match="allowed"):
        torch.empty(10 * GIB, dtype=torch.uint8, device="cuda")


def test_memory_summary_is_pytorchs_own_table(shapes: vgpu.VirtualGPU) -> None:
    _x = torch.empty(1000, device="cuda")
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()


def test_the_memory_timeline_ends_with_what_is_held(shapes: vgpu.VirtualGPU) -> None:
    x = torch.empty(1000, device="cuda")
    assert shapes.memory_timeline[-1].allocated_bytes == 4096
    del x
    assert [sample.allocated_bytes for sample in shapes.memory_timeline] == [4096, 0]


# ---- sizes that nobody has, and what is said of memory that ran out --------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: torch.empty(2**62, device="cuda"),
            RuntimeError,
            "Storage size calculation overflowed with sizes=[46",
        ),
        (lambda x: torch.ones(2**32, 2**32, device="cuda"), RuntimeError, "Storage size calculation overflowed"),
        (lambda x: x.new_empty(2**61), RuntimeError, "Storage size calculation overflowed"),
        (
            lambda x: torch.empty(2**61, dtype=torch.uint8, device="cuda"),
            None,
            "Tried to allocate more than 1EB memory.",
        ),
        (lambda x: torch.zeros(2**46, device="cuda"), None, "Tried to allocate 262144.00 GiB. GPU 0"),
        (lambda x: x.expand(2**46).contiguous(), None, "Tried to allocate 262144.00 GiB. GPU 0"),
        (lambda x: x.repeat(2**46), None, "Tried to allocate 262144.00 GiB. GPU 0"),
        (lambda x: x.expand(2**23, 1) + x.expand(1, 2**23), None, "Tried to allocate 262144.00 GiB. GPU 0"),
        (lambda x: x.new_empty(0).resize_(2**46), None, "Tried to allocate 262144.00 GiB. GPU 0"),
    ],
)  # EmptyTensor.cpp, CUDACachingAllocator.cpp; 2**46 numbers are more than a process can address
def test_sizes_that_no_card_has(gpu: vgpu.VirtualGPU, call: Any, error: Any, text: str) -> None:
    x = torch.ones(1, device="cuda")
    with pytest.raises(error or torch.OutOfMemoryError) as caught:
        call(x)
    assert text in str(caught.value)
    assert isinstance(caught.value, torch.OutOfMemoryError) == (error is None)


@pytest.mark.parametrize("expandable", [True, False])
def test_the_tip_is_not_given_to_who_has_taken_it(monkeypatch: pytest.MonkeyPatch, expandable: bool) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    with vgpu.attach("T4"), pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**40, device="cuda")
    assert "is reserved by PyTorch but unallocated." in str(caught.value)
    assert ("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in str(caught.value)) != expandable


def test_what_graphs_keep_is_named_when_memory_runs_out(gpu: vgpu.VirtualGPU) -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(8 << 20, device="cuda")
    with torch.cuda.graph(graph):
        total = (x + 1).sum()
    with pytest.raises(
        torch.OutOfMemoryError, match=r"with 3\d.\d\d MiB allocated in private pools \(e.g., CUDA Graphs\)"
    ):
        torch.empty(2**40, device="cuda")
    graph.replay()
    assert total.item() == 2 * (8 << 20)


def test_the_history_keeps_as_many_entries_as_asked_for(gpu: vgpu.VirtualGPU) -> None:
    def actions() -> list[str]:
        return [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]

    torch.cuda.memory._record_memory_history(max_entries=3)
    for _ in range(4):
        torch.zeros(1000, device="cuda")
    assert actions() == ["alloc", "free_requested", "free_completed"]
    torch.cuda.memory._record_memory_history(max_entries=100, context=None)  # goes on with what there is
    assert len(actions()) == 12
    torch.zeros(1000, device="cuda")
    assert torch.cuda.memory._snapshot()["device_traces"][0][-3]["frames"] == []
    torch.cuda.memory._record_memory_history(clear_history=True)
    assert actions() == []
    torch.cuda.memory._record_memory_history(enabled=None)
