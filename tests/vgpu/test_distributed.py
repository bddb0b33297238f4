"""`torch.distributed` on virtual GPUs: values, devices and errors; expectations from PyTorch's documentation of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import vgpu
from tests.by_day import one_in

from .jobs import Job


def _full(value: float, size: int = 4, **options: Any) -> torch.Tensor:
    return torch.full((size,), value, device="cuda", **options)


# ---- groups and backends ---------------------------------------------------------------------------------------------


def test_nccl_is_available_by_name(job: Job) -> None:
    def work(rank: int) -> Any:
        return dist.is_nccl_available(), dist.get_backend(), dist.get_world_size(), torch.cuda.device_count()

    assert job(work) == [(True, "nccl", 2, 2)] * 2


def test_afterwards_everything_is_put_back() -> None:
    names = ("ProcessGroup", "ProcessGroupNCCL", "_NCCL_AVAILABLE", "_new_process_group_helper", "new_group", "time")
    places = (dist.distributed_c10d, dist)
    before = [getattr(place, name, None) for place in places for name in (*names, "Reducer")]
    with vgpu.attach("T4"):
        assert before != [getattr(place, name, None) for place in places for name in (*names, "Reducer")]
    assert before == [getattr(place, name, None) for place in places for name in (*names, "Reducer")]


@pytest.mark.parametrize("backend", one_in(2, ["nccl", None, "cpu:gloo,cuda:nccl", "gloo"]))
def test_gpu_tensors_are_reduced_with_every_backend(job: Job, backend: str | None) -> None:
    def work(rank: int) -> Any:
        tensor = _full(rank + 1.0)
        dist.all_reduce(tensor)
        return tensor.tolist(), str(tensor.device)

    assert job(work, backend=backend) == [([3.0] * 4, "cuda:0"), ([3.0] * 4, "cuda:1")]


def test_nccl_refuses_cpu_tensors(job: Job) -> None:  # ProcessGroup.hpp, getBackend
    def work(rank: int) -> None:
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(2))

    job(work)


def test_a_mixed_group_serves_both_devices(job: Job) -> None:
    def work(rank: int) -> Any:
        on_cpu, on_gpu = torch.full((2,), rank + 1.0), _full(rank + 1.0, 2)
        dist.all_reduce(on_cpu)
        dist.all_reduce(on_gpu)
        names = [kernel.name for kernel in vgpu.current().timeline]  # type: ignore[union-attr]
        return on_cpu.tolist(), on_gpu.tolist(), sum("nccl" in name for name in names)

    assert job(work, backend="cpu:gloo,cuda:nccl") == [([3.0, 3.0], [3.0, 3.0], 1)] * 2


def test_two_ranks_on_one_gpu_are_an_nccl_error(job: Job) -> None:  # NCCL, init.cc
    def work(rank: int) -> None:
        torch.cuda.set_device(0)  # as when set_device(local_rank) is forgotten
        with pytest.raises(dist.DistBackendError, match=r"ncclInvalidUsage(.|\n)*Duplicate GPU detected"):
            dist.all_reduce(_full(1.0))

    job(work)


def test_ranks_on_other_machines_by_nccls_own_variable_have_other_gpus(job: Job) -> None:  # NCCL, misc/utils.cc
    def work(rank: int) -> Any:
        torch.cuda.set_device(0)
        os.environ["NCCL_HOSTID"] = f"machine{rank}"
        tensor = _full(1.0)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert job(work) == [[2.0] * 4] * 2


def test_each_rank_may_see_one_gpu_of_its_own(job: Job) -> None:  # CUDA_VISIBLE_DEVICES=rank
    def join(rank: int, address: str) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)

    def work(rank: int) -> Any:
        tensor = _full(1.0)
        dist.all_reduce(tensor)
        return tensor.tolist(), torch.cuda.device_count()

    assert job(work, join=join) == [([2.0] * 4, 1)] * 2


def test_a_missing_rank_ends_in_a_timeout(job: Job) -> None:  # the watchdog of ProcessGroupNCCL
    def work(rank: int) -> None:
        dist.all_reduce(_full(1.0))
        if rank == 1:
            _hold_real_seconds(8.0)
            return
        with pytest.raises(dist.DistBackendError, match="timeout"):
            dist.all_reduce(_full(1.0))

    job(work, timeout_real_seconds=5.0)


def test_a_rank_that_left_is_an_error(job: Job) -> None:
    def work(rank: int) -> None:
        dist.all_reduce(_full(1.0))
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match="remote process exited"):
                dist.all_reduce(_full(1.0))

    job(work)


def _hold_real_seconds(seconds: float) -> None:
    ours, _theirs = multiprocessing.Pipe()
    ours.poll(seconds)  # waits in C, in real time


def test_groups_of_some_ranks(job: Job) -> None:
    def work(rank: int) -> Any:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor = _full(float(rank), 1)
        dist.all_reduce(tensor, group=pairs[rank // 2])
        subgroup, _ = dist.new_subgroups(2)
        other = _full(float(rank), 1)
        dist.broadcast(other, group=subgroup, group_src=1)
        split = dist.split_group(split_ranks=[[0, 2], [1, 3]])
        third = _full(float(rank), 1)
        dist.all_reduce(third, group=split)
        return tensor.item(), other.item(), third.item()

    assert job(work, ranks=4) == [(1.0, 1.0, 2.0), (1.0, 1.0, 4.0), (5.0, 3.0, 2.0), (5.0, 3.0, 4.0)]


def test_device_id_binds_the_group_and_connects_at_once(job: Job) -> None:
    def join(rank: int, address: str) -> None:
        device = torch.device("cuda", rank)
        dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2, device_id=device)

    def work(rank: int) -> Any:
        gpu = vgpu.current().machine.gpus[rank]  # type: ignore[union-attr]
        return str(dist.distributed_c10d._get_default_group().bound_device_id), gpu.started

    assert job(work, join=join) == [("cuda:0", True), ("cuda:1", True)]


# ---- collectives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"),
    one_in(3, [("SUM", 6.0), ("AVG", 3.0), ("PRODUCT", 8.0), ("MAX", 4.0), ("MIN", 2.0)]),
)
def test_all_reduce_with_every_reduction(job: Job, op: str, expected: float) -> None:
    def work(rank: int) -> Any:
        tensor = _full(2.0 * (rank + 1))
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        return tensor.tolist()

    assert job(work) == [[expected] * 4] * 2


def test_reductions_keep_the_dtype(job: Job) -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8)

    def work(rank: int) -> Any:
        sums = []
        for dtype in kinds:
            tensor = _full(1, dtype=dtype)
            dist.all_reduce(tensor)
            sums.append((tensor.dtype, tensor.float().sum().item()))
        return sums

    assert job(work) == [[(dtype, 8.0) for dtype in kinds]] * 2


def test_a_sum_of_truth_values_is_any(job: Job) -> None:  # ProcessGroupNCCL.cpp, getNcclReduceOp
    def work(rank: int) -> Any:
        tensor = torch.tensor([True, rank == 0, False], device="cuda")
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert job(work) == [[True, True, False]] * 2


def test_low_precision_is_summed_in_fp32_and_rounded_once(job: Job) -> None:
    def work(rank: int) -> Any:
        # bfloat16 keeps 8 bits: adding these one by one to 1 would give 1.
        tensor = _full([1.0, 2.0**-9, 2.0**-9, 2.0**-9][rank], 1, dtype=torch.bfloat16)
        dist.all_reduce(tensor)
        return tensor.item()

    assert job(work, ranks=4) == [1.0 + 2.0**-7] * 4


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: dist.all_reduce(_full(1, dtype=torch.int16)), TypeError, "not supported for NCCL.*Short"),
        (lambda: dist.all_reduce(torch.ones(4, 4, device="cuda").t()[:, 1:]), ValueError, "must be contiguous"),
        (lambda: dist.all_reduce(_full(1), op=dist.ReduceOp.BAND), ValueError, "Cannot use ReduceOp.BAND with NCCL"),
        (lambda: dist.recv(_full(1)), RuntimeError, "does not support recvAnysource"),
    ],
)
def test_what_nccl_refuses(job: Job, call: Callable[[], Any], error: type[Exception], text: str) -> None:
    def work(rank: int) -> None:
        with pytest.raises(error, match=text):
            call()

    job(work)


def test_nccl_refuses_tensors_that_do_not_fit_together(job: Job) -> None:  # ProcessGroupNCCL.cpp
    doubles = {"dtype": torch.float64}
    everywhere = [
        (lambda: dist.all_gather_into_tensor(_full(1, 4), _full(1, 2, **doubles)), "output tensor must have the same"),
        (lambda: dist.reduce_scatter_tensor(_full(1, 2), _full(1, 4, **doubles)), "input tensor must be the same type"),
        (lambda: dist.all_gather([_full(1, 2)], _full(1, 2)), "must match number of collective participants"),
        (lambda: dist.reduce_scatter(_full(1, 2), [_full(1, 2)]), "must match number of collective participants"),
        (lambda: dist.all_to_all_single(_full(1, 3), _full(1, 3)), "does not divide equally across group size"),
        (lambda: dist.all_to_all_single(_full(1, 4), _full(1, 4), [1, 1], [1, 1]), "doesn't match total dim 0 size"),
        (lambda: dist.all_to_all_single(_full(1, 4), _full(1, 4), [4], [4]), "Number of tensor splits not equal to"),
        (lambda: dist.send(_full(1, 4), 5), "invalid peer 5"),
        (lambda: dist.send(_full(1, 4, dtype=torch.int16), 1 - dist.get_rank()), "not supported for NCCL.*Short"),
    ]
    of_the_root = [
        (lambda: dist.scatter(_full(1, 2), [_full(1, 2)], 0), "scatter: Incorrect input list size 1"),
        (lambda: dist.scatter(_full(1, 2), [_full(1, 3)] * 2, 0), r"index 0 \(expected \[2\], got \[3\]\)"),
        (lambda: dist.gather(_full(1, 2), [_full(1, 2)], 0), "gather: Incorrect output list size 1"),
    ]

    def work(rank: int) -> None:
        for call, text in everywhere + (of_the_root if rank == 0 else []):
            with pytest.raises((TypeError, ValueError, RuntimeError), match=text):
                call()

    job(work)


def _broadcast(rank: int) -> Any:
    tensor = _full(float(rank))
    dist.broadcast(tensor, src=1)
    return tensor.tolist()


def _all_gather(rank: int) -> Any:
    parts = [torch.empty(2, device="cuda") for _ in range(2)]
    dist.all_gather(parts, _full(float(rank), 2))
    return [part.tolist() for part in parts]


def _all_gather_into_tensor(rank: int) -> Any:
    whole = torch.empty(4, device="cuda", dtype=torch.int16)
    dist.all_gather_into_tensor(whole, _full(rank, 2, dtype=torch.int16))
    return whole.tolist()


def _reduce_scatter(rank: int) -> Any:
    part = torch.empty(2, device="cuda")
    dist.reduce_scatter(part, [_full(1.0, 2), _full(2.0, 2)])
    return part.tolist()


def _reduce_scatter_tensor(rank: int) -> Any:
    part = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device="cuda"), op=dist.ReduceOp.AVG)
    return part.tolist()


def _reduce(rank: int) -> Any:
    tensor = _full(rank + 1.0, 1)
    dist.reduce(tensor, dst=1)
    return tensor.tolist()


def _gather(rank: int) -> Any:
    parts = [torch.empty(1, device="cuda") for _ in range(2)] if rank == 0 else None
    dist.gather(_full(float(rank), 1), parts, dst=0)
    return [part.item() for part in parts or []]


def _scatter(rank: int) -> Any:
    part = torch.empty(1, device="cuda")
    dist.scatter(part, [_full(7.0, 1), _full(8.0, 1)] if rank == 1 else None, src=1)
    return part.item()


def _all_to_all(rank: int) -> Any:
    parts = [torch.empty(rank + 1, device="cuda") for _ in range(2)]
    dist.all_to_all(parts, [_full(float(rank), size + 1) for size in range(2)])
    return [part.tolist() for part in parts]


def _all_to_all_single(rank: int) -> Any:
    output = torch.empty(3, device="cuda", dtype=torch.int64)
    sizes = [[2, 1], [1, 2]][rank]
    dist.all_to_all_single(output, torch.arange(3, device="cuda") + 10 * rank, sizes, sizes)
    return output.tolist()


@pytest.mark.parametrize(
    ("work", "expected"),
    one_in(
        3,
        [
            (_broadcast, [[1.0] * 4] * 2),
            (_all_gather, [[[0.0, 0.0], [1.0, 1.0]]] * 2),
            (_reduce_scatter, [[2.0, 2.0], [4.0, 4.0]]),
            (_reduce_scatter_tensor, [[0.0, 1.0], [2.0, 3.0]]),
            (_reduce, [[1.0], [3.0]]),
            (_gather, [[0.0, 1.0], []]),
            (_scatter, [7.0, 8.0]),
            (_all_to_all, [[[0.0], [1.0]], [[0.0, 0.0], [1.0, 1.0]]]),
            (_all_to_all_single, [[0, 1, 10], [2, 11, 12]]),
        ],
    ),
)
def test_collectives_move_values(job: Job, work: Callable[[int], Any], expected: Any) -> None:
    assert job(work) == expected


@pytest.mark.night
def test_objects_are_exchanged(job: Job) -> None:
    def work(rank: int) -> Any:
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        sent = [rank, "text"]
        dist.broadcast_object_list(sent, src=1)
        return gathered, sent

    for values in (True, False):
        assert job(work, values=values) == [([{"rank": 0}, {"rank": 1}], [1, "text"])] * 2


def test_async_work_completes_in_virtual_time(job: Job) -> None:
    def work(rank: int) -> Any:
        tensor = _full(1.0)
        handle = dist.all_reduce(tensor, async_op=True)
        before = handle.is_completed()
        handle.wait()
        torch.cuda.synchronize()
        value = handle.get_future().then(lambda future: future.value()[0] * 10).wait()
        return before, handle.is_completed(), handle.is_success(), value.tolist()

    assert job(work) == [(False, True, True, [20.0] * 4)] * 2


def test_coalesced_collectives(job: Job) -> None:
    def work(rank: int) -> Any:
        tensors = [_full(1.0), _full(2.0)]
        with dist._coalescing_manager():  # type: ignore[attr-defined]
            for tensor in tensors:
                dist.all_reduce(tensor)
        return [tensor[0].item() for tensor in tensors]

    assert job(work) == [[2.0, 4.0]] * 2


def test_functional_collectives(job: Job) -> None:
    def work(rank: int) -> Any:
        import torch.distributed._functional_collectives as functional

        result = functional.all_reduce(_full(rank + 1.0), "sum", dist.group.WORLD)
        return (result + 0).tolist(), str(result.device)

    assert job(work) == [([3.0] * 4, "cuda:0"), ([3.0] * 4, "cuda:1")]


# ---- point to point --------------------------------------------------------------------------------------------------


def test_send_and_recv(job: Job) -> None:
    def work(rank: int) -> Any:
        tensor = _full(5.0) if rank == 0 else _full(0.0)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        return tensor.tolist()

    assert job(work) == [[5.0] * 4] * 2


def test_a_receive_may_be_posted_before_the_send(job: Job) -> None:
    def work(rank: int) -> Any:
        arriving = torch.empty(1, device="cuda")
        handle = dist.irecv(arriving, 1 - rank)
        sent = dist.isend(_full(float(rank), 1), 1 - rank)
        for each in (handle, sent):
            assert each is not None
            each.wait()
        return arriving.item()

    assert job(work) == [1.0, 0.0]


def test_a_ring_of_batched_messages(job: Job) -> None:
    def work(rank: int) -> Any:
        arriving = torch.empty(2, device="cuda", dtype=torch.float16)
        mine = _full(float(rank), 2, dtype=torch.float16)
        handles = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, (rank + 1) % 4), dist.P2POp(dist.irecv, arriving, (rank - 1) % 4)]
        )
        for handle in handles:
            handle.wait()
        return arriving.tolist()

    assert job(work, ranks=4) == [[3.0, 3.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


# ---- shapes only -----------------------------------------------------------------------------------------------------


def test_with_shapes_only_nothing_is_moved(job: Job) -> None:
    def work(rank: int) -> Any:
        tensor = torch.ones(1 << 30, device="cuda", dtype=torch.float16)  # 2 GiB that nobody has
        dist.all_reduce(tensor)
        parts = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(parts, tensor)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        dist.barrier()
        gpu = vgpu.current()
        assert gpu is not None
        return [(kernel.name, kernel.bytes) for kernel in gpu.timeline if "nccl" in kernel.name][:2]

    assert job(work, values=False) == [
        [("ncclDevKernel_AllReduce_Sum_f16_RING_LL", 2**31), ("ncclDevKernel_AllGather_RING_LL", 2**32)]
    ] * 2  # fmt: skip
