"""What programs of the world met: each of these was wrong or missing once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.programs import program


@program("torch/csrc/utils/tensor_new.cpp: legacy_tensor_new")
def test_new_of_a_tensor_is_on_its_device(cuda: Gpu) -> None:
    x = torch.ones(3, device="cuda", dtype=torch.float64)
    for made, shape in ((x.new(2, 3), (2, 3)), (x.new([1, 2]), (2,)), (x.new(), (0,)), (x.new(torch.Size([4])), (4,))):
        assert (made.device.type, made.dtype, tuple(made.shape)) == ("cuda", torch.float64, shape)
    assert x.new([1, 2]).tolist() == [1.0, 2.0]
    assert torch.ones(1).new(2).device.type == "cpu"
    assert x.new([1, 2], device="cuda").device.type == "cuda"


@program("torch/csrc/autograd/python_torch_functions_manual.cpp: range, which no mode sees")
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_a_range_with_its_end_is_on_the_device(cuda: Gpu) -> None:
    for dtype in (None, torch.int64):
        values = torch.range(1, 3, device="cuda", dtype=dtype)
        assert (values.device.type, values.dtype, values.tolist()) == ("cuda", dtype or torch.float32, [1, 2, 3])
    assert torch.range(2, 0, -0.5, device="cuda").tolist() == [2.0, 1.5, 1.0, 0.5, 0.0]
    with pytest.raises(RuntimeError, match="inconsistent with step sign"):
        torch.range(3, 0, device="cuda")
    assert torch.range(0, 1).device.type == "cpu"


@program("aten/src/ATen/native/Onehot.cpp: nothing is read back with a number of classes")
def test_one_hot_with_a_number_of_classes_does_not_wait(cuda: Gpu) -> None:
    x = torch.tensor([[1, 0], [2, 2]], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoded = torch.nn.functional.one_hot(x, num_classes=4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert encoded.tolist() == [[[0, 1, 0, 0], [1, 0, 0, 0]], [[0, 0, 1, 0], [0, 0, 1, 0]]]
    assert encoded.dtype == torch.int64
    assert torch.nn.functional.one_hot(x).shape == (2, 2, 3)


@program("torch docs: torch.cuda.memory._record_memory_history")
def test_a_snapshot_has_the_frames_of_each_allocation(cuda: Gpu) -> None:
    torch.cuda.memory._record_memory_history()
    try:
        kept = torch.empty(1 << 20, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    (event,) = [
        entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc" and entry["size"] == kept.nbytes
    ]
    names = [frame["name"] for frame in event["frames"]]
    assert "test_a_snapshot_has_the_frames_of_each_allocation" in names


@program("torch/csrc/cuda/Module.cpp: _cuda_attach_out_of_memory_observer")
def test_an_observer_hears_of_an_allocation_that_fails(cuda: Gpu) -> None:
    heard: list[tuple[int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, size, *_: heard.append((device, size)))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    assert heard == [(0, 1 << 42)]


@program("aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: graphsafe_get_state, graphsafe_set_state")
def test_generators_share_a_state(cuda: Gpu) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    old, new = generator.graphsafe_get_state(), generator.clone_state()
    first = torch.rand(4, device="cuda", generator=generator)
    generator.graphsafe_set_state(new)
    assert torch.equal(torch.rand(4, device="cuda", generator=generator), first)
    generator.graphsafe_set_state(old)
    assert not torch.equal(torch.rand(4, device="cuda", generator=generator), first)


@program("torch docs: torch.cuda.Stream.priority_range, torch.cuda.Event")
def test_streams_and_events_tell_of_themselves(cuda: Gpu) -> None:
    least, greatest = torch.cuda.Stream.priority_range()
    assert (least, greatest < 0) == (0, True)
    event = torch.cuda.Event()
    event.record()
    assert event.event_id != 0


@program("torch/backends/cudnn/__init__.py: is_acceptable")
def test_cudnn_takes_floating_point_numbers(cuda: Gpu) -> None:
    assert torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))
    assert not torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda", dtype=torch.int32))
    assert not torch.backends.cudnn.is_acceptable(torch.ones(1))


@program("torch docs: torch.cuda.jiterator")
def test_a_kernel_may_be_defined_that_is_never_called(cuda: Gpu) -> None:
    from torch.cuda import jiterator

    assert callable(jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }"))


@program("Python docs: threading; a thread that looks at memory again and again (accelerate, transformers)")
def test_a_thread_that_polls_does_not_hold_up_the_program(cuda: Gpu) -> None:
    over, peaks = threading.Event(), []

    def poll() -> None:
        while not over.is_set():
            peaks.append(torch.cuda.memory_allocated())

    thread = threading.Thread(target=poll)
    thread.start()
    kept = [torch.ones(1 << 18, device="cuda") for _ in range(30)]
    torch.cuda.synchronize()
    over.set()
    thread.join()
    assert max(peaks) <= len(kept) * kept[0].nbytes + 2**21


@program("aten/src/ATen/native/cuda/Sorting.cpp, TensorInfo.cuh: MAX_TENSORINFO_DIMS")
def test_medians_along_a_dimension_take_24(cuda: Gpu) -> None:
    def of(dimensions: int) -> torch.Tensor:
        return torch.full([1] * (dimensions - 1) + [3], 2.0, device="cuda")

    def third(tensor: torch.Tensor, dim: int) -> Any:
        return torch.kthvalue(tensor, 3, dim)

    for function in (torch.median, torch.nanmedian, third):
        assert function(of(24), -1).values.item() == 2
        with pytest.raises(RuntimeError, match="CUDA Tensors cannot have more than 25 dimensions"):
            function(of(25), -1)
        with pytest.raises(RuntimeError, match="cannot operate on more than 25 dimensions"):
            function(of(26), -1)
    assert torch.median(of(40)).item() == 2
