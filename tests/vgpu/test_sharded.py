"""DTensor on virtual GPUs: FSDP2, tensor parallel and distributed checkpoints, against one process and by hand.

Expectations: documentation of `torch.distributed.fsdp.fully_shard`, `torch.distributed.tensor` and its `parallel`,
`torch.distributed.checkpoint`; PyTorch's examples of them (github.com/pytorch/examples, distributed/FSDP2 and
distributed/tensor_parallelism) run unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DTensor imports it: done here once instead of in every process
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import vgpu

from .conftest import rounded
from .jobs import Job

_WIDTH = 64


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * _WIDTH, _WIDTH)
    )


def _batch(rank: int, ranks: int) -> torch.Tensor:
    return torch.randn(8, _WIDTH, generator=torch.Generator().manual_seed(1))[rank::ranks]


def _train(model: torch.nn.Module, inputs: torch.Tensor, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        model(inputs).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def _shard(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    for layer in (model[0], model[2]):  # type: ignore[index]
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def _expected() -> list[torch.Tensor]:
    model = _model()
    _train(model, _batch(0, 1))
    return list(model.parameters())


def _full(value: torch.Tensor) -> torch.Tensor:
    assert isinstance(value, DTensor)
    return value.full_tensor().detach().cpu()


def _whole(model: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter, gathered from all ranks, on the CPU."""
    return [
        (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu() for value in model.parameters()
    ]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.night)])
def test_fsdp2_trains_as_one_process_does(job: Job, ranks: int) -> None:
    def work(rank: int) -> Any:
        model = _shard(_model().cuda())
        _train(model, _batch(rank, ranks).cuda())
        return _whole(model), {str(value.device) for value in model.parameters()}

    for rank, (parameters, devices) in enumerate(job(work, ranks=ranks)):
        assert devices == {f"cuda:{rank}"}
        for value, expected in zip(parameters, _expected(), strict=True):
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.night)])
def test_fsdp2_keeps_a_share_of_parameters_and_optimizer(job: Job, ranks: int) -> None:
    def work(rank: int) -> int:
        model = _shard(_model().cuda())
        inputs = _batch(rank, ranks).cuda()
        optimizer = _train(model, inputs)
        torch._C._cuda_clearCublasWorkspaces()
        assert optimizer.state
        return torch.cuda.memory_allocated()

    parts = [4 * _WIDTH * _WIDTH, 4 * _WIDTH, 4 * _WIDTH * _WIDTH, _WIDTH]
    # Parameters and Adam's two moments; the gradients are gone, the whole layers too.
    expected = 3 * rounded(*[4 * size // ranks for size in parts]) + rounded(8 // ranks * _WIDTH * 4)
    assert job(work, ranks=ranks) == [expected] * ranks


def test_a_layer_is_gathered_when_it_is_needed_and_let_go_after_it(job: Job) -> None:
    def work(rank: int) -> Any:
        model = _shard(_model().cuda())
        inputs = _batch(rank, 2).cuda()
        gpu = vgpu.current()
        assert gpu is not None
        collectives = []
        for backward in (False, True):
            before = len(gpu.timeline)
            with torch.set_grad_enabled(backward):
                result = model(inputs)
            if backward:
                result.sum().backward()
            collectives.append(
                [entry.name for entry in gpu.timeline[before:] if entry.name.startswith("ncclDevKernel")]
            )
        return collectives

    for forward, both in job(work):
        assert len(forward) == 2
        assert all("AllGather" in name for name in forward)
        # Forward gathers both; backward gathers again what was let go (the last one stays), and reduces each.
        assert sum("ReduceScatter" in name for name in both) == 2
        assert sum("AllGather" in name for name in both) >= 3


def test_fsdp2_in_mixed_precision_sends_half_the_bytes(job: Job) -> None:
    def work(rank: int) -> Any:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        results = []
        for options in ({}, {"mp_policy": policy}):
            model = _shard(_model().cuda(), **options)
            inputs = _batch(rank, 2).cuda()
            gpu = vgpu.current()
            assert gpu is not None
            before = len(gpu.timeline)
            with torch.no_grad():
                result = model(inputs)
            gathered = [entry.bytes for entry in gpu.timeline[before:] if "AllGather" in entry.name]
            results.append((result.dtype, sum(gathered)))
        return results

    for plain, mixed in job(work, spec="A100-80GB"):
        assert plain[0] == torch.float32
        assert mixed[0] == torch.bfloat16
        assert mixed[1] * 2 == plain[1] > 0


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.night)])
def test_tensor_parallel_layers_compute_what_one_gpu_does(job: Job, ranks: int) -> None:
    def work(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (ranks,))
        model = parallelize_module(_model().cuda(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        _train(model, _batch(0, 1).cuda())
        local = [value.to_local() for value in model.parameters() if isinstance(value, DTensor)]
        return _whole(model), [tuple(value.shape) for value in local]

    for whole, shapes in job(work, ranks=ranks):
        assert shapes == [
            (4 * _WIDTH // ranks, _WIDTH), (4 * _WIDTH // ranks,), (_WIDTH, 4 * _WIDTH // ranks), (_WIDTH,),
        ]  # fmt: skip
        for value, expected in zip(whole, _expected(), strict=True):
            torch.testing.assert_close(value, expected)


def test_a_tensor_is_distributed_and_comes_back(job: Job) -> None:
    def work(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        whole = torch.arange(12.0, device="cuda").reshape(4, 3)
        parts = distribute_tensor(whole, mesh, [Shard(0)])
        columns = parts.redistribute(mesh, [Replicate()])
        product = parts @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
        return (
            parts.to_local().cpu(), columns.to_local().cpu(), product.full_tensor().cpu(), str(parts.device),
            parts.is_cuda, float(parts.sum().full_tensor()), str(parts.to_local().device),
        )  # fmt: skip

    whole = torch.arange(12.0).reshape(4, 3)
    for rank, (part, copied, product, device, on_gpu, total, local) in enumerate(job(work)):
        assert torch.equal(part, whole[2 * rank : 2 * rank + 2])
        assert torch.equal(copied, whole)
        torch.testing.assert_close(product, whole @ whole.t())
        assert (device, local, on_gpu, total) == (f"cuda:{rank}", f"cuda:{rank}", True, 66.0)


def test_a_distributed_tensor_goes_to_the_host_part_by_part(job: Job) -> None:
    def work(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        parts = distribute_tensor(torch.arange(12.0, device="cuda").reshape(4, 3), mesh, [Shard(0)])
        there = parts.cpu()
        assert isinstance(there, DTensor)
        back = there.to("cuda")
        assert isinstance(back, DTensor)
        return there.to_local(), there.is_cuda, str(back.to_local().device), back.full_tensor().cpu()

    whole = torch.arange(12.0).reshape(4, 3)
    for rank, (part, on_gpu, device, again) in enumerate(job(work)):
        assert torch.equal(part, whole[2 * rank : 2 * rank + 2])
        assert (on_gpu, device) == (False, f"cuda:{rank}")
        assert torch.equal(again, whole)


def test_random_numbers_of_a_distributed_tensor_differ_between_its_parts(job: Job) -> None:
    def work(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        parts = distribute_tensor(torch.empty(4, 8, device="cuda"), mesh, [Shard(0)])
        torch.nn.init.normal_(parts)
        copies = distribute_tensor(torch.empty(4, 8, device="cuda"), mesh, [Replicate()])
        torch.nn.init.uniform_(copies)
        return _full(parts), _full(copies)

    (parts, copies), (same_parts, same_copies) = job(work)
    assert torch.equal(parts, same_parts)
    assert torch.equal(copies, same_copies)
    assert not torch.equal(parts[:2], parts[2:])
    assert parts.std() > 0.5


@pytest.mark.night
def test_a_checkpoint_of_two_ranks_is_read_by_four(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"

    def save(rank: int) -> Any:
        model = _shard(_model().cuda())
        optimizer = _train(model, _batch(rank, 2).cuda())
        states = get_state_dict(model, optimizer)
        checkpoint.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=str(folder))
        return _whole(model)

    def load(rank: int) -> Any:
        torch.manual_seed(7)
        model = _shard(torch.nn.Sequential(
            torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * _WIDTH, _WIDTH)
        ).cuda())  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        states = get_state_dict(model, optimizer)
        values = {"model": states[0], "optimizer": states[1]}
        checkpoint.load(values, checkpoint_id=str(folder))
        set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optimizer"])
        steps = {float(state["step"]) for state in optimizer.state.values()}
        return _whole(model), steps

    saved = job(save)[0]
    for loaded, steps in job(load, ranks=4):
        assert steps == {3.0}
        for value, expected in zip(loaded, saved, strict=True):
            assert torch.equal(value, expected)
