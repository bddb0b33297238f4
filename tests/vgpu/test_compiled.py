"""What compiled code costs: kernels that are joined, bytes that pass through memory, compilations, replays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vgpu

SIZE = 1 << 22


def kernels(gpu: vgpu.VirtualGPU, run: object) -> list[object]:
    torch.cuda.synchronize()
    before = len(gpu.timeline)
    run()  # type: ignore[operator]
    torch.cuda.synchronize()
    return list(gpu.timeline[before:])


def seconds(gpu: vgpu.VirtualGPU, run: object) -> float:
    torch.cuda.synchronize()
    begin = gpu.now()
    run()  # type: ignore[operator]
    torch.cuda.synchronize()
    return gpu.now() - begin


def test_neighbours_are_one_kernel_that_reads_and_writes_what_is_outside(gpu: vgpu.VirtualGPU) -> None:
    x, y = torch.rand(SIZE, device="cuda"), torch.rand(SIZE, device="cuda")
    function = torch.compile(lambda x, y: torch.sigmoid(x * 2 + y).neg())
    (kernel,) = kernels(gpu, lambda: function(x, y))
    assert kernel.name == "triton_fused_mul_add_sigmoid_neg"  # type: ignore[attr-defined]
    assert kernel.bytes == 3 * x.nbytes  # type: ignore[attr-defined]


def test_a_joined_kernel_finds_in_the_cache_what_a_single_one_does() -> None:
    with vgpu.attach("H100") as gpu:
        x = torch.rand(SIZE, device="cuda")
        x * 2
        torch.compile(lambda x: x * 2)(x)
        torch.cuda.synchronize()
        single, joined = gpu.timeline[-2:]
        assert joined.name.startswith("triton_fused")
        assert (joined.bytes, joined.seconds) == (single.bytes, pytest.approx(single.seconds))
        assert joined.bytes / joined.seconds > gpu.spec.bandwidth_bytes_per_second


def test_what_outlives_the_region_is_written(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(SIZE, device="cuda")

    @torch.compile
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = x * 2
        return inner, inner + 1

    kept = []
    (kernel,) = kernels(gpu, lambda: kept.append(both(x)))
    assert kernel.bytes == 3 * x.nbytes  # type: ignore[attr-defined]


def test_in_place_reads_and_writes_the_same_memory(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(SIZE, device="cuda")
    (kernel,) = kernels(gpu, lambda: torch.compile(lambda x: x.mul_(2).add_(1))(x))
    assert kernel.bytes == 2 * x.nbytes  # type: ignore[attr-defined]


def test_a_reduction_joins_and_what_it_leaves_does_too(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(1024, 4096, device="cuda")
    (kernel,) = kernels(gpu, lambda: torch.compile(lambda x: (x * x).mean(dim=1).sqrt())(x))
    assert kernel.bytes == pytest.approx(x.nbytes, rel=0.01)  # type: ignore[attr-defined]


def test_products_stay_kernels_of_their_own(gpu: vgpu.VirtualGPU) -> None:
    x, w = torch.rand(64, 64, device="cuda"), torch.rand(64, 64, device="cuda")
    torch.mm(x, w)
    launched = kernels(gpu, lambda: torch.compile(lambda x, w: torch.relu((x + 1) @ w - 1))(x, w))
    assert [kernel.name for kernel in launched] == [  # type: ignore[attr-defined]
        "triton_fused_add", "aten::mm", "triton_fused_sub_relu",
    ]  # fmt: skip


def test_backward_of_compiled_code_is_joined_and_other_code_is_not(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(SIZE, device="cuda", requires_grad=True)

    def step(function: object) -> list[str]:
        x.grad = None
        launched = kernels(gpu, lambda: (function(x) * 3).sum().backward())  # type: ignore[operator]
        return [kernel.name for kernel in launched]  # type: ignore[attr-defined]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2).exp()

    names = step(torch.compile(function))
    assert names[:2] == ["triton_fused_mul_tanh_exp", "aten::mul"]
    assert [name for name in names if name.startswith("triton")] == [names[0], "triton_fused_mul_tanh_backward"]
    assert len(names) == len(step(function)) - 4


def test_an_error_in_backward_ends_the_region(gpu: vgpu.VirtualGPU) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("in backward")

    x = torch.rand(SIZE, device="cuda", requires_grad=True)
    out = torch.compile(lambda x: Failing.apply(x * 2).exp())(x)
    with pytest.raises(RuntimeError, match="in backward"):
        out.sum().backward()
    launched = kernels(gpu, lambda: torch.rand(SIZE, device="cuda") * 2 + 1)
    names = [kernel.name for kernel in launched]  # type: ignore[attr-defined]
    assert names[-2:] == ["aten::mul", "aten::add"]


def test_integers_become_dynamic_like_sizes(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(8, device="cuda")
    function = torch.compile(lambda x, step: x * step + 1)
    took = [seconds(gpu, lambda n=n: function(x, n)) for n in range(12)]  # type: ignore[misc]
    assert [duration > 1.0 for duration in took] == [True, True, *[False] * 10]


def test_compilation_takes_the_host_time_once_and_again_for_the_first_other_shape(gpu: vgpu.VirtualGPU) -> None:
    function = torch.compile(lambda x: x * 2 + 1)
    took = [seconds(gpu, lambda n=n: function(torch.ones(n, device="cuda"))) for n in (8, 8, 9, 10, 8)]  # type: ignore[misc]
    assert [duration > 1.0 for duration in took] == [True, False, True, False, False]


def test_reduce_overhead_launches_once(gpu: vgpu.VirtualGPU) -> None:
    weights = [torch.rand(16, 16, device="cuda") for _ in range(40)]

    def chain(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    x = torch.rand(16, 16, device="cuda")
    usual, replayed = torch.compile(chain), torch.compile(chain, mode="reduce-overhead")
    for function in (usual, replayed):
        for _ in range(4):
            function(x)
    assert seconds(gpu, lambda: replayed(x)) < 0.7 * seconds(gpu, lambda: usual(x))
    assert seconds(gpu, lambda: usual(x)) < seconds(gpu, lambda: chain(x))


@pytest.mark.parametrize(
    ("setting", "warns", "recorded"),
    [
        ({}, True, True), ({"cudagraph_dynamic_shape_warn_limit": None}, False, True),
        ({"cudagraph_skip_dynamic_graphs": True}, False, False), ({"cudagraph_capture_sizes": [5]}, False, False),
        ({"cudagraph_dynamic_shape_rerecord_limit": 3}, False, False),
    ],
)  # fmt: skip
def test_each_size_is_a_graph_of_its_own(
    gpu: vgpu.VirtualGPU, monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], *, warns: bool, recorded: bool
) -> None:
    """torch/_inductor/cudagraph_trees.py: a warning after nine sizes, and what chooses among them."""
    from torch._inductor import config, cudagraph_utils

    if not all(hasattr(config.triton, name) for name in setting):
        pytest.skip("this version of PyTorch has no such setting")
    texts: list[str] = []
    monkeypatch.setattr(cudagraph_utils.cudagraphs_log, "warning", texts.append)
    function = torch.compile(lambda x: x * 2, mode="reduce-overhead", dynamic=True)

    x = torch.ones(12, device="cuda")
    with config.patch({f"triton.{name}": value for name, value in setting.items()}):
        for size in range(2, 12):
            function(torch.ones(size, device="cuda"))
        calls = [seconds(gpu, lambda: function(x)) for _ in range(3)]  # two to warm up, if it is a new graph
    assert [text.partition("We have observed ")[2][:16] for text in texts] == ["9 distinct sizes"] * warns
    assert (calls[2] < calls[1] - 1e-6) == recorded
    assert abs(calls[1] - calls[0]) < 1e-6


def test_a_graph_is_one_launch_for_the_host(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(16, device="cuda")

    def chain() -> None:
        for _ in range(200):
            x.mul_(1.0)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    begin = gpu.now()
    graph.replay()
    assert gpu.now() - begin < 2e-5
    assert len(kernels(gpu, graph.replay)) == 200
    assert seconds(gpu, graph.replay) < 0.6 * seconds(gpu, chain)


class Block(nn.Module):
    """GPT-2's, as nanoGPT writes it without fused attention."""

    def __init__(self, width: int = 768, heads: int = 12, context: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        x = x + self.projection(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))
        return out


class Gpt(nn.Module):
    """GPT-2 with 124 million parameters."""

    def __init__(self, vocabulary: int = 50304, width: int = 768) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@pytest.mark.night
@pytest.mark.parametrize(("compiled", "published"), [(False, 0.250), (True, 0.135)])
def test_nanogpt_takes_as_long_as_its_readme_tells(*, compiled: bool, published: float) -> None:
    """README of nanoGPT, "efficiency notes": 250 ms an iteration on an A100, 135 ms with torch.compile (PyTorch 2.0).

    Of `bench.py`: batches of 12 times 1,024 tokens, bfloat16, fused AdamW.
    """
    with vgpu.attach("A100-40GB", values=False) as gpu:
        torch.set_float32_matmul_precision("high")
        model = Gpt().cuda()
        run = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(50304, (12, 1024), device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(tokens, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        step()
        took = seconds(gpu, step)
        torch.set_float32_matmul_precision("highest")
    assert took == pytest.approx(published, rel=0.25)
