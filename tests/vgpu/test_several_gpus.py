"""Several virtual GPUs in one process: devices, peer copies, memory, generators, streams, autograd.

Expectations come from PyTorch's CUDA semantics notes and its source; the texts are PyTorch's own.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.machine import Machine
from vgpu.runtime.thread_state import THREAD

MIB = 1 << 20
LINK = vgpu.Interconnect(
    name="test", title="a link for tests", bandwidth_bytes_per_second=1e9, latency_seconds=1e-3, sources={}
)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Four T4s with real values, joined by a slow link."""
    with vgpu.attach("T4", gpus=4, interconnect=LINK) as gpu:
        yield gpu.machine


@pytest.fixture
def shapeless() -> Iterator[Machine]:
    """Two A100s with shapes only."""
    with vgpu.attach("A100-80GB", gpus=2, values=False) as gpu:
        yield gpu.machine


def two_layers() -> nn.ModuleList:
    """The first layer on cuda:0, the second on cuda:1."""
    return nn.ModuleList([nn.Linear(4, 8).to("cuda:0"), nn.Linear(8, 2).to("cuda:1")])


def through(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layers[1](torch.relu(layers[0](x)).to("cuda:1"))
    return result


class _OnItsDevice(torch.autograd.Function):
    """Its backward adds what it makes on the current GPU."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] + torch.ones(2, device="cuda")


# ---- which device ----------------------------------------------------------------------------------------------------


def test_attach_yields_the_first_of_the_machines_gpus(machine: Machine) -> None:
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 3]
    assert [str(gpu.device) for gpu in machine.gpus] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert vgpu.current() is machine.gpus[0]
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 4


def test_a_machine_has_at_least_one_gpu() -> None:
    for number in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="at least one GPU"), vgpu.attach("T4", gpus=number):  # type: ignore[arg-type]
            pass
    assert vgpu.current() is None


def test_cuda_without_an_index_is_the_current_device(machine: Machine) -> None:
    torch.cuda.set_device("cuda:2")
    made = (
        torch.zeros(1, device="cuda"), torch.tensor([1.0], device="cuda"), torch.ones(1).cuda(),
        torch.ones(1).to("cuda"), torch.arange(2, device=torch.device("cuda")), nn.Linear(1, 1).cuda().weight,
    )  # fmt: skip
    assert {str(tensor.device) for tensor in made} == {"cuda:2"}
    assert vgpu.current() is machine.gpus[2]


def test_an_index_an_int_and_a_device_object_name_a_gpu(machine: Machine) -> None:
    assert torch.zeros(1, device="cuda:3").device == torch.device("cuda", 3)
    assert torch.zeros(1, device=1).get_device() == 1
    assert torch.ones(1).cuda(2).device.index == 2
    assert torch.ones(1).to(3).device.index == 3
    assert torch.ones(1).to(torch.device("cuda", 1)).type() == "torch.cuda.FloatTensor"


@pytest.mark.parametrize("device", [0, 1, "cuda:3", torch.device("cuda", 2)])
def test_set_device_and_the_context_take_every_form(machine: Machine, device: object) -> None:
    index = device if isinstance(device, int) else torch.device(device).index  # type: ignore[call-overload]
    with torch.cuda.device(device):
        assert torch.cuda.current_device() == index
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(device)  # type: ignore[arg-type]
    assert torch.cuda.current_device() == torch.accelerator.current_device_index() == index


def test_set_device_wants_an_index_and_ignores_negative_ones(machine: Machine) -> None:
    with pytest.raises(ValueError, match=r"Expected a torch\.device with a specified index"):
        torch.cuda.set_device("cuda")
    torch.cuda.set_device(-1)
    with torch.cuda.device(-1), torch.cuda.device(None):
        assert torch.cuda.current_device() == 0


def test_contexts_nest_and_end_after_an_exception(machine: Machine) -> None:
    with torch.cuda.device(1):
        with torch.accelerator.device_index(3):
            assert torch.cuda.current_device() == 3
        assert torch.cuda.current_device() == 1
        with pytest.raises(RuntimeError), torch.cuda.device(2):
            torch.ones(2, device="cuda") + torch.ones(2)
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


def test_device_of_follows_a_tensor_and_ignores_the_cpu(machine: Machine) -> None:
    with torch.cuda.device_of(torch.zeros(1, device="cuda:2")):
        assert torch.cuda.current_device() == 2
        with torch.cuda.device_of(torch.zeros(1)):
            assert torch.cuda.current_device() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(1, device="cuda:4"),
        lambda: torch.zeros(1).to("cuda:4"),
        lambda: torch.zeros(1).cuda(4),
        lambda: torch.cuda.set_device(4),
        lambda: torch.cuda.synchronize(4),
        lambda: torch.cuda.mem_get_info(4),
        lambda: torch.accelerator.set_device_index(4),
        lambda: torch.cuda.Stream(device=4),
        lambda: torch.Generator(device="cuda:4"),
    ],
)
def test_a_gpu_that_is_not_there_is_cudas_error(machine: Machine, call: object) -> None:
    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal"):
        call()  # type: ignore[operator]


def test_python_level_queries_check_the_index_themselves(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(4)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.cuda.can_device_access_peer(0, 4)
    with pytest.raises(RuntimeError, match=r"Invalid device argument 4: did you call init\?"):
        torch.cuda.memory_allocated(4)


def test_the_device_shows_in_print_and_errors(machine: Machine) -> None:
    x = torch.ones(2, device="cuda:1")
    assert repr(x) == "tensor([1., 1.], device='cuda:1')"
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        x.numpy()
    with torch.cuda.device(1):  # PyTorch names the device unless it is CPU; CUDA's current one is named too
        assert "device='cuda:1'" in repr(x)


def test_default_devices_may_be_any_gpu(machine: Machine) -> None:
    with torch.device("cuda:1"):
        assert {str(t.device) for t in (torch.zeros(1), torch.tensor(1.0), nn.Linear(1, 1).weight)} == {"cuda:1"}
    torch.set_default_device("cuda:3")
    assert torch.get_default_device() == torch.zeros(1).device == torch.device("cuda", 3)
    torch.set_default_device("cuda")
    with torch.cuda.device(2):
        assert torch.zeros(1).device.index == torch.get_default_device().index == 2
    torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_new_tensors_stay_beside_their_model(machine: Machine) -> None:
    x = torch.ones(2, device="cuda:2")
    made = (torch.zeros_like(x), x.new_ones(3), x.new_tensor([1.0]), x.clone(), x + 1, x[0], x.double(), x.detach())
    assert {str(tensor.device) for tensor in made} == {"cuda:2"}
    assert torch.zeros_like(x, device="cuda:1").device.index == 1
    assert x.type("torch.cuda.DoubleTensor").device.index == 2
    assert torch.ones(1).to(x).device == torch.ones(1).type_as(x).device == x.device


def test_the_old_tensor_types_make_tensors_on_the_current_gpu(machine: Machine) -> None:
    with torch.cuda.device(2):
        empty, filled = torch.cuda.LongTensor(2, 3), torch.cuda.FloatTensor([1, 2])
    assert (empty.shape, empty.dtype, empty.get_device()) == ((2, 3), torch.int64, 2)
    assert (filled.tolist(), filled.type()) == ([1.0, 2.0], "torch.cuda.FloatTensor")
    assert isinstance(filled, torch.cuda.FloatTensor)
    assert not isinstance(filled.cpu(), torch.cuda.FloatTensor)
    assert torch.ones(1).type(torch.cuda.HalfTensor).dtype == torch.float16


def test_a_new_thread_begins_on_device_0(machine: Machine) -> None:
    torch.cuda.set_device(2)
    devices: list[object] = []

    def work() -> None:
        devices.append(torch.cuda.current_device())
        torch.cuda.set_device(3)
        devices.append(torch.ones(1, device="cuda").get_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (devices, torch.cuda.current_device()) == ([0, 3], 2)


def test_detaching_forgets_the_current_device() -> None:
    with vgpu.attach("T4", gpus=2):
        torch.cuda.set_device(1)
        torch.cuda.set_stream(torch.cuda.Stream())
    assert (THREAD.device, THREAD.streams, vgpu.current()) == (0, {}, None)
    with vgpu.attach("T4") as gpu:
        assert (torch.cuda.current_device(), gpu.stream) == (0, 0)


# ---- mixing devices --------------------------------------------------------------------------------------------------


def test_an_operation_on_two_gpus_is_refused(machine: Machine) -> None:
    a, b = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    text = "found at least two devices, cuda:{} and cuda:{}!"
    for call, devices in (
        (lambda: a + b, (0, 1)),
        (lambda: b.mul_(a), (1, 0)),
        (lambda: torch.where(a > 0, a, b), (0, 1)),
    ):
        with pytest.raises(RuntimeError, match=text.format(*devices)):
            call()
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:1 and cuda:0!"):
        torch.add(a, a, out=b)
    with pytest.raises(RuntimeError, match=r"other is on cuda:1, different .* on cuda:0 .* wrapper_CUDA__equal"):
        torch.equal(a, b)


def test_a_product_names_the_argument(machine: Machine) -> None:
    layer, x = nn.Linear(2, 2, device="cuda:1"), torch.ones(1, 2, device="cuda:0")
    with pytest.raises(RuntimeError, match=r"got mat1 is on cuda:0, different from other tensors on cuda:1"):
        layer(x)
    with pytest.raises(RuntimeError, match=r"got tensors is on cuda:1, different from other tensors on cuda:0"):
        torch.cat([x, x.to("cuda:1")])


def test_only_a_cpu_scalar_may_join_in(machine: Machine) -> None:
    x = torch.ones(2, device="cuda:1")
    assert (x * torch.tensor(3.0)).tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="cuda:1 and cuda:0"):
        x * torch.tensor(3.0, device="cuda:0")
    with pytest.raises(RuntimeError, match="cuda:1 and cpu"):
        torch.ones(2) * x  # the first GPU sets the common device (TensorIterator.cpp, compute_types)


def test_indices_come_from_the_host_or_the_same_gpu(machine: Machine) -> None:
    x = torch.arange(3.0, device="cuda:1")
    assert x[torch.tensor([2])].tolist() == x[torch.tensor([2], device="cuda:1")].tolist() == [2.0]
    with pytest.raises(RuntimeError, match=r"the same device as the indexed tensor \(cuda:1\)"):
        x[torch.tensor([2], device="cuda:0")]
    x[torch.tensor([0])] = torch.tensor(5.0, device="cuda:0")  # a 0-dimensional value is copied
    with pytest.raises(RuntimeError, match="cuda:1 and cuda:0"):
        x[torch.tensor([0, 1])] = torch.ones(2, device="cuda:0")
    x[1:] = torch.full((2,), 7.0, device="cuda:2")  # a slice is a copy_
    assert x.tolist() == [5.0, 7.0, 7.0]


def test_lists_may_span_gpus_position_by_position(machine: Machine) -> None:
    lists = [[torch.full((2,), 1.0 + index, device=f"cuda:{index % 2}") for index in range(4)] for _ in range(2)]
    summed = torch._foreach_add(lists[0], lists[1])
    assert [tensor[0].item() for tensor in summed] == [2.0, 4.0, 6.0, 8.0]
    assert [tensor.get_device() for tensor in summed] == [0, 1, 0, 1]
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        torch._foreach_add(lists[0][:1], lists[0][1:2])


# ---- copies between GPUs ---------------------------------------------------------------------------------------------


def test_a_peer_copy_keeps_both_queues_busy_and_the_host_free(machine: Machine) -> None:
    x = torch.ones(MIB, device="cuda:0")
    torch.zeros(1, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    begin = machine.clock.now
    y = x.to("cuda:1")
    assert machine.clock.now - begin < 1e-4
    seconds = 1e-3 + 4 * MIB / 1e9  # the link's latency and bandwidth
    for gpu in machine.gpus[:2]:
        last = gpu.timeline[-1]
        assert last.name.startswith("Memcpy PtoP")
        assert (last.seconds, last.bytes) == (pytest.approx(seconds), 4 * MIB)
    assert machine.gpus[0].timeline[-1].end == pytest.approx(machine.gpus[1].timeline[-1].end)
    assert not machine.gpus[2].timeline
    assert y.device.index == 1
    assert y.sum().item() == MIB


def test_a_peer_copy_waits_for_both_streams(machine: Machine) -> None:
    x, y = torch.ones(2, device="cuda:0"), torch.zeros(2, device="cuda:1")
    with torch.cuda.device(1):
        torch.cuda._sleep(int(machine.spec.clock_hertz))  # one second of work on the target
    y.copy_(x)
    busy, copied = machine.gpus[1].timeline[-2:]
    assert copied.start >= busy.end
    assert machine.gpus[0].timeline[-1].start >= busy.end


def test_copy_between_gpus_changes_dtype_at_the_source(machine: Machine) -> None:
    x = torch.full((1000,), 1.5, device="cuda:1")
    y = torch.empty(1000, dtype=torch.float16, device="cuda:3").copy_(x)
    z = x.to("cuda:0", torch.float16)
    assert (y.dtype, y.get_device(), z.dtype, z.get_device()) == (torch.float16, 3, torch.float16, 0)
    assert machine.gpus[0].timeline[-1].bytes == 2000


def test_moving_a_module_moves_its_bytes(machine: Machine) -> None:
    module = nn.Linear(1000, 1000, bias=False).to("cuda:0")
    weight = module.weight
    module.to("cuda:2")
    assert module.weight is weight
    assert [torch.cuda.memory_allocated(index) for index in range(4)] == [0, 0, rounded(4_000_000), 0]


def test_peers_can_reach_each_other(machine: Machine) -> None:
    assert torch.cuda.can_device_access_peer(0, 1)
    assert not torch.cuda.can_device_access_peer(1, 1)  # cudaDeviceCanAccessPeer of a device with itself


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_each_gpu_counts_its_own_memory(machine: Machine) -> None:
    kept = torch.ones(1000, device="cuda:1")
    torch.ones(5000, device="cuda:2")
    assert [torch.cuda.memory_allocated(index) for index in range(4)] == [0, rounded(4000), 0, 0]
    assert torch.cuda.max_memory_allocated("cuda:2") == rounded(20000)
    assert torch.cuda.memory_reserved(torch.device("cuda", 2)) == 2 * MIB
    torch.cuda.reset_peak_memory_stats(2)
    assert torch.cuda.max_memory_allocated(2) == 0
    assert torch.cuda.max_memory_allocated(1) == rounded(4000)
    torch.cuda.empty_cache()  # of every GPU (CUDACachingAllocator.cpp)
    assert [torch.cuda.memory_reserved(index) for index in range(4)] == [0, 2 * MIB, 0, 0]
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated() == rounded(4000)
    assert kept.sum().item() == 1000


def test_running_out_names_the_gpu_that_is_full(machine: Machine) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"GPU 2 has a total capacity of 14.74 GiB"):
        torch.empty(1 << 34, device="cuda:2")
    assert torch.ones(1, device="cuda:1").item() == 1


def test_a_memory_fraction_is_one_gpus(machine: Machine) -> None:
    torch.cuda.set_per_process_memory_fraction(0.001, 1)
    torch.empty(8 * MIB, device="cuda:0")
    with pytest.raises(torch.OutOfMemoryError, match=r"GPU 1 .* allowed"):
        torch.empty(8 * MIB, device="cuda:1")
    assert (torch.cuda.get_per_process_memory_fraction(1), torch.cuda.get_per_process_memory_fraction(0)) == (
        0.001,
        1.0,
    )


def test_mem_get_info_asks_the_named_gpu(machine: Machine) -> None:
    kept = torch.empty(25 * MIB, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.memory_reserved(1) >= kept.nbytes
    assert torch.cuda.mem_get_info(0)[0] - torch.cuda.mem_get_info(1)[0] == torch.cuda.memory_reserved(1)


def test_the_context_is_created_on_first_use_of_each_gpu(machine: Machine) -> None:
    torch.zeros(1, device="cuda:0")
    before = machine.clock.now
    torch.zeros(1, device="cuda:1")
    assert machine.clock.now - before >= machine.spec.context_seconds
    assert [gpu.started for gpu in machine.gpus] == [True, True, False, False]


def test_cublas_keeps_a_handle_and_workspace_on_each_gpu(machine: Machine) -> None:
    a, b = torch.ones(2, 2, device="cuda:0"), torch.ones(2, 2, device="cuda:1")
    a @ a
    before = machine.clock.now
    b @ b
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(3)]
    assert peaks[0] == peaks[1] > machine.spec.blas_workspace_bytes > peaks[2]
    # The library is loaded once per process.
    assert machine.clock.now - before < machine.spec.blas_handle_seconds


# ---- random numbers --------------------------------------------------------------------------------------------------


def test_each_gpu_has_its_own_generator(machine: Machine) -> None:
    torch.cuda.manual_seed_all(7)
    draws = [torch.rand(3, device=f"cuda:{index}").tolist() for index in range(4)]
    assert draws[0] == draws[1] == draws[3]
    with torch.cuda.device(1):
        torch.cuda.manual_seed(7)
    assert torch.rand(3, device="cuda:1").tolist() == draws[1]
    assert torch.rand(3, device="cuda:0").tolist() != draws[0]


def test_rng_states_are_saved_and_restored_by_device(machine: Machine) -> None:
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 4
    first = torch.rand(2, device="cuda:2").tolist()
    torch.cuda.set_rng_state(states[2], 2)
    assert torch.rand(2, device="cuda:2").tolist() == first
    with torch.random.fork_rng(devices=["cuda:2"]):
        inside = torch.rand(2, device="cuda:2").tolist()
        other = torch.cuda.get_rng_state(1)
        torch.rand(2, device="cuda:1")
    assert torch.rand(2, device="cuda:2").tolist() == inside
    assert not torch.equal(torch.cuda.get_rng_state(1), other)


def test_a_generator_has_a_device_and_must_be_of_its_kind(machine: Machine) -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(3)
    assert generator.device == generator.clone_state().device == torch.device("cuda", 1)
    for twin in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert twin.device == generator.device
        assert torch.equal(twin.get_state(), generator.get_state())
    with torch.cuda.device(2):
        assert torch.Generator(device="cuda").device.index == 2
    assert torch.randn(2, device="cuda:1", generator=generator).get_device() == 1
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(2, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.zeros(2, device="cuda:1").normal_(generator=torch.Generator())


# ---- streams, events, waiting ----------------------------------------------------------------------------------------


def test_a_stream_context_switches_the_device_too(machine: Machine) -> None:
    stream = torch.cuda.Stream(device="cuda:1")
    assert stream.device == torch.device("cuda", 1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == torch.cuda.current_stream(1) == stream
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
        torch.ones(2, device="cuda") + 1
    assert machine.gpus[1].timeline[-1].stream == stream.stream_id
    assert (torch.cuda.current_device(), torch.cuda.current_stream(1)) == (0, torch.cuda.default_stream(1))
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_device() == 1


def test_default_streams_of_two_gpus_differ_and_overlap(machine: Machine) -> None:
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)
    for index in (0, 1):
        with torch.cuda.device(index):
            torch.cuda.init()
    for index in (0, 1):
        with torch.cuda.device(index):
            torch.cuda._sleep(int(machine.spec.clock_hertz))
    first, second = (gpu.timeline[-1] for gpu in machine.gpus[:2])
    assert second.start < first.start + 0.01


def test_synchronize_waits_for_one_gpu_only(machine: Machine) -> None:
    with torch.cuda.device(1):
        torch.cuda._sleep(int(machine.spec.clock_hertz))
    torch.cuda.synchronize(0)
    assert machine.clock.now < machine.gpus[1].timeline[-1].end
    torch.cuda.synchronize("cuda:1")
    assert machine.clock.now >= machine.gpus[1].timeline[-1].end


def test_an_event_belongs_to_the_gpu_that_recorded_it(machine: Machine) -> None:
    event, other = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert event.device is None
    event.record()
    assert event.device == torch.device("cuda", 0)
    stream = torch.cuda.Stream(device=1)
    with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
        event.record(stream)
    other.record(stream)
    torch.cuda.synchronize()
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        event.elapsed_time(other)


def test_a_stream_of_one_gpu_can_wait_for_an_event_of_another(machine: Machine) -> None:
    with torch.cuda.device(1):
        torch.cuda._sleep(int(machine.spec.clock_hertz))
        done = torch.cuda.Event()
        done.record()
    torch.cuda.current_stream(0).wait_event(done)
    torch.ones(1, device="cuda:0")
    assert machine.gpus[0].timeline[-1].start >= machine.gpus[1].timeline[-1].end


# ---- saving, copying -------------------------------------------------------------------------------------------------


def _saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_saved_tensor_comes_back_to_its_gpu(machine: Machine) -> None:
    file = _saved({"a": torch.arange(3.0, device="cuda:1"), "b": torch.ones(1)})
    loaded = torch.load(file)
    assert (loaded["a"].device, loaded["b"].device) == (torch.device("cuda", 1), torch.device("cpu"))
    assert loaded["a"].tolist() == [0.0, 1.0, 2.0]
    assert pickle.loads(pickle.dumps(torch.ones(1, device="cuda:3"))).get_device() == 3


@pytest.mark.parametrize("where", [{"cuda:1": "cuda:0"}, "cuda:0", torch.device("cuda", 0), lambda s, _: s.cuda(0)])
def test_map_location_moves_between_gpus(machine: Machine, where: object) -> None:
    file = _saved(torch.ones(1000, device="cuda:1"))
    loaded = torch.load(file, map_location=where)  # type: ignore[arg-type]
    assert loaded.get_device() == 0
    assert torch.cuda.memory_allocated(0) == rounded(4000)


def test_loading_to_a_gpu_that_is_not_there_is_pytorchs_error() -> None:
    with vgpu.attach("T4", gpus=2):
        file = _saved(torch.ones(2, device="cuda:1"))
    with vgpu.attach("T4"):
        with pytest.raises(RuntimeError, match=r"on CUDA device 1 but torch.cuda.device_count\(\) is 1. Please use"):
            torch.load(file)
        file.seek(0)
        assert torch.load(file, map_location="cpu").tolist() == [1.0, 1.0]


def test_deepcopy_and_storages_keep_their_gpu(machine: Machine) -> None:
    x = torch.ones(1000, device="cuda:2")
    twin = copy.deepcopy(x)
    assert twin.device == x.device
    assert torch.cuda.memory_allocated(2) == 2 * rounded(4000)
    storage = x.untyped_storage()
    assert (storage.device, storage.is_cuda, storage.get_device()) == (x.device, True, 2)
    assert (storage.cuda(1).device.index, storage.cpu().device.type) == (1, "cpu")


@pytest.mark.parametrize(
    "copied",
    [lambda x: x.cpu(), lambda x: x.untyped_storage().cpu(), pickle.dumps, lambda x: torch.save(x, io.BytesIO())],
)
def test_no_copy_to_the_host_is_without_a_transfer(machine: Machine, copied: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(1000, device="cuda:2")
    before = len(machine.gpus[2].timeline)
    copied(x)
    assert [kernel.bytes for kernel in machine.gpus[2].timeline[before:] if "DtoH" in kernel.name] == [4000]
    for call in (lambda: x.apply_(abs), lambda: torch.ones(1000).map_(x, lambda a, b: b)):
        with pytest.raises(TypeError, match="only implemented on CPU tensors"):
            call()


# ---- training on two GPUs --------------------------------------------------------------------------------------------


def test_a_functions_backward_has_the_gpu_of_its_gradients_as_the_current_one(machine: Machine) -> None:
    x = torch.zeros(2, device="cuda:2", requires_grad=True)
    _OnItsDevice.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert torch.cuda.current_device() == 0


def test_backward_goes_back_across_gpus(machine: Machine) -> None:
    layers = two_layers()
    x = torch.ones(3, 4, device="cuda:0", requires_grad=True)
    through(layers, x).sum().backward()
    assert [str(p.grad.device) for p in layers.parameters()] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert x.grad is not None
    assert x.grad.get_device() == 0
    plain = copy.deepcopy(layers).cpu()
    y = plain[1](torch.relu(plain[0](torch.ones(3, 4))))
    for p in plain.parameters():
        p.grad = None
    y.sum().backward()
    for ours, theirs in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_the_gradient_of_a_copy_comes_home(machine: Machine) -> None:
    w = torch.ones(2, device="cuda:0", requires_grad=True)
    torch.zeros(2, device="cuda:1").copy_(w).sum().backward()
    assert w.grad is not None
    assert (w.grad.get_device(), w.grad.tolist()) == (0, [1.0, 1.0])
    target = torch.zeros(2, device="cuda:1")
    target[:1] = w[:1]
    (2 * target).sum().backward()
    assert (w.grad.get_device(), w.grad.tolist()) == (0, [3.0, 1.0])
    scale = torch.tensor(3.0, requires_grad=True)
    (w.detach() * scale).sum().backward()
    assert scale.grad is not None
    assert (str(scale.grad.device), scale.grad.item()) == ("cpu", 2.0)
    put = torch.zeros(3, device="cuda:1", requires_grad=True).clone()
    put[torch.tensor([0, 2])] = scale
    put.sum().backward()
    assert (str(scale.grad.device), scale.grad.item()) == ("cpu", 4.0)


def test_a_gradient_is_assigned_on_its_own_device_only(machine: Machine) -> None:
    w = nn.Parameter(torch.ones(2, device="cuda:1"))
    with pytest.raises(
        RuntimeError, match="located on device with index '0' to a tensor located on device with index '1'"
    ):
        w.grad = torch.ones(2, device="cuda:0")
    with pytest.raises(RuntimeError, match="gradient with device type 'cpu' to a tensor with device type 'cuda'"):
        w.grad = torch.ones(2)
    w.grad = torch.ones(2, device="cuda:1")


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_an_optimizer_steps_parameters_on_two_gpus(machine: Machine, options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    layers = two_layers()
    plain = copy.deepcopy(layers).cpu()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1, **options)  # type: ignore[arg-type]
    through(layers, torch.ones(3, 4, device="cuda:0")).sum().backward()
    norm = nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
    optimizer.step()
    state = [optimizer.state[p]["exp_avg"].get_device() for p in layers.parameters()]
    assert (norm.get_device(), state) == (0, [0, 0, 1, 1])
    reference = torch.optim.AdamW(plain.parameters(), lr=0.1)
    plain[1](torch.relu(plain[0](torch.ones(3, 4)))).sum().backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    reference.step()
    for ours, theirs in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_mixed_precision_scales_gradients_on_two_gpus(machine: Machine) -> None:
    layers = two_layers()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    with torch.autocast("cuda"):
        y = through(layers, torch.ones(3, 4, device="cuda:0"))
    assert y.dtype == torch.float16
    scaler.scale(y.float().sum()).backward()
    layers[1].weight.grad[0, 0] = torch.inf
    before = layers[0].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, layers[0].weight)
    assert scaler.get_scale() == 32.0


def test_data_parallel_splits_the_batch_over_two_gpus(machine: Machine) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    plain = copy.deepcopy(module)
    model = nn.DataParallel(module.cuda(), device_ids=[0, 1])
    calls: list[tuple[int, int]] = []
    module[0].register_forward_hook(lambda m, i, o: calls.append((o.get_device(), len(o))))
    x = torch.randn(8, 6)
    y = model(x.cuda())
    assert (sorted(calls), y.device) == ([(0, 4), (1, 4)], torch.device("cuda", 0))
    y.pow(2).sum().backward()
    plain(x).pow(2).sum().backward()
    torch.testing.assert_close(y.detach().cpu(), plain(x).detach())
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert ours.grad.get_device() == 0
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_data_parallel_uses_every_gpu_and_takes_batches_of_the_host(machine: Machine) -> None:
    model = nn.DataParallel(nn.Linear(2, 2).cuda())
    assert model.device_ids == [0, 1, 2, 3]
    with torch.no_grad():
        assert model(torch.ones(8, 2)).shape == (8, 2)
    assert all(gpu.timeline for gpu in machine.gpus)
    misplaced = nn.DataParallel(nn.Linear(2, 2).to("cuda:1"), device_ids=[0, 1])
    with pytest.raises(
        RuntimeError, match=r"on device cuda:0 \(device_ids\[0\]\) but found one of them on device: cuda:1"
    ):
        misplaced(torch.ones(8, 2))


def test_pinned_batches_go_to_any_gpu_without_waiting(machine: Machine) -> None:
    x = torch.ones(MIB).pin_memory()
    torch.cuda.synchronize(3)
    before = machine.clock.now
    y = x.to("cuda:3", non_blocking=True)
    assert machine.clock.now - before < machine.gpus[3].timeline[-1].seconds
    assert (y.get_device(), machine.gpus[3].timeline[-1].name) == (3, "Memcpy HtoD (Pinned -> Device)")


# ---- instruments -----------------------------------------------------------------------------------------------------


def test_utilization_is_each_gpus_own(machine: Machine) -> None:
    with torch.cuda.device(2):
        torch.cuda._sleep(int(2 * machine.spec.clock_hertz))
    torch.cuda.synchronize(2)
    assert machine.gpus[2].utilization > 0.8
    assert machine.gpus[0].utilization == 0.0
    pytest.importorskip("pynvml")
    assert (torch.cuda.utilization(2), torch.cuda.utilization(0)) == (100, 0)
    assert torch.cuda.temperature(2) > torch.cuda.temperature(0)
    assert torch.cuda.power_draw(2) > torch.cuda.power_draw(1)


def test_nvml_has_a_handle_per_gpu(machine: Machine) -> None:
    pynvml = pytest.importorskip("pynvml")
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:1")
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == [0, 1, 2, 3]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    assert len(set(uuids)) == len({pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles}) == 4
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuids[3])) == 3
    used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
    assert used[1] >= len(kept)
    assert max(used[0], used[2], used[3]) < len(kept) + machine.spec.context_bytes
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetHandleByIndex(4)
    assert str(torch.cuda.get_device_properties(2).uuid) in uuids[2]


# ---- shapes only -----------------------------------------------------------------------------------------------------


def test_shapes_only_trains_across_two_gpus(shapeless: Machine) -> None:
    layers = nn.ModuleList([nn.Linear(4096, 4096, device="cuda:0"), nn.Linear(4096, 4096, device="cuda:1")])
    optimizer = torch.optim.Adam(layers.parameters())
    out = layers[1](layers[0](torch.empty(64, 4096, device="cuda:0")).to("cuda:1"))
    out.sum().backward()
    optimizer.step()
    assert [p.grad.get_device() for p in layers.parameters()] == [0, 0, 1, 1]
    assert torch.cuda.memory_allocated(0) > 4 * 4 * 4096**2  # weight, gradient, two moments
    assert torch.cuda.memory_allocated(1) > 4 * 4 * 4096**2
    assert repr(out.detach()) == "tensor(..., device='cuda:1', size=(64, 4096))"
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        layers[0].bias + layers[1].bias


def test_shapes_only_copies_and_indexes_between_gpus(shapeless: Machine) -> None:
    x, y = torch.empty(8, 8, device="cuda:0"), torch.empty(8, 8, device="cuda:1")
    y.copy_(x)
    assert shapeless.gpus[1].timeline[-1].name.startswith("Memcpy PtoP")
    assert x[torch.tensor([0, 1])].shape == (2, 8)
    assert torch.cat([x.to("cuda:1"), y]).get_device() == 1
    with pytest.raises(vgpu.Unsupported, match="depend on values"):
        x[x > 0]
