"""Autocast by CUDA's lists: every operation of each list, and the type it gives."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import nn

from tests.conformance import autocast_lists as lists
from tests.conformance.machine import Gpu
from tests.conformance.measure import rounded
from tests.conformance.programs import program

AMP = "torch docs: torch.amp"
MODE = "aten/src/ATen/autocast_mode.h"
# Names that appear in the header and are reached through others, or not from Python at all.
_REACHED_OTHERWISE = {
    "_thnn_fused_lstm_cell": "LSTM", "_thnn_fused_gru_cell": "GRU", "native_layer_norm": "layer_norm",
    "frobenius_norm": "norm", "linalg_vecdot": "linalg_vecdot",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention", "rms_norm": "rms_norm",
}  # fmt: skip


def types(calls: dict[str, lists.Call]) -> dict[str, torch.dtype]:
    """The result's type of every call, under whatever autocast is on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names are on the lists too
        results = {name: call() for name, call in calls.items()}
    return {name: (value[0] if isinstance(value, tuple) else value).dtype for name, value in results.items()}


@program(f"{AMP}: CUDA Ops that can autocast to float16; {MODE}: AT_FORALL_LOWER_PRECISION_FP")
def test_the_low_precision_list(cuda: Gpu) -> None:
    assert set(types(lists.lower()).values()) == {torch.float32}
    with torch.autocast("cuda"):
        dtypes = types(lists.lower())
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.float16} == {}


@program(f"{AMP}: dtype=torch.bfloat16", capability=(8, 0))
def test_the_low_precision_list_in_bfloat16(cuda: Gpu) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        dtypes = types(lists.lower())
    # cuDNN's recurrent layers take float16 whatever is asked for (aten/src/ATen/cudnn/AutocastRNN.cpp).
    recurrent = dict.fromkeys(("LSTM", "GRU", "RNN"), torch.float16)
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.bfloat16} == recurrent


@program(f"{AMP}: CUDA Ops that can autocast to float32; {MODE}: AT_FORALL_FP32")
def test_the_float32_list(cuda: Gpu) -> None:
    with torch.autocast("cuda"):
        dtypes = types(lists.to_float32())
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.float32} == {}


@program(f"{MODE}: AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE")
def test_the_list_that_gets_a_float32_result(cuda: Gpu) -> None:
    with torch.autocast("cuda"):
        dtypes = types(lists.float32_result())
        x = torch.ones(4, 4, device="cuda", dtype=torch.float16)
        results = [x.sum(dtype=torch.float16), x.softmax(-1, dtype=torch.float16), x.cumsum(0, dtype=torch.float16)]
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.float32} == {}
    assert {tensor.dtype for tensor in results} == {torch.float16}


@program(f"{AMP}: CUDA Ops that promote to the widest input type; {MODE}: AT_FORALL_PROMOTE")
def test_the_promoting_list(cuda: Gpu) -> None:
    with torch.autocast("cuda"):
        dtypes = types(lists.promote()) | types(lists.builtin_promotion())
        low = torch.ones(4, device="cuda", dtype=torch.float16)
        assert torch.dot(low, low).dtype == torch.atan2(low, low).dtype == torch.float16
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.float32} == {}


@program(f"{AMP}: Op Eligibility: unlisted ops run in whatever type they are given")
def test_unlisted_operations_keep_their_type(cuda: Gpu) -> None:
    with torch.autocast("cuda"):
        dtypes = types(lists.untouched())
        table = nn.Embedding(4, 4).cuda()
        assert table(torch.tensor([1], device="cuda")).dtype == torch.float32
        assert (torch.ones(2, device="cuda") * 2).dtype == torch.float32
    assert {name: dtype for name, dtype in dtypes.items() if dtype != torch.float16} == {}


@program(f"{MODE} as shipped with this PyTorch: every name of its lists is covered by this suite")
def test_the_lists_are_complete(cuda: Gpu) -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    names: set[str] = set()
    for block in ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"):
        text = re.search(rf"#define AT_FORALL_{block}\(_\)(.*?)\n\n", header.read_text(), re.DOTALL)
        assert text is not None
        names |= set(re.findall(r"_\((\w+)", text.group(1)))
    covered = {*lists.lower(), *lists.to_float32(), *lists.float32_result(), *lists.promote()}
    assert names - covered - _REACHED_OTHERWISE.keys() == set()
    if "rms_norm" in names:  # newer than PyTorch 2.11
        with torch.autocast("cuda"):
            assert F.rms_norm(torch.ones(4, device="cuda").half(), (4,)).dtype == torch.float32


@program(f"{AMP}: Prefer binary_cross_entropy_with_logits over binary_cross_entropy; autocast_mode.cpp: ban")
def test_binary_cross_entropy_is_banned(cuda: Gpu) -> None:
    share = torch.full((4,), 0.5, device="cuda")
    text = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
    with torch.autocast("cuda"):
        for low, high in ((share.half(), share.half()), (share, share)):
            with pytest.raises(RuntimeError, match=text):
                F.binary_cross_entropy(low, high)
        with pytest.raises(RuntimeError, match=text):
            nn.BCELoss()(share, share)
        with torch.autocast("cuda", enabled=False):
            assert F.binary_cross_entropy(share, share).dtype == torch.float32


@program(f"{AMP}: Op Eligibility: only floating-point CUDA tensors other than float64")
def test_what_autocast_does_not_touch(cuda: Gpu) -> None:
    x = torch.ones(4, 4, device="cuda")
    host = torch.ones(4, 4)
    with torch.autocast("cuda"):
        assert (x.double() @ x.double()).dtype == torch.float64
        assert (host @ host).dtype == torch.float32
        assert x.int().sum().dtype == torch.int64
        assert x.double().exp().dtype == torch.float64
        assert (x.half().double().softmax(-1)).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
        assert (host @ host).dtype == torch.bfloat16


@program(f"{AMP}: Op Eligibility: in-place variants and out= are not autocast")
def test_in_place_and_out_variants_are_not_autocast(cuda: Gpu) -> None:
    x = torch.ones(4, 4, device="cuda")
    with torch.autocast("cuda"):
        assert x.addmm(x, x).dtype == torch.float16
        assert x.clone().addmm_(x, x).dtype == torch.float32
        out = torch.empty(4, 4, device="cuda")
        assert torch.mm(x, x, out=out).dtype == torch.float32
        with pytest.raises(RuntimeError):
            torch.mm(x, x, out=torch.empty(4, 4, device="cuda", dtype=torch.float16))
        low = x.half()
        with pytest.raises(RuntimeError, match="dtype"):
            x.clone().addmm_(low, x)


@program(AMP)
def test_an_inner_block_switches_autocast_off_and_on(cuda: Gpu) -> None:
    x = torch.ones(4, 4, device="cuda")
    with torch.autocast(device_type="cuda"):
        low = torch.mm(x, x)
        assert low.dtype == torch.float16
        with torch.autocast(device_type="cuda", enabled=False):
            assert torch.mm(x, low.float()).dtype == torch.float32
            assert not torch.is_autocast_enabled("cuda")
            with torch.autocast("cuda"):
                assert torch.mm(x, low).dtype == torch.float16
            with pytest.raises(RuntimeError, match="dtype"):
                torch.mm(x, low)
        assert torch.mm(x, low.float()).dtype == torch.float16
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.mm(x, low).dtype == torch.bfloat16
        assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.mm(x, x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")


@program(f"{AMP}: autocast as a decorator; torch.cuda.amp.autocast is deprecated")
def test_both_spellings_and_the_decorator(cuda: Gpu) -> None:
    x = torch.ones(4, 4, device="cuda")

    @torch.autocast("cuda")
    def product() -> torch.Tensor:
        return x @ x

    assert product().dtype == torch.float16
    with pytest.warns(FutureWarning, match=r"torch.cuda.amp.autocast\(args...\)` is deprecated"):
        old = torch.cuda.amp.autocast()
    with old:
        assert (x @ x).dtype == torch.float16
    with torch.amp.autocast("cuda", torch.float16):
        assert (x @ x).dtype == torch.float16
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        torch.autocast(torch.device("cuda"))
    with torch.autocast(x.device.type):
        assert (x @ x).dtype == torch.float16


@program(f"{AMP}: backward ops run in the type that autocast chose for the forward ops")
def test_gradients_have_their_parameters_type(cuda: Gpu) -> None:
    layer = nn.Linear(4, 4).cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    dtypes = []
    with torch.autocast("cuda"):
        y = layer(x)
        y.register_hook(lambda gradient: dtypes.append(gradient.dtype))
        loss = F.mse_loss(y, torch.zeros(2, 4, device="cuda"))
    assert (y.dtype, loss.dtype) == (torch.float16, torch.float32)
    loss.backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == x.grad.dtype == torch.float32
    assert dtypes == [torch.float16]
    assert layer.weight.dtype == torch.float32


@program(f"{AMP}; autocast_mode.cpp: cached_cast")
def test_a_weights_cast_is_cached_until_the_block_ends(cuda: Gpu) -> None:
    weight = torch.ones(512, 512, device="cuda", requires_grad=True)
    x = torch.ones(1, 512, device="cuda", requires_grad=True)  # so that the product keeps the weight it used

    def growth(*, cache: bool, learns: bool = True) -> list[int]:
        weight.requires_grad_(learns)
        sizes = []
        with torch.autocast("cuda", cache_enabled=cache):
            torch.mm(x, weight)
            sizes.append(torch.cuda.memory_allocated())
            results = [torch.mm(x, weight) for _ in range(2)]
            sizes.append(torch.cuda.memory_allocated())
            assert results[0].dtype == torch.float16
            results.clear()
        sizes.append(torch.cuda.memory_allocated())
        return sizes

    growth(cache=True)
    low_bytes = weight.numel() * 2
    first, later, after = growth(cache=True)
    assert first - after == low_bytes + rounded(1024)  # kept from the first use on, as is that of x
    assert later - first < low_bytes  # and used again
    first, later, after = growth(cache=False)
    assert first - after < low_bytes
    assert later - after >= 2 * low_bytes  # each result keeps a copy of its own for the backward pass
    first, _, after = growth(cache=True, learns=False)
    assert first - after < low_bytes  # only leaves that learn are cached


@program(f"{AMP}: torch.amp.custom_fwd, custom_bwd")
def test_custom_functions_choose_their_type(cuda: Gpu) -> None:
    class Plain(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, a, b):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            a, b = ctx.saved_tensors
            made = gradient.mm(b.t())
            types.append((torch.is_autocast_enabled("cuda"), made.dtype))
            return made, a.t().mm(gradient)

    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            types.append((torch.is_autocast_enabled("cuda"), x.dtype))
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            types.append((torch.is_autocast_enabled("cuda"), gradient.dtype))
            return gradient * 2

    types: list[tuple[bool, torch.dtype]] = []
    a = torch.ones(4, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        product = Plain.apply(a, a)
    assert product.dtype == torch.float16
    product.sum().backward()
    assert types == [(True, torch.float16)]
    types.clear()
    low = torch.ones(4, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        result = InFloat32.apply(low)
    result.sum().backward()
    assert types == [(False, torch.float32), (False, torch.float32)]
    assert low.grad.dtype == torch.float16


@program(f"{AMP}: autocast with no_grad and inference_mode")
def test_autocast_without_gradients(cuda: Gpu) -> None:
    layer = nn.Linear(4, 4).cuda()
    x = torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        with torch.no_grad():
            assert layer(x).dtype == torch.float16
        y = layer(x)
        assert y.requires_grad  # a cast made without gradients must not be used with them
    y.float().sum().backward()
    assert layer.weight.grad is not None
    with torch.inference_mode(), torch.autocast("cuda"):
        assert layer(x).dtype == torch.float16
        assert F.layer_norm(layer(x), (4,)).dtype == torch.float32


@program(f"{AMP}: typical mixed precision training; the lists of {MODE}")
def test_types_through_a_transformer_block(cuda: Gpu) -> None:
    dtypes: dict[str, torch.dtype] = {}
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).cuda()
    for name, module in block.named_modules():
        module.register_forward_hook(
            lambda _, args, out, name=name: dtypes.update({name: (out[0] if isinstance(out, tuple) else out).dtype})
        )
    with torch.autocast("cuda"):
        block(torch.randn(2, 5, 16, device="cuda"))
    assert dtypes["self_attn"] == dtypes["linear1"] == dtypes["linear2"] == torch.float16
    assert dtypes["norm1"] == dtypes["norm2"] == torch.float32
    assert dtypes["dropout1"] == torch.float16


@program(f"{AMP}: convolutions with batch normalisation")
def test_types_through_a_convolutional_network(cuda: Gpu) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.cuda()
    with torch.autocast("cuda"):
        x = torch.randn(2, 3, 8, 8, device="cuda")
        for layer in network:
            x = layer(x)
            assert x.dtype == torch.float16
        loss = F.cross_entropy(x, torch.zeros(2, dtype=torch.int64, device="cuda"))
    assert loss.dtype == torch.float32
    loss.backward()
    assert network[1].running_mean.dtype == network[1].weight.grad.dtype == torch.float32
