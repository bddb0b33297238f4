"""Distributed training with one rank and the NCCL backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.machine import Gpu
from tests.conformance.measure import waits
from tests.conformance.programs import program

DISTRIBUTED = "torch docs: torch.distributed"
DDP = "torch docs: nn.parallel.DistributedDataParallel"


@pytest.fixture
def rank(cuda: Gpu, tmp_path: Path) -> Iterator[int]:
    """A process group of one rank, whose rendezvous is a file: no port is needed."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield 0
    if dist.is_initialized():
        dist.destroy_process_group()


@program(DISTRIBUTED)
def test_the_group_of_one_rank(cuda: Gpu, rank: int) -> None:
    assert dist.is_nccl_available()
    assert dist.get_backend() == "nccl"
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.get_rank()


@program(f"{DISTRIBUTED}: collectives")
def test_collectives_of_one_rank(cuda: Gpu, rank: int) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert dist.all_reduce(x) is None
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    dist.broadcast(x, src=0)
    dist.reduce(x, dst=0)
    parts = [torch.zeros(2, device="cuda")]
    dist.all_gather(parts, x)
    whole, part = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda")
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(part, x)
    assert x.tolist() == parts[0].tolist() == whole.tolist() == part.tolist() == [1, 2]
    objects = [{"lr": 0.1}]
    dist.broadcast_object_list(objects, src=0)
    gathered = [None]
    dist.all_gather_object(gathered, "value")
    assert (objects, gathered) == ([{"lr": 0.1}], ["value"])


@program(f"{DISTRIBUTED}: NCCL takes CUDA tensors only; ProcessGroup.hpp: getBackend")
def test_nccl_refuses_cpu_tensors(cuda: Gpu, rank: int) -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))


@program(f"{DISTRIBUTED}: asynchronous collective operations: wait() does not block the host for CUDA")
def test_collectives_are_asynchronous(cuda: Gpu, rank: int) -> None:
    x = torch.ones(1000, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.sum().item() == 1000
    assert not waits(lambda: dist.all_reduce(x, async_op=True).wait())


@program(f"{DDP}; gradients are averaged over the ranks")
def test_a_wrapped_module_trains_like_the_plain_one(cuda: Gpu, rank: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda(), device_ids=[0])
    x = torch.randn(16, 4, device="cuda")
    for model in (plain, wrapped):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for parameter, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.allclose(parameter, other, atol=1e-6)
    assert all(name.startswith("module.") for name in wrapped.state_dict())
    assert wrapped.module[0].weight.device == torch.device("cuda", 0)


@program(f"{DDP}: no_sync")
def test_accumulation_without_synchronisation(cuda: Gpu, rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False).cuda(), device_ids=[0])
    x = torch.ones(2, 3, device="cuda")
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()
    assert model.module.weight.grad.tolist() == [[4, 4, 4]]


@program(f"{DDP}: gradient_as_bucket_view saves a copy of the gradients")
def test_gradients_may_be_views_of_the_buckets(cuda: Gpu, rank: int) -> None:
    def kept(*, view: bool) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        model = DistributedDataParallel(
            nn.Linear(1024, 1024, bias=False).cuda(), device_ids=[0], gradient_as_bucket_view=view
        )
        for _ in range(2):
            model(torch.zeros(1, 1024, device="cuda")).sum().backward()
        return torch.cuda.memory_allocated() - before

    kept(view=False)
    assert kept(view=False) - kept(view=True) == 1024 * 1024 * 4


@program("torch/nn/parallel/distributed.py: device_ids")
def test_ddp_checks_its_module(cuda: Gpu, rank: int) -> None:
    with pytest.raises(ValueError, match="device_ids and output_device arguments only work with single-device"):
        DistributedDataParallel(nn.Linear(2, 2), device_ids=[0])
    frozen = nn.Linear(2, 2).cuda().requires_grad_(False)
    with pytest.raises(RuntimeError, match="not needed when a module doesn't have any parameter"):
        DistributedDataParallel(frozen, device_ids=[0])


@program(f"{DDP}: find_unused_parameters")
def test_unused_parameters(cuda: Gpu, rank: int) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    x = torch.ones(1, 2, device="cuda")
    strict = DistributedDataParallel(Partly().cuda(), device_ids=[0])
    strict(x).sum().backward()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior iteration"):
        strict(x)
    lenient = DistributedDataParallel(Partly().cuda(), device_ids=[0], find_unused_parameters=True)
    for _ in range(2):
        lenient(x).sum().backward()
    assert lenient.module.used.weight.grad is not None


@program(f"{DDP}; PyTorch AMP examples notes: DistributedDataParallel")
def test_mixed_precision_under_ddp(cuda: Gpu, rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for _ in range(2):
        with torch.autocast("cuda"):
            y = model(torch.ones(2, 4, device="cuda"))
            loss = y.float().square().mean()
        assert y.dtype == torch.float16
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0


@program("torch docs: torch.utils.data.distributed.DistributedSampler")
def test_a_distributed_sampler(cuda: Gpu, rank: int) -> None:
    sampler = torch.utils.data.distributed.DistributedSampler(list(range(10)), shuffle=True, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == list(range(10))
    assert list(sampler) != first


@program("torch docs: nn.SyncBatchNorm")
def test_synchronised_batch_normalisation(cuda: Gpu, rank: int) -> None:
    plain = nn.BatchNorm1d(3).cuda()
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).cuda()
    x = torch.randn(8, 3, device="cuda")
    assert torch.allclose(plain(x), synchronised(x), atol=1e-5)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
        synchronised.cpu()(x.cpu())
