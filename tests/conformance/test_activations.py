"""What forward passes keep for backward, and when it is given back."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB, allocated, bytes_of, rounded
from tests.conformance.programs import program

DERIVATIVES = "tools/autograd/derivatives.yaml"
SIZE = 1 << 20


def kept_by(operation: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> int:
    """Bytes that an operation leaves allocated, its result included, where its input learns."""
    leaf = torch.rand(shape or (1024, 1024), device="cuda", requires_grad=True)
    x = leaf * 1.0  # no leaf, so that in-place operations are allowed
    return bytes_of(lambda: operation(x)).kept


@program(f"{DERIVATIVES}: what is saved is the input or the result, both there anyway")
def test_most_activations_keep_nothing_but_their_result(cuda: Gpu) -> None:
    output = SIZE * 4
    for operation in (F.relu, torch.sigmoid, torch.tanh, F.gelu, F.silu, torch.exp, lambda x: x + 1, lambda x: x * x):
        assert kept_by(operation) == output
    assert kept_by(F.relu_) == 0
    assert kept_by(lambda x: x.view(-1)) == 0


@program("aten/src/ATen/native/cuda/Dropout.cu: the mask is one byte per element")
def test_dropout_keeps_a_mask_of_bytes(cuda: Gpu) -> None:
    assert kept_by(lambda x: F.dropout(x, 0.5)) == SIZE * 4 + SIZE
    assert kept_by(lambda x: F.dropout(x.half(), 0.5)) == SIZE * 2 + SIZE
    assert kept_by(lambda x: F.dropout(x, 0.5, training=False)) == 0


@program("aten/src/ATen/native/cuda/layer_norm_kernel.cu: mean and rstd per row in float")
def test_layer_norm_keeps_two_numbers_per_row(cuda: Gpu) -> None:
    norm = nn.LayerNorm(1024).cuda()
    assert kept_by(norm) == SIZE * 4 + rounded(1024 * 4, 1024 * 4)


@program("aten/src/ATen/native/SoftMax.cpp, cuda/SoftMax.cu: backward uses the result")
def test_softmax_keeps_its_result(cuda: Gpu) -> None:
    assert kept_by(lambda x: F.softmax(x, -1)) == SIZE * 4
    assert kept_by(lambda x: F.log_softmax(x, -1)) == SIZE * 4
    with torch.autocast("cuda"):
        assert kept_by(lambda x: F.softmax(x.half(), -1)) == SIZE * 4


@program(f"{DERIVATIVES}: log_softmax, nll_loss_forward saves total_weight")
def test_cross_entropy_keeps_the_log_probabilities(cuda: Gpu) -> None:
    labels = torch.zeros(1024, dtype=torch.int64, device="cuda")
    assert kept_by(lambda x: F.cross_entropy(x, labels)) == SIZE * 4 + rounded(4, 4)


@program("aten/src/ATen/native/cuda/DilatedMaxPool2d.cu: indices are int64")
def test_max_pooling_keeps_indices_of_eight_bytes(cuda: Gpu) -> None:
    output = 16 * 16 * 32 * 32
    assert kept_by(lambda x: F.max_pool2d(x, 2), 16, 16, 64, 64) == output * 4 + output * 8
    assert kept_by(lambda x: F.avg_pool2d(x, 2), 16, 16, 64, 64) == output * 4


@program(f"{DERIVATIVES}: linear keeps its input and weight, which are there anyway")
def test_a_linear_layer_keeps_its_result(cuda: Gpu) -> None:
    layer = nn.Linear(1024, 512).cuda()
    assert kept_by(layer) == 1024 * 512 * 4
    with torch.autocast("cuda"):
        expected = 1024 * 512 * 2 + 1024 * 1024 * 2  # its result, and the input's copy in float16
        assert expected <= kept_by(lambda x: layer(x)) <= expected + (1024 * 512 + 512) * 2


@program("torch docs: torch.no_grad, torch.inference_mode: nothing is recorded")
def test_nothing_is_kept_without_gradients(cuda: Gpu) -> None:
    model = nn.Sequential(*[nn.Tanh() for _ in range(6)])  # no products, whose libraries take workspaces
    x = torch.rand(4096, 256, device="cuda", requires_grad=True)
    assert bytes_of(lambda: model(x)).kept == 6 * SIZE * 4
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            measured = bytes_of(lambda: model(x))
        assert measured.kept == SIZE * 4
        assert measured.peak == 2 * SIZE * 4


@program("torch docs: Tensor.backward: the graph is freed unless retain_graph=True")
def test_backward_frees_what_was_kept(cuda: Gpu) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    x = torch.rand(4096, 256, device="cuda")
    model(x).sum().backward()
    model.zero_grad()
    start = allocated()
    loss = model(x).sum()
    assert allocated() - start >= 2 * SIZE * 4
    loss.backward(retain_graph=True)
    gradients = sum(rounded(parameter.nbytes) for parameter in model.parameters())
    assert allocated() - start >= 2 * SIZE * 4 + gradients
    loss.backward()
    assert allocated() - start == gradients + rounded(4)


@program("PyTorch FAQ: Don't accumulate history across your training loop")
def test_a_sum_of_losses_keeps_every_graph(cuda: Gpu) -> None:
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    start = allocated()
    total = torch.zeros((), device="cuda")
    for _ in range(4):
        total = total + weight.exp().sum()
    assert allocated() - start >= 4 * SIZE * 4
    del total
    numbers = sum(weight.exp().sum().item() for _ in range(4))
    assert numbers > 0
    total = sum(weight.exp().sum().detach() for _ in range(4))
    assert allocated() - start == rounded(total.nbytes)


@program("PyTorch FAQ: My model reports 'cuda runtime error(2): out of memory'; Python scope of a loop's variables")
def test_the_last_result_of_a_loop_lives_on(cuda: Gpu) -> None:
    x = torch.ones(SIZE, device="cuda")
    start = allocated()
    for _ in range(3):
        result = x * 2
    assert allocated() - start == SIZE * 4
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        result = x * 2
    assert torch.cuda.max_memory_allocated() - start == 2 * SIZE * 4  # the old one lives until the new one is there
    del result
    assert allocated() == start


@program("torch docs: torch.autograd.graph.save_on_cpu, saved_tensors_hooks")
def test_saved_tensors_can_be_kept_on_the_host(cuda: Gpu) -> None:
    x = torch.rand(SIZE, device="cuda", requires_grad=True)

    def forward() -> torch.Tensor:
        return (x.exp().sin() * 2).exp()

    plain = bytes_of(forward).kept
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        measured = bytes_of(forward)
    assert (plain, measured.kept) == (2 * SIZE * 4, SIZE * 4)  # each exp keeps its result
    forward().sum().backward()
    expected, x.grad = x.grad, None
    with torch.autograd.graph.save_on_cpu():
        forward().sum().backward()
    assert torch.equal(x.grad, expected)
    packed: list[torch.device] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.device)
        return tensor.detach()  # the result itself would keep its own graph alive for ever

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x.exp()
    assert packed == [torch.device("cuda", 0)]


@program("torch docs: Optimizer.zero_grad(set_to_none=True)")
def test_gradients_take_and_give_back_memory(cuda: Gpu) -> None:
    model = nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 1024, device="cuda")
    model(x).sum().backward()
    optimizer.zero_grad()
    start = allocated()
    model(x).sum().backward()
    assert allocated() - start == 4 * MIB
    optimizer.zero_grad(set_to_none=False)
    assert allocated() - start == 4 * MIB
    assert model.weight.grad.abs().sum().item() == 0
    optimizer.zero_grad()
    assert model.weight.grad is None
    assert allocated() == start


@program(f"{DERIVATIVES}: embedding_dense_backward makes a gradient of the whole table")
def test_an_embeddings_gradient_is_dense(cuda: Gpu) -> None:
    table = nn.Embedding(10_000, 64).cuda()
    start = allocated()
    table(torch.tensor([1, 2], device="cuda")).sum().backward()
    assert allocated() - start == rounded(table.weight.nbytes)


@program("PyTorch CUDA semantics notes; nn.Module: parameters and buffers are all a module keeps")
def test_a_models_bytes_are_its_parameters_and_buffers(cuda: Gpu) -> None:
    start = allocated()
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(1000, 10)).cuda()

    def sizes() -> list[int]:
        return [tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]]

    assert allocated() - start == rounded(*sizes())
    model.half()
    assert allocated() - start == rounded(*sizes())
    model.cpu()
    assert allocated() == start
