"""The simulated flash-attn beside its functions: padding, rotary embeddings, modules, compilers, graphs, shapes only.

Expectations: the modules of Dao-AILab/flash-attention 2.8 (arguments, shapes), and plain PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vgpu
from vgpu.runtime.outputs import last_line


@pytest.fixture(autouse=True)
def ampere() -> Iterator[vgpu.VirtualGPU]:
    with vgpu.attach("A100-80GB") as attached:
        yield attached


def modules(name: str) -> Any:
    return importlib.import_module(f"flash_attn.{name}")


def test_padding_is_taken_out_and_put_back() -> None:
    padding = modules("bert_padding")
    hidden = torch.randn(3, 5, 2, 4, device="cuda", requires_grad=True)
    lengths = [2, 5, 3]
    mask = torch.arange(5, device="cuda")[None] < torch.tensor(lengths, device="cuda")[:, None]
    tokens, indices, starts, longest, used = padding.unpad_input(hidden, mask)
    assert torch.equal(tokens, torch.cat([hidden[row, :length] for row, length in enumerate(lengths)]))
    assert (starts.tolist(), starts.dtype, longest, used.tolist()) == ([0, 2, 7, 10], torch.int32, 5, lengths)
    padded = padding.pad_input(tokens, indices, 3, 5)
    assert torch.equal(padded, hidden * mask[:, :, None, None])
    (gradient,) = torch.autograd.grad(padded, hidden, torch.ones_like(padded))
    assert torch.equal(gradient, mask[:, :, None, None].expand_as(hidden).float())
    both = torch.tensor([[1, 3, 0, 0, 0], [5, 0, 0, 0, 0], [2, 1, 0, 0, 0]], device="cuda")
    tokens, _, starts, longest = padding.unpad_input_for_concatenated_sequences(hidden, both)
    assert (len(tokens), starts.tolist(), longest) == (12, [0, 1, 4, 9, 11, 12], 5)
    rows, residual = padding.index_first_axis_residual(hidden.flatten(0, 1), indices)
    (gradient,) = torch.autograd.grad(rows.sum() + (2.0 * residual).sum(), hidden)
    assert torch.equal(gradient, 2.0 + mask[:, :, None, None].expand_as(hidden).float())


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary_kernel_equals_pytorchs_operations(pairs: bool) -> None:
    rotary = modules("layers.rotary")
    torch.manual_seed(0)
    x = torch.randn(2, 7, 3, 20, device="cuda", requires_grad=True)
    angle = torch.randn(16, 6, device="cuda")
    cos, sin = angle.cos(), angle.sin()
    offsets = torch.tensor([0, 4], device="cuda")
    output = rotary.apply_rotary_emb(x, cos, sin, interleaved=pairs, seqlen_offsets=offsets)
    expected = torch.cat([
        rotary.apply_rotary_emb_torch(x[row : row + 1], cos[first : first + 7], sin[first : first + 7], pairs)
        for row, first in enumerate((0, 4))
    ])  # fmt: skip
    torch.testing.assert_close(output, expected)
    part = torch.complex(x[1, 2, 0, 1 if not pairs else 2], x[1, 2, 0, 7 if not pairs else 3])
    turned = part * torch.complex(cos[6, 1], sin[6, 1])
    torch.testing.assert_close(output[1, 2, 0, 1 if not pairs else 2], turned.real)
    gradient = torch.randn_like(output)
    actual, wanted = (torch.autograd.grad(result, x, gradient)[0] for result in (output, expected))
    torch.testing.assert_close(actual, wanted)
    packed = rotary.apply_rotary_emb(
        x.flatten(0, 1), cos, sin, interleaved=pairs, seqlen_offsets=offsets, max_seqlen=7,
        cu_seqlens=torch.tensor([0, 7, 14], dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    assert torch.equal(packed, output.flatten(0, 1))


def options_of(kind: str) -> dict[str, Any]:
    return {
        "plain": {},
        "grouped": {"num_heads_kv": 2},
        "rotary": {"rotary_emb_dim": 16},
        "rotary grouped pairs": {"num_heads_kv": 2, "rotary_emb_dim": 16, "rotary_emb_interleaved": True},
        "convolution": {"dwconv": True},
        "cross": {"cross_attn": True, "causal": False},
    }[kind]


@pytest.mark.parametrize("kind", ["plain", "grouped", "rotary", "rotary grouped pairs", "convolution", "cross"])
def test_attention_module_equals_itself_without_flash(kind: str) -> None:
    """The package computes the same with PyTorch's operations if `use_flash_attn` is off."""
    torch.manual_seed(3)
    made = {"embed_dim": 64, "num_heads": 4, "causal": True, **options_of(kind), "device": "cuda"}
    flash, plain = (modules("modules.mha").MHA(**made, use_flash_attn=on).half().cuda() for on in (True, False))
    plain.load_state_dict(flash.state_dict())
    x = torch.randn(2, 33, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    outputs = [module(x) for module in (flash, plain)]
    torch.testing.assert_close(*outputs, rtol=0, atol=4e-3)
    gradient = torch.randn_like(x)
    torch.testing.assert_close(*(torch.autograd.grad(output, x, gradient)[0] for output in outputs), rtol=0, atol=1e-2)


@pytest.mark.parametrize("kind", ["plain", "grouped", "rotary", "rotary grouped pairs"])
def test_generation_with_a_cache_equals_the_whole_sequence(kind: str) -> None:
    torch.manual_seed(4)
    made = {"embed_dim": 64, "num_heads": 4, "causal": True, **options_of(kind), "device": "cuda", "layer_idx": 0}
    module = modules("modules.mha").MHA(**made, use_flash_attn=True).half()
    x = torch.randn(2, 12, 64, device="cuda", dtype=torch.float16)
    params = SimpleNamespace(
        max_seqlen=16, max_batch_size=2, seqlen_offset=0, batch_size_offset=0, key_value_memory_dict={},
        lengths_per_sample=None,
    )  # fmt: skip
    with torch.no_grad():
        whole = module(x)
        parts = []
        for first, last in ((0, 7), (7, 8), (8, 9), (9, 12)):
            params.seqlen_offset = first
            parts.append(module(x[:, first:last], inference_params=params))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=4e-3)


def test_alibi_slopes_are_geometric() -> None:
    slopes = modules("modules.mha").get_alibi_slopes
    assert slopes(8) == [2.0 ** -(number + 1) for number in range(8)]
    assert slopes(12)[8:] == pytest.approx([2.0 ** -(number + 0.5) for number in range(4)])


def test_compiled_code_holds_the_kernels_and_breaks_at_the_cache() -> None:
    """The package's operators are part of a graph, its C++ function for caches is not."""
    package = importlib.import_module("flash_attn")

    def attend(qkv: torch.Tensor) -> Any:
        return package.flash_attn_qkvpacked_func(qkv, causal=True).sin()

    def decode(q: torch.Tensor, cache: torch.Tensor) -> Any:
        return package.flash_attn_with_kvcache(q.sin(), cache, cache, cache_seqlens=5).cos()

    qkv = torch.randn(2, 33, 3, 4, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    compiled, eager = torch.compile(attend, fullgraph=True)(qkv), attend(qkv)
    assert torch.equal(compiled, eager)
    gradient = torch.randn_like(eager)
    assert torch.equal(*(torch.autograd.grad(result, qkv, gradient)[0] for result in (compiled, eager)))
    q, cache = torch.randn(2, 1, 4, 64, device="cuda").half(), torch.randn(2, 8, 4, 64, device="cuda").half()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(decode, fullgraph=True)(q, cache)
    assert torch.equal(torch.compile(decode)(q, cache), decode(q, cache))


def test_a_captured_graph_attends_anew_and_draws_anew() -> None:
    package = importlib.import_module("flash_attn")
    q = torch.randn(1, 16, 2, 32, device="cuda").half()
    package.flash_attn_func(q, q, q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain = package.flash_attn_func(q, q, q)
        dropped = package.flash_attn_func(q, q, q, dropout_p=0.5)
    drawn = []
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        graph.replay()
        assert torch.equal(plain, package.flash_attn_func(q, q, q))
        before = dropped.clone()
        graph.replay()
        drawn.append(torch.equal(before, dropped))
    assert drawn == [False, False]


def test_shapes_are_enough() -> None:
    """The same calls without values: shapes, kernels, memory and time of forward and backward are the same."""
    seen = []
    for values in (True, False):
        with vgpu.attach("H100", values=values) as gpu:
            package = importlib.import_module("flash_attn")
            q = torch.ones(2, 64, 4, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k = torch.ones(2, 64, 2, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            starts = torch.arange(0, 129, 64, dtype=torch.int32, device="cuda")
            output = package.flash_attn_func(q, k, k, causal=True, dropout_p=0.1)
            packed = package.flash_attn_varlen_func(
                *(x.flatten(0, 1) for x in (q, k, k)), starts, starts, 64, 64, deterministic=True
            )
            (output.sum() + packed.sum()).backward()
            keys, new = k.detach(), (q[:, :, :2], q[:, :, 2:])
            cached, lse = package.flash_attn_with_kvcache(q, keys, keys, *new, cache_seqlens=0, return_softmax_lse=True)
            assert q.grad is not None
            shapes = [tuple(x.shape) for x in (output, packed, cached, lse, q.grad)]
            kernels = [(kernel.name, kernel.seconds) for kernel in gpu.timeline]
            seen.append((shapes, kernels, torch.cuda.max_memory_allocated()))
    assert seen[0] == seen[1]
    assert seen[0][0] == [(2, 64, 4, 32), (128, 4, 32), (2, 64, 4, 32), (2, 4, 64), (2, 64, 4, 32)]


def test_streams_and_autocast() -> None:
    """A race with a side stream is found; under autocast float32 operands are refused, as nobody casts them."""
    package = importlib.import_module("flash_attn")
    side = torch.cuda.Stream()
    q = torch.randn(1, 16, 2, 32, device="cuda").half()
    q.add_(1.0)
    with pytest.warns(vgpu.StreamHazard), torch.cuda.stream(side):
        package.flash_attn_func(q, q, q)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        package.flash_attn_func(*[q.float()] * 3)


def test_kernels_run_where_the_tensors_are() -> None:
    with vgpu.attach("A100-80GB", gpus=2) as gpu:
        q = torch.randn(1, 16, 2, 32, device="cuda:1").half()
        output = importlib.import_module("flash_attn").flash_attn_func(q, q, q)
        assert output.device == torch.device("cuda", 1)
        kernels = [[kernel.name for kernel in each.timeline] for each in gpu.machine.gpus]
        assert ("flash_fwd_kernel" in kernels[0], "flash_fwd_kernel" in kernels[1]) == (False, True)


def test_a_run_says_that_the_package_is_simulated(ampere: vgpu.VirtualGPU) -> None:
    assert "flash_attn" not in last_line(ampere)
    importlib.import_module("flash_attn")
    assert last_line(ampere).endswith("modelled, not measured; flash_attn is simulated")
