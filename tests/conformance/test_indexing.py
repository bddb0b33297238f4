"""Which devices may meet: indexing, scalars, and the errors where they may not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

ITERATOR = "aten/src/ATen/TensorIterator.cpp: compute_types"
WRAPPER = "torchgen: device check of RegisterCUDA.cpp (c10/core/impl, aten/src/ATen/core/adaption.cpp)"
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def different(argument: str, device: str, other: str, method: str) -> str:
    """The text of the check in the generated wrappers, as a regular expression."""
    return (
        rf"Expected all tensors to be on the same device, but got {argument} is on {device}, different from other "
        rf"tensors on {other} \(when checking argument in method {method}\)"
    )


@program(ITERATOR)
def test_elementwise_operations_name_the_gpu_first(cuda: Gpu) -> None:
    gpu, host = torch.zeros(2, device="cuda"), torch.zeros(2)
    for call in (
        lambda: gpu + host,
        lambda: host + gpu,
        lambda: host * gpu,
        lambda: gpu.add_(host),
        lambda: host.add_(gpu),
        lambda: torch.maximum(host, gpu),
        lambda: torch.lerp(gpu, host, 0.5),
        lambda: gpu == host,
        lambda: F.mse_loss(gpu, host),
        lambda: torch.addcmul(gpu, host, gpu),
    ):
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            call()


@program(f"PyTorch CUDA semantics notes; {ITERATOR}: allow_cpu_scalars")
def test_a_cpu_scalar_may_meet_gpu_tensors(cuda: Gpu) -> None:
    gpu, scalar = torch.ones(2, device="cuda"), torch.tensor(3.0)
    for result in (gpu * scalar, scalar * gpu, scalar - gpu + 1, torch.where(gpu > 0, gpu * 3, scalar)):
        assert result.is_cuda
        assert result.tolist() == [3.0, 3.0]
    gpu.mul_(scalar)
    assert gpu.tolist() == [3.0, 3.0]
    assert (gpu + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float32


@program(f"{ITERATOR}: only 0-dimensional CPU tensors")
def test_one_element_is_no_scalar_and_a_gpu_scalar_does_not_meet_cpu_tensors(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch.ones(2, device="cuda") + torch.ones(1)
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch.ones(2) + torch.tensor(1.0, device="cuda")
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch.ones(2).mul_(torch.tensor(1.0, device="cuda"))
    both = torch.tensor(1.0) + torch.tensor(2.0, device="cuda")
    assert both.is_cuda


@program(WRAPPER)
def test_a_product_names_the_argument_on_the_other_device(cuda: Gpu) -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=different("mat1", "cpu", "cuda:0", "wrapper_CUDA_addmm")):
        layer.cuda()(torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match=different("mat1", "cuda:0", "cpu", "wrapper_CUDA_addmm")):
        layer.cpu()(torch.zeros(1, 2, device="cuda"))
    gpu, host = torch.zeros(2, 2, device="cuda"), torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=different("mat2", "cpu", "cuda:0", "wrapper_CUDA_mm")):
        gpu @ host
    with pytest.raises(RuntimeError, match=different("mat2", "cuda:0", "cpu", "wrapper_CUDA_mm")):
        host @ gpu
    with pytest.raises(RuntimeError, match=different("mat2", "cpu", "cuda:0", "wrapper_CUDA_bmm")):
        torch.bmm(gpu[None], host[None])


@program(f"{WRAPPER}; aten/src/ATen/native/Embedding.cpp: embedding is index_select")
def test_an_embedding_with_indices_on_the_other_device(cuda: Gpu) -> None:
    table = nn.Embedding(4, 2)
    with pytest.raises(RuntimeError, match=different("index", "cpu", "cuda:0", "wrapper_CUDA__index_select")):
        table.cuda()(torch.tensor([1]))
    with pytest.raises(RuntimeError, match=different("index", "cuda:0", "cpu", "wrapper_CUDA__index_select")):
        table.cpu()(torch.tensor([1], device="cuda"))


@program(WRAPPER)
def test_a_loss_with_targets_on_the_other_device(cuda: Gpu) -> None:
    scores = torch.zeros(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match=different("target", "cpu", "cuda:0", "wrapper_CUDA_nll_loss_forward")):
        F.cross_entropy(scores, torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        F.binary_cross_entropy_with_logits(scores, torch.zeros(2, 3))


@program(WRAPPER)
def test_gathering_and_joining_with_the_other_device(cuda: Gpu) -> None:
    gpu, host = torch.zeros(2, 2, device="cuda"), torch.zeros(2, 2)
    index = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=different("index", "cpu", "cuda:0", "wrapper_CUDA_gather")):
        gpu.gather(0, index)
    with pytest.raises(RuntimeError, match=different("index", "cpu", "cuda:0", "wrapper_CUDA_scatter_add")):
        torch.scatter_add(gpu, 0, index, gpu)
    with pytest.raises(RuntimeError, match=different("tensors", "cpu", "cuda:0", "wrapper_CUDA_cat")):
        torch.cat([gpu, host])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.stack([gpu, host])
    with pytest.raises(RuntimeError, match=different("index", "cpu", "cuda:0", "wrapper_CUDA__index_select")):
        gpu.index_select(0, torch.tensor([0]))


@program("aten/src/ATen/native/Convolution.cpp: check_input_same_type_as_parameters")
def test_a_convolution_names_the_types(cuda: Gpu) -> None:
    layer = nn.Conv2d(1, 1, 1)
    text = r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\) should be the same"
    with pytest.raises(RuntimeError, match=text):
        layer(torch.zeros(1, 1, 2, 2, device="cuda"))
    # Which one depends on the CPU's kernel: oneDNN's looks at types (with an H100: the other, as this is so small).
    text = (
        r"Input type \(torch.FloatTensor\) and weight type \(torch.cuda.FloatTensor\) should be the same|"
        r"Expected all tensors to be on the same device, but got weight is on cuda:0"
    )
    with pytest.raises(RuntimeError, match=text):
        layer.cuda()(torch.zeros(1, 1, 2, 2))
    low = torch.zeros(1, 1, 2, 2, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"Input type \(c10::Half\) and bias type \(float\) should be the same"):
        layer(low)
    text = r"Input type \(torch.cuda.HalfTensor\) and weight type \(torch.cuda.FloatTensor\) should be the same"
    with pytest.raises(RuntimeError, match=text):
        nn.Conv2d(1, 1, 1, bias=False).cuda()(low)


@program(WRAPPER)
def test_a_normalisation_with_weights_on_the_other_device(cuda: Gpu) -> None:
    x = torch.zeros(2, 4, device="cuda")
    with pytest.raises(RuntimeError, match=different("weight", "cpu", "cuda:0", "wrapper_CUDA__native_layer_norm")):
        nn.LayerNorm(4)(x)


@program("aten/src/ATen/native/LinearAlgebra.cpp: dtype checks of addmm")
def test_products_of_different_types_are_refused(cuda: Gpu) -> None:
    low, high = torch.zeros(2, 2, device="cuda", dtype=torch.float16), torch.zeros(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="have the same dtype"):
        low @ high
    with pytest.raises(RuntimeError, match="must have the same dtype, but got Half and Float"):
        nn.Linear(2, 2).cuda()(low)


@program("aten/src/ATen/native/TensorAdvancedIndexing.cpp; torch docs: Tensor indexing API")
def test_cpu_indices_may_index_gpu_tensors(cuda: Gpu) -> None:
    x = torch.arange(6.0, device="cuda").view(2, 3)
    assert x[:, torch.tensor([2, 0])].tolist() == [[2, 0], [5, 3]]
    assert x[torch.tensor([True, False])].tolist() == [[0, 1, 2]]
    assert x[x > 3].tolist() == [4, 5]
    assert x[[1, 0], [0, 2]].tolist() == [3, 2]
    assert x[torch.tensor([1], device="cuda")].is_cuda
    assert x[1, 2].is_cuda
    assert x[..., -1].tolist() == [2, 5]
    assert x[None, 0, ::2].tolist() == [[0, 2]]


@program("aten/src/ATen/native/TensorAdvancedIndexing.cpp: indices should be either on cpu or on the same device")
def test_gpu_indices_do_not_index_cpu_tensors(cuda: Gpu) -> None:
    text = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"
    with pytest.raises(RuntimeError, match=text):
        torch.arange(3)[torch.tensor([0], device="cuda")]
    with pytest.raises(RuntimeError, match=text):
        torch.arange(3.0)[torch.tensor([True, False, True], device="cuda")]


@program("torch/csrc/autograd/python_variable_indexing.cpp: copy_to for slices, index_put_ for indices")
def test_assignment_through_an_index(cuda: Gpu) -> None:
    x = torch.zeros(4, device="cuda")
    x[0] = 5
    x[1:3] = torch.tensor([1.0, 2.0])  # a slice is copied to, so the value may be on the CPU
    x[torch.tensor([3])] = 7.0
    x[x == 5] = torch.tensor(6.0)
    assert x.tolist() == [6, 1, 2, 7]
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        x[torch.tensor([0, 1], device="cuda")] = torch.tensor([1.0, 2.0])
    x[torch.tensor([0, 1])] = torch.tensor([3.0, 4.0], device="cuda")
    assert x.tolist() == [3, 4, 2, 7]
    x.index_put_((torch.tensor([0, 0], device="cuda"),), torch.ones(2, device="cuda"), accumulate=True)
    assert x[0].item() == 5


@program("CUDA runtime API: device-side assert; aten/src/ATen/native/cuda/IndexKernel.cu, NLLLoss.cu", fresh=True)
def test_an_index_out_of_bounds_is_a_device_side_assert(cuda: Gpu) -> None:
    x = torch.zeros(3, device="cuda")

    def read() -> None:
        taken = x[torch.tensor([5], device="cuda")]
        torch.cuda.synchronize()
        taken.cpu()

    with pytest.raises(torch.AcceleratorError, match="CUDA error: device-side assert triggered"):
        read()


@program("aten/src/ATen/native/cuda/NLLLoss.cu: CUDA_KERNEL_ASSERT on the target", fresh=True)
def test_a_label_out_of_range_is_a_device_side_assert(cuda: Gpu) -> None:
    scores = torch.zeros(2, 3, device="cuda")
    labels = torch.tensor([0, 3], device="cuda")

    def train() -> None:
        F.cross_entropy(scores, labels).item()

    with pytest.raises(torch.AcceleratorError, match="CUDA error: device-side assert triggered"):
        train()
