"""Sparse tensors on a virtual GPU: values of the CPU, memory of indices and values, work by the number of values.

Expectations: documentation of `torch.sparse` ("Supported operations", storage of COO and of compressed layouts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vgpu

from .conftest import rounded


def _matrix(rows: int = 6, columns: int = 6) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return torch.where(values > 0.2, values, 0.0)


def _dense() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


# Each gets a sparse and a dense matrix, both on the CPU or both on the GPU.
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda s, d: s @ d,
    "torch.sparse.mm": lambda s, d: torch.sparse.mm(s, d),
    "addmm": lambda s, d: torch.sparse.addmm(d, s, d),
    "product with a vector": lambda s, d: torch.mv(s, d[:, 0].contiguous()),
    "product of two": lambda s, d: torch.sparse.mm(s, s),
    "batched product": lambda s, d: torch.bmm(torch.stack([s, s]), torch.stack([d, d])),
    "sum of two": lambda s, d: s + s,
    "dense plus sparse": lambda s, d: d.new_ones(6, 6) + s,
    "product by elements": lambda s, d: s * s,
    "times a number": lambda s, d: s * 2,
    "sum": lambda s, d: torch.sparse.sum(s),
    "sum over a dimension": lambda s, d: torch.sparse.sum(s, dim=1),
    "softmax": lambda s, d: torch.sparse.softmax(s, dim=1),
    "log_softmax": lambda s, d: torch.sparse.log_softmax(s, dim=1),
    "coalesce": lambda s, d: (s + s).coalesce(),
    "transpose": lambda s, d: s.t(),
    "cat": lambda s, d: torch.cat([s, s]),
    "index_select": lambda s, d: s.index_select(0, torch.tensor([0, 2], device=d.device)),
    "sparse_mask": lambda s, d: d.new_ones(6, 6).sparse_mask(s.coalesce()),
    "negative": lambda s, d: -s,
    "square root": lambda s, d: s.sqrt(),
    "float64": lambda s, d: s.to(torch.float64),
    "clone": lambda s, d: s.clone(),
    "zeros_like": lambda s, d: torch.zeros_like(s),
    "to CSR": lambda s, d: s.to_sparse_csr(),
    "CSR product": lambda s, d: s.to_sparse_csr() @ d,
    "CSR product of two": lambda s, d: s.to_sparse_csr() @ s.to_sparse_csr(),
    "CSR with a vector": lambda s, d: s.to_sparse_csr() @ d[:, 0].contiguous(),
    "CSR sum": lambda s, d: s.to_sparse_csr() + s.to_sparse_csr(),
    "CSC": lambda s, d: s.to_dense().to_sparse_csc(),
    "BSR": lambda s, d: s.to_dense().to_sparse_bsr((2, 2)),
    "sampled product": lambda s, d: torch.sparse.sampled_addmm(s.to_sparse_csr(), d, d.t()),
    "to dense": lambda s, d: s.to_dense(),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_values_are_those_of_the_cpu(gpu: vgpu.VirtualGPU, name: str) -> None:
    expected = OPERATIONS[name](_matrix().to_sparse(), _dense())
    actual = OPERATIONS[name](_matrix().to_sparse().cuda(), _dense().cuda())
    assert actual.is_cuda
    assert (actual.layout, actual.dtype, actual.shape) == (expected.layout, expected.dtype, expected.shape)
    torch.testing.assert_close(actual.cpu().to_dense(), expected.to_dense())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_memory_is_that_of_indices_and_values(gpu: vgpu.VirtualGPU) -> None:
    matrix = _matrix(100, 50)
    count = int(matrix.count_nonzero())
    coo = matrix.to_sparse().cuda()
    assert torch.cuda.memory_allocated() == rounded(2 * 8 * count, 4 * count)
    csr = matrix.to_sparse_csr().cuda()
    assert torch.cuda.memory_allocated() == rounded(2 * 8 * count, 4 * count, 8 * 101, 8 * count, 4 * count)
    del coo
    assert torch.cuda.memory_allocated() == rounded(8 * 101, 8 * count, 4 * count)
    assert str(csr.device) == str(csr.values().device) == str(csr.col_indices().device) == "cuda:0"
    del csr
    assert torch.cuda.memory_allocated() == 0


def test_factories_put_the_parts_where_they_belong(gpu: vgpu.VirtualGPU) -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0])
    made = [
        torch.sparse_coo_tensor(indices, values, (2, 2), device="cuda"),
        torch.sparse_coo_tensor(indices, values.cuda(), (2, 2)),  # the indices follow the values
        torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device="cuda"),
        torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), device="cuda", dtype=torch.float32),
    ]
    for tensor in made:
        assert str(tensor.device) == "cuda:0"
        assert tensor.cpu().to_dense().tolist() == [[0.0, 1.0], [2.0, 0.0]]
    empty = torch.sparse_coo_tensor((3, 4), device="cuda")
    assert (str(empty.device), empty.to_dense().sum().item()) == ("cuda:0", 0.0)
    assert not torch.sparse_coo_tensor(indices, values, (2, 2)).is_cuda
    with torch.device("cuda"):
        assert torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2)).is_cuda


def test_gradients_and_sparse_optimizers(gpu: vgpu.VirtualGPU) -> None:
    def train(device: str) -> list[Any]:
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 4, sparse=True).to(device)
        optimizers = [torch.optim.SparseAdam(embedding.parameters()), torch.optim.SGD(embedding.parameters(), lr=0.1)]
        for optimizer in optimizers:
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 1], device=device)).square().sum().backward()
            assert embedding.weight.grad is not None
            assert embedding.weight.grad.is_sparse
            assert embedding.weight.grad.device.type == device
            optimizer.step()
        left = _matrix().to_sparse().to(device).requires_grad_()
        right = _dense().to(device).requires_grad_()
        torch.sparse.mm(left, right).square().sum().backward()
        return [
            value.detach().cpu().to_dense() for value in (embedding.weight, left.grad, right.grad) if value is not None
        ]

    for actual, expected in zip(train("cuda"), train("cpu"), strict=True):
        torch.testing.assert_close(actual, expected)


def test_two_devices_are_refused_as_cuda_does(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(RuntimeError, match="same device, but got mat2 is on cpu"):
        _matrix().to_sparse().cuda() @ _dense()
    with pytest.raises(RuntimeError, match="same device"):
        _matrix().to_sparse() @ _dense().cuda()


def test_a_product_costs_by_its_values(gpu: vgpu.VirtualGPU) -> None:
    dense = torch.rand(4096, 512, device="cuda")
    seconds = []
    for share in (0.01, 0.1):
        matrix = (torch.rand(4096, 4096) < share).float().to_sparse().cuda()
        before = len(gpu.timeline)
        matrix @ dense
        product = max(gpu.timeline[before:], key=lambda entry: entry.seconds)
        assert product.flops == pytest.approx(2 * matrix._nnz() * 512)
        seconds.append(product.seconds)
    assert seconds[0] < seconds[1]


def test_finding_the_values_waits_for_the_device(gpu: vgpu.VirtualGPU) -> None:
    dense = _matrix().cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            dense.to_sparse()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_it_prints_with_its_device(gpu: vgpu.VirtualGPU) -> None:
    text = repr(torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="cuda"))
    assert "device='cuda:0'" in text
    assert "nnz=1" in text
