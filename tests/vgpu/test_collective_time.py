"""Virtual time of collectives: formulas, one clock for all ranks, stragglers, overlap.

Expectations: the bus-bandwidth formulas of NVIDIA/nccl-tests (doc/PERFORMANCE.md) and PyTorch's documentation of
asynchronous collectives.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DDP imports it: done here once instead of in every process
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vgpu
from vgpu.device import cost

from .jobs import Job


def _gpu() -> vgpu.VirtualGPU:
    gpu = vgpu.current()
    assert gpu is not None
    return gpu


def _collectives() -> list[vgpu.Kernel]:
    return [kernel for kernel in _gpu().timeline if "nccl" in kernel.name]


# ---- interconnects and formulas ----------------------------------------------------------------------------------


def test_every_interconnect_states_where_its_figures_come_from() -> None:
    for name in vgpu.list_interconnects():
        link = vgpu.get_interconnect(name)
        figures = {"bandwidth_bytes_per_second", "latency_seconds", "start_seconds", "switch_bytes_per_second"}
        assert set(link.sources) == {figure for figure in figures if getattr(link, figure)}
        assert link.name == name


@pytest.mark.parametrize(("gpu", "link"), [("T4", "pcie3"), ("A100-80GB", "nvlink3"), ("H200", "nvlink4")])
def test_each_gpu_has_its_usual_interconnect(gpu: str, link: str) -> None:
    assert vgpu.get_spec(gpu).interconnect == link


def test_an_unknown_interconnect_lists_the_known_ones() -> None:
    with pytest.raises(vgpu.SpecError, match="no interconnect named 'token-ring'; choose one of pcie3, pcie4"):
        vgpu.get_interconnect("token-ring")


def test_a_file_may_describe_its_own_interconnect(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[gpu.Mine]\nbase = "T4"\ninterconnect = "slow"\n'
        '[interconnect.slow]\ntitle = "a wire"\nbandwidth_bytes_per_second = 1e6\nlatency_seconds = 1e-3\n'
    )
    spec = vgpu.get_spec(path)
    assert vgpu.get_interconnect(spec.interconnect, spec).title == "a wire"
    assert vgpu.get_interconnect(path).bandwidth_bytes_per_second == 1e6
    with vgpu.attach(path, gpus=2) as gpu:
        assert gpu.machine.interconnect.name == "slow"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gpu.A]\nbase = 'T4'\ninterconnect = 'none'\n", "no interconnect named 'none'"),
        (
            "[gpu.A]\nbase = 'T4'\n[interconnect.x]\ntitle = 'y'\n",
            r"\[interconnect.x\] lacks bandwidth_bytes_per_second",
        ),
        ("[gpu.A]\nbase = 'T4'\n[interconnect]\nx = 3\n", "interconnects are tables"),
    ],
)
def test_a_bad_interconnect_gives_one_error_that_names_file_and_cause(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(vgpu.SpecError, match=expected) as caught:
        vgpu.get_spec(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "share", "hops"),
    [
        ("all_reduce", 2 * 7 / 8, 14), ("all_gather", 7 / 8, 7), ("reduce_scatter", 7 / 8, 7), ("broadcast", 1, 7),
        ("reduce", 1, 7), ("all_to_all", 7 / 8, 1), ("send", 1, 1),
    ],
)  # fmt: skip
def test_collectives_follow_the_formulas_of_nccl_tests(name: str, share: float, hops: int) -> None:
    link = vgpu.get_interconnect("nvlink3")
    wire, filling = share * 1e9 / link.bandwidth_bytes_per_second, hops * link.latency_seconds
    # Chunks that follow each other: the best number of them costs twice the geometric mean of the two.
    expected = link.start_seconds + filling + wire + 2 * math.sqrt(filling * wire)
    assert cost.collective_seconds(link, name, 1e9, 8) == pytest.approx(expected, rel=1e-12)
    assert cost.collective_seconds(link, name, 1e9, 1) == 0
    # Large ones approach the bus bandwidth, small ones the latency of the hops.
    huge = share * 1e13 / cost.collective_seconds(link, name, 1e13, 8)
    assert huge == pytest.approx(link.bandwidth_bytes_per_second, rel=0.01)
    assert cost.collective_seconds(link, name, 0, 8) == link.start_seconds + filling


def test_nvlinks_switch_adds_for_more_than_four_hopper_gpus() -> None:
    # NVLS, NVLink SHARP: stas00/ml-engineering, network/README.md, "SHARP" (8 H200: 366 GB/s without it).
    link = vgpu.get_interconnect("nvlink4")
    rates = {n: 2 * (n - 1) / n * 8e9 / cost.collective_seconds(link, "all_reduce", 8e9, n) for n in (4, 8)}
    assert rates[4] < link.bandwidth_bytes_per_second < rates[8] < link.switch_bytes_per_second
    alone = vgpu.get_interconnect("nvlink3")
    assert alone.switch_bytes_per_second == 0


# ---- kernels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["pcie3", "nvlink3", "ethernet-10g"])
def test_an_all_reduce_takes_the_time_of_its_interconnect(job: Job, link: str) -> None:
    def work(rank: int) -> Any:
        dist.all_reduce(torch.ones(1 << 20, device="cuda"))
        (kernel,) = _collectives()
        return kernel.name, kernel.bytes, kernel.seconds

    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    seconds = cost.collective_seconds(vgpu.get_interconnect(link), "all_reduce", 4 << 20, 2)
    assert job(work, interconnect=link) == [(name, 4 << 20, seconds)] * 2


def test_one_rank_launches_kernels_too(job: Job) -> None:
    def work(rank: int) -> Any:
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        return [kernel.name for kernel in _collectives()], tensor.tolist()

    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_Broadcast_RING_LL"]
    assert job(work, ranks=1) == [(names, [1.0] * 4)]


def test_all_ranks_see_a_collective_at_the_same_moments(job: Job) -> None:
    def work(rank: int) -> Any:
        x = torch.ones(512, 512, device="cuda")
        for _ in range(3):
            for _ in range(rank * 20 + 1):  # each rank is busy for another while
                x @ x
            dist.all_reduce(x)
        return [(kernel.start, kernel.end) for kernel in _collectives()]

    first, second = job(work)
    assert first == second
    assert len(first) == 3


def test_two_runs_give_the_same_times(job: Job) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank])
        for _ in range(3):
            model(torch.ones(32, 256, device="cuda")).sum().backward()
        dist.barrier()
        return _gpu().now(), [kernel.start for kernel in _gpu().timeline]

    assert job(work) == job(work)


def test_waiting_holds_the_stream_and_not_the_host(job: Job) -> None:
    def work(rank: int) -> Any:
        gpu, x = _gpu(), torch.ones(4 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        before = gpu.now()
        dist.all_reduce(x)
        launched = gpu.now() - before
        x + 1
        kernel = gpu.timeline[-1]
        return launched < 1e-4, kernel.name, kernel.start >= _collectives()[-1].end

    assert job(work) == [(True, "aten::add", True)] * 2


def test_an_asynchronous_collective_overlaps_with_computation(job: Job) -> None:
    def work(rank: int) -> Any:
        gpu = _gpu()
        x, y = torch.ones(4 << 20, device="cuda"), torch.ones(512, 512, device="cuda")
        y @ y  # the library handle
        handle = dist.all_reduce(x, async_op=True)
        y @ y
        during = gpu.timeline[-1]
        handle.wait()
        y @ y
        after, reduction = gpu.timeline[-1], _collectives()[-1]
        return during.end < reduction.end, after.start >= reduction.end

    assert job(work, interconnect="ethernet-10g") == [(True, True)] * 2


@pytest.mark.night
def test_the_slowest_of_equal_ranks_is_later_the_more_they_are(job: Job) -> None:
    def step(rank: int) -> float:
        gpu = _gpu()
        x = torch.ones(1024, 1024, device="cuda")
        x @ x
        torch.cuda.synchronize()
        dist.barrier()
        before = gpu.now()
        for _ in range(50):
            x @ x
        dist.all_reduce(x)
        torch.cuda.synchronize()
        return gpu.now() - before

    product = cost.matmul_seconds(vgpu.get_spec("T4"), 1024, 1024, 1024)
    for ranks in (2, 4):
        reduced = cost.collective_seconds(vgpu.get_interconnect("pcie3"), "all_reduce", 4 << 20, ranks)
        expected = 50 * product * (1 + cost.straggler_ratio(ranks)) + reduced
        seconds = job(step, ranks=ranks)
        assert len(set(seconds)) == 1
        assert seconds[0] == pytest.approx(expected, rel=2e-3)
    # The expected largest of so many normal numbers, by integrating (Blom's formula is within 5 %).
    for ranks, largest in ((2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)):
        assert cost.straggler_ratio(ranks) == pytest.approx(cost.STRAGGLER_RATIO * largest, rel=0.05)
    assert cost.straggler_ratio(1) == 0


def test_a_slow_rank_holds_up_the_others(job: Job) -> None:
    def step(rank: int, factor: float) -> float:
        gpu = _gpu()
        x = torch.ones(1024, 1024, device="cuda")
        if rank == 1:
            gpu.inject_slowdown(factor, name="aten::mm", count=100)
        x @ x
        torch.cuda.synchronize()
        dist.barrier()
        before = gpu.now()
        for _ in range(5):
            x @ x
        dist.all_reduce(x)
        torch.cuda.synchronize()
        return gpu.now() - before

    plain = job(lambda rank: step(rank, 1.0))
    slow = job(lambda rank: step(rank, 3.0))
    spec = vgpu.get_spec("T4")
    delay = 5 * 2 * cost.matmul_seconds(spec, 1024, 1024, 1024)
    delay *= 1 + cost.straggler_ratio(2)
    assert plain[0] == pytest.approx(plain[1], rel=1e-9)
    assert slow[0] == pytest.approx(slow[1], rel=1e-9)
    assert slow[0] - plain[0] == pytest.approx(delay, rel=1e-6)


def test_a_slowdown_of_the_collective_itself_is_shared(job: Job) -> None:
    def work(rank: int) -> Any:
        _gpu().inject_slowdown([10.0, 2.0][rank], name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        for _ in range(2):
            dist.all_reduce(torch.ones(1 << 20, device="cuda"))
        return [kernel.seconds for kernel in _collectives()]

    first, second = job(work)
    assert first == second
    assert first[0] == pytest.approx(10 * first[1])


def test_a_barrier_brings_the_hosts_together(job: Job) -> None:
    def work(rank: int) -> Any:
        dist.barrier(device_ids=[rank])
        time.sleep(float(rank))
        dist.barrier(device_ids=[rank])
        return _gpu().now()

    first, second = job(work)
    assert first == second > 1.0


def test_clocks_agree_from_the_start(job: Job) -> None:
    def join(rank: int, address: str) -> None:
        torch.cuda.set_device(rank)
        time.sleep(float(rank))
        dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)

    first, second = job(lambda rank: _gpu().now(), join=join)
    assert first == second >= 1.0


def test_gloo_holds_the_host_and_copies_gpu_tensors(job: Job) -> None:
    def work(rank: int) -> Any:
        gpu, x = _gpu(), torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        before = gpu.now()
        dist.all_reduce(x)
        names = [kernel.name for kernel in gpu.timeline[-2:]]
        return gpu.now() - before, names

    seconds = cost.collective_seconds(vgpu.get_interconnect("loopback"), "all_reduce", 4 << 20, 2)
    names = ["Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"]
    for held, kernel_names in job(work, backend="gloo"):
        assert held > seconds
        assert kernel_names == names


def test_a_message_carries_its_senders_time(job: Job) -> None:
    def work(rank: int) -> Any:
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        if rank == 0:
            time.sleep(2.0)
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        torch.cuda.synchronize()
        (kernel,) = _collectives()
        return kernel.name, kernel.start, kernel.seconds, _gpu().now()

    sender, receiver = job(work)
    seconds = cost.collective_seconds(vgpu.get_interconnect("pcie3"), "send", 4 << 20, 2)
    assert sender == receiver
    assert sender[:3] == ("ncclDevKernel_SendRecv", pytest.approx(2.25, rel=0.01), seconds)


# ---- training ----------------------------------------------------------------------------------------------------


def _step_seconds(job: Job, ranks: int, link: str, **options: Any) -> float:
    """Virtual time of one training step, the batch per rank being the same."""

    def work(rank: int) -> float:
        layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(6)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank], **options)
        x = torch.ones(512, 1024, device="cuda")

        def step() -> None:
            model(x).sum().backward()

        for _ in range(2):
            step()
        torch.cuda.synchronize()
        dist.barrier()
        before = _gpu().now()
        for _ in range(4):
            step()
        torch.cuda.synchronize()
        return (_gpu().now() - before) / 4

    seconds = job(work, ranks=ranks, interconnect=link, values=False)
    assert len(set(seconds)) == 1
    return float(seconds[0])


@pytest.mark.night
def test_scaling_efficiency_depends_on_the_interconnect(job: Job) -> None:
    alone = _step_seconds(job, 1, "pcie3")
    efficiency = {link: alone / _step_seconds(job, 4, link) for link in ("nvlink4", "pcie3", "ethernet-10g")}
    assert 0.94 < efficiency["nvlink4"] < 1 - cost.straggler_ratio(4) / 2  # equal ranks are never quite equal
    assert efficiency["nvlink4"] > efficiency["pcie3"] > efficiency["ethernet-10g"]


@pytest.mark.night
def test_small_buckets_overlap_with_backward(job: Job) -> None:
    single = _step_seconds(job, 2, "pcie3", bucket_cap_mb=1000)
    many = _step_seconds(job, 2, "pcie3", bucket_cap_mb=4)
    assert many < single
