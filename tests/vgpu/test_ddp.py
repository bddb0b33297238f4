"""DistributedDataParallel on virtual GPUs: gradients equal those of one process on the whole batch; memory and devices.

Expectations: documentation of DistributedDataParallel and its design note ("Distributed Data Parallel", PyTorch docs).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # DDP imports it: done here once instead of in every process
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vgpu
from tests.by_day import one_in

from .conftest import rounded
from .jobs import Job

_MEGABYTE = 1 << 20


def _model(width: int = 64) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def _loss(model: torch.nn.Module, rank: int) -> torch.Tensor:
    inputs, labels = _batch()
    return torch.nn.functional.cross_entropy(model(inputs[rank::2].cuda()), labels[rank::2].cuda())


def _reference() -> list[torch.Tensor]:
    model = _model()
    inputs, labels = _batch()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]


def _gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.cpu() for parameter in model.parameters()]  # type: ignore[union-attr]


def _close(by_rank: list[list[torch.Tensor]], **tolerance: float) -> None:
    expected = _reference()
    for gradients in by_rank:
        for gradient, reference in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, reference, **tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    one_in(
        2,
        [
            {},
            {"gradient_as_bucket_view": True},
            {"find_unused_parameters": True},
            {"static_graph": True},
            {"bucket_cap_mb": 0.002},
            {"broadcast_buffers": False},
        ],
    ),
)
def test_gradients_are_those_of_the_whole_batch(job: Job, options: dict[str, Any]) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(rank), device_ids=[rank], **options)
        for _ in range(3):  # the buckets are rebuilt after the first iteration
            model.zero_grad()
            _loss(model, rank).backward()
        devices = {str(parameter.grad.device) for parameter in model.parameters()}  # type: ignore[union-attr]
        return devices, _gradients(model)

    devices, gradients = zip(*job(work), strict=True)
    assert devices == ({"cuda:0"}, {"cuda:1"})
    _close(list(gradients))


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:nccl"])
def test_it_works_over_every_backend(job: Job, backend: str) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().to(rank), device_ids=[rank], find_unused_parameters=True)
        _loss(model, rank).backward()
        return _gradients(model)

    _close(job(work, backend=backend))


def test_all_ranks_start_from_the_first_ones_parameters(job: Job) -> None:
    def work(rank: int) -> Any:
        torch.manual_seed(rank)
        model = DistributedDataParallel(torch.nn.Linear(3, 3).cuda(), device_ids=[rank])
        return model.module.weight.detach().cpu()

    first, second = job(work)
    assert torch.equal(first, second)


def test_ranks_with_different_models_are_refused(job: Job) -> None:
    def work(rank: int) -> Any:
        try:
            DistributedDataParallel(torch.nn.Linear(3, 3 + rank).cuda(), device_ids=[rank])
        except RuntimeError as error:
            return str(error)
        return ""  # rank 0 is the one that the others compare with: it does not notice

    for values in (True, False):
        assert "appears not to match sizes of the same param in process 0" in job(work, values=values)[1]


def test_buckets_take_device_memory(job: Job) -> None:
    def step(model: torch.nn.Module) -> None:
        model(torch.ones(8, 1024, device="cuda")).sum().backward()

    def work(rank: int) -> Any:
        model = torch.nn.Linear(1024, 512, bias=False).cuda()
        step(model)  # what libraries take
        model.zero_grad()
        before = torch.cuda.memory_allocated()
        parallel = DistributedDataParallel(model, device_ids=[rank])
        made = torch.cuda.memory_allocated() - before
        for _ in range(3):
            step(parallel)
        copied = torch.cuda.memory_allocated() - before
        del parallel
        model.zero_grad()
        parallel = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
        for _ in range(3):
            step(parallel)
        return made, copied, torch.cuda.memory_allocated() - before

    size = rounded(1024 * 512 * 4)
    for values in (True, False):
        # A gradient is a tensor of its own next to its bucket, unless it is a view of it.
        assert job(work, values=values) == [(size, 2 * size, size)] * 2


def test_no_sync_accumulates_without_communication(job: Job) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        with model.no_sync():
            _loss(model, rank).backward()
        before = _all_reduces()
        _loss(model, rank).backward()
        return before, _all_reduces(), [gradient / 2 for gradient in _gradients(model)]

    results = job(work)
    assert [(before, after) for before, after, _ in results] == [(0, 1)] * 2
    _close([gradients for _, _, gradients in results])


def _all_reduces() -> int:
    return sum("AllReduce" in kernel.name for kernel in vgpu.current().timeline)  # type: ignore[union-attr]


def test_unused_parameters_keep_no_gradient(job: Job) -> None:
    class Either(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.sometimes(self.always(x)) if both else self.always(x)

    def work(rank: int) -> Any:
        x = torch.ones(1, 2, device="cuda")
        model = DistributedDataParallel(Either().cuda(), device_ids=[rank], find_unused_parameters=True)
        model(x, both=False).sum().backward()
        nobody = model.module.sometimes.weight.grad is None
        model(x, both=rank == 0).sum().backward()
        somebody = model.module.sometimes.weight.grad is not None
        strict = DistributedDataParallel(Either().cuda(), device_ids=[rank])
        strict(x, both=False).sum().backward()
        with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior iteration"):
            strict(x, both=False)
        return nobody, somebody

    assert job(work) == [(True, True)] * 2


def _hooks() -> dict[str, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def own(state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations, which are texts here
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return {
        "allreduce": (None, default_hooks.allreduce_hook, {}),
        "fp16": (None, default_hooks.fp16_compress_hook, {"rtol": 1e-2, "atol": 1e-3}),
        "bf16": (None, default_hooks.bf16_compress_hook, {"rtol": 5e-2, "atol": 5e-3}),
        "own": (None, own, {}),
        "powerSGD": (state, powerSGD_hook.powerSGD_hook, {"rtol": 1.0, "atol": 10.0}),
    }


@pytest.mark.parametrize("name", one_in(3, ["allreduce", "fp16", "bf16", "own", "powerSGD"]))
def test_communication_hooks(job: Job, name: str) -> None:
    state, hook, tolerance = _hooks()[name]

    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model.zero_grad()
            _loss(model, rank).backward()
        return _gradients(model)

    _close(job(work), **tolerance)


def test_the_compressing_hook_of_cpp_halves_the_bytes(job: Job) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        _loss(model, rank).backward()
        return [kernel.bytes for kernel in vgpu.current().timeline if "AllReduce" in kernel.name]  # type: ignore[union-attr]

    parameters = sum(parameter.numel() for parameter in _model().parameters())
    assert job(work) == [[2 * parameters]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_in_low_precision(job: Job, dtype: torch.dtype) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().to(rank, dtype), device_ids=[rank])
        model(_batch()[0][rank::2].to(rank, dtype)).float().sum().backward()
        return [(parameter.grad.dtype, parameter.grad.is_cuda) for parameter in model.parameters()]  # type: ignore[union-attr]

    assert job(work) == [[(dtype, True)] * 4] * 2


def test_mixed_precision_training_keeps_the_ranks_equal(job: Job) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler()
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = _loss(model, rank)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses[-1] < losses[0], [parameter.detach().cpu() for parameter in model.parameters()]

    (learnt, first), (also, second) = job(work)
    assert learnt
    assert also
    assert all(torch.equal(parameter, other) for parameter, other in zip(first, second, strict=True))


def test_sync_batch_norm_normalises_over_all_ranks(job: Job) -> None:
    inputs = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(2))

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))

    def work(rank: int) -> Any:
        synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(make()).cuda()
        model = DistributedDataParallel(synced, device_ids=[rank])
        model(inputs[rank::2].cuda()).pow(3).sum().backward()
        return synced[1].running_mean.cpu(), synced[1].running_var.cpu(), synced[0].weight.grad.cpu()  # type: ignore[index,union-attr]

    plain = make()
    plain(inputs).pow(3).sum().backward()
    for mean, variance, gradient in job(work):
        torch.testing.assert_close(mean, plain[1].running_mean)  # type: ignore[index]
        torch.testing.assert_close(variance, plain[1].running_var)  # type: ignore[index]
        torch.testing.assert_close(2 * gradient, plain[0].weight.grad, rtol=1e-3, atol=1e-3)  # type: ignore[index]


def test_sharded_optimizer_states(job: Job) -> None:
    def work(rank: int) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            _loss(model, rank).backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    inputs, labels = _batch()
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    for parameters in job(work):
        for actual, expected in zip(parameters, model.parameters(), strict=True):
            torch.testing.assert_close(actual, expected.detach())


def test_fully_sharded_parameters_take_a_share_of_the_memory(job: Job) -> None:
    def work(rank: int) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        before = torch.cuda.memory_allocated()
        model = FullyShardedDataParallel(_model(1024).cuda(), device_id=rank)
        held = torch.cuda.memory_allocated() - before
        loss = _loss(model, rank)
        loss.backward()
        return held, torch.isfinite(loss).item()

    size = sum(parameter.nbytes for parameter in _model(1024).parameters())
    for held, finite in job(work):
        assert held == pytest.approx(size / 2, rel=0.02)
        assert finite


def test_ranks_may_have_different_numbers_of_batches(job: Job) -> None:
    def work(rank: int) -> Any:
        model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
        with model.join():
            for _ in range(2 + rank):
                _loss(model, rank).backward()
        return True

    assert job(work) == [True, True]


def _join_without_a_current_device(rank: int, address: str) -> None:
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)


class _Unused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused, self.norm = torch.nn.Linear(16, 4), torch.nn.Linear(16, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.layer(x))
        return result


@pytest.mark.parametrize("values", [True, False])
def test_the_tensors_say_which_gpu_it_is(job: Job, values: bool) -> None:
    """DDP's design note gives `device_ids` alone; no rank sets its device, and none touches another one's."""

    def work(rank: int) -> Any:
        dist.barrier()  # before any tensor: by the rank
        model = DistributedDataParallel(_Unused().to(rank), device_ids=[rank], find_unused_parameters=True)
        for _ in range(3):
            model(torch.full((4, 16), rank + 1.0, device=rank)).sum().backward()
        compressed = DistributedDataParallel(_model().to(rank))
        compressed._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        compressed(torch.ones(2, 16, device=rank)).sum().backward()
        dist.barrier()
        machine = vgpu.current().machine  # type: ignore[union-attr]
        devices = {str(parameter.grad.device) for parameter in compressed.parameters()}  # type: ignore[union-attr]
        return devices, [gpu.started for gpu in machine.gpus], torch.cuda.current_device()

    expected = [({"cuda:0"}, [True, False], 0), ({"cuda:1"}, [False, True], 0)]
    assert job(work, join=_join_without_a_current_device, values=values) == expected


def test_each_gpu_of_a_rank_has_a_communicator(job: Job) -> None:
    def work(rank: int) -> Any:
        for device in (rank, 1 - rank):
            tensor = torch.full((2,), rank + 1.0, device=device)
            dist.all_reduce(tensor)
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU detected"):
            dist.all_reduce(torch.ones(1, device=0), group=dist.new_group([0, 1]))
        return tensor.tolist(), str(tensor.device)

    assert job(work, join=_join_without_a_current_device) == [([3.0, 3.0], "cuda:1"), ([3.0, 3.0], "cuda:0")]


def test_with_shapes_only_a_step_of_a_big_model_costs_what_it_would(job: Job) -> None:
    def work(rank: int) -> Any:
        model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(3)]).cuda()
        model = DistributedDataParallel(model, device_ids=[rank])
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 2048, device="cuda")).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
        gpu = vgpu.current()
        assert gpu is not None
        return gpu.now(), sum(kernel.bytes for kernel in gpu.timeline if "AllReduce" in kernel.name)

    (first, reduced), (second, also) = job(work, values=False)
    assert first == second
    assert reduced == also == 2 * 3 * 2048 * 2048 * 4
