"""Random numbers as the card draws them: ends of each tensor, a checksum of its bytes, where the generator is then."""

# mypy: disable-error-code="no-untyped-call, misc"
# (parts of PyTorch carry no annotations; types of default arguments are not inferred)

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor, nn

_SHOWN = 16


def _cuda(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="cuda", dtype=dtype)


def draws() -> dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]:
    """What is drawn, by name."""
    functions: dict[str, Callable[[], Any]] = {}
    for size in (1, 5, 257, 1 << 12, 1_000_003, (1 << 24) + 3):
        functions[f"rand {size}"] = lambda n=size: torch.rand(n, device="cuda")
        functions[f"randn {size}"] = lambda n=size: torch.randn(n, device="cuda")
        functions[f"randint 10 {size}"] = lambda n=size: torch.randint(10, (n,), device="cuda")
        functions[f"randperm {size}"] = lambda n=size: torch.randperm(n, device="cuda")
        functions[f"dropout 0.3 {size}"] = lambda n=size: F.dropout(torch.ones(n, device="cuda"), 0.3)
        functions[f"bernoulli_ 0.3 {size}"] = lambda n=size: _cuda(n).bernoulli_(0.3)
    size = 4099
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        functions[f"rand {size} {name}"] = lambda d=dtype: torch.rand(size, device="cuda", dtype=d)
        functions[f"randn {size} {name}"] = lambda d=dtype: torch.randn(size, device="cuda", dtype=d)
        functions[f"dropout 0.1 {size} {name}"] = lambda d=dtype: F.dropout(
            torch.ones(size, device="cuda", dtype=d), 0.1
        )
        functions[f"bernoulli of shares {size} {name}"] = lambda d=dtype: torch.bernoulli(
            torch.full((size,), 0.3, device="cuda", dtype=d)
        )
    for low, high in ((0, 2), (-7, 1 << 31), (0, 1 << 40), (-(1 << 62), 1 << 62)):
        functions[f"randint {low} {high}"] = lambda a=low, b=high: torch.randint(a, b, (size,), device="cuda")
    functions["randint int32"] = lambda: torch.randint(100, (size,), device="cuda", dtype=torch.int32)
    functions["random_ int64"] = lambda: _cuda(size, dtype=torch.int64).random_()
    functions["random_ float32"] = lambda: _cuda(size).random_()
    functions["random_ uint8"] = lambda: _cuda(size, dtype=torch.uint8).random_()
    functions["uniform_ -1 3"] = lambda: _cuda(size).uniform_(-1, 3)
    functions["normal_ 2 0.5"] = lambda: _cuda(size).normal_(2, 0.5)
    functions["normal tensor means"] = lambda: torch.normal(torch.arange(size, device="cuda").float(), 0.5)
    functions["exponential_ 2"] = lambda: _cuda(size).exponential_(2.0)
    functions["cauchy_"] = lambda: _cuda(size).cauchy_()
    functions["log_normal_"] = lambda: _cuda(size).log_normal_()
    functions["geometric_ 0.3"] = lambda: _cuda(size).geometric_(0.3)
    functions["rand strided"] = lambda: _cuda(64, 65).t().uniform_()
    functions["rand channels_last"] = lambda: torch.empty(
        2, 3, 8, 8, device="cuda", memory_format=torch.channels_last
    ).uniform_()
    functions["rand a slice"] = lambda: _cuda(64, 65)[:, ::2].uniform_()
    functions["dropout strided"] = lambda: F.dropout(torch.ones(64, 65, device="cuda").t(), 0.5)
    functions["dropout2d"] = lambda: F.dropout2d(torch.ones(8, 16, 4, 4, device="cuda"), 0.5)
    functions["alpha_dropout"] = lambda: F.alpha_dropout(torch.ones(size, device="cuda"), 0.5, training=True)
    functions["native_dropout in training"] = lambda: nn.Dropout(0.25)(
        torch.ones(size, device="cuda", requires_grad=True)
    ).detach()
    functions["rrelu"] = lambda: F.rrelu(-torch.ones(size, device="cuda"), training=True)
    functions["gumbel_softmax"] = lambda: F.gumbel_softmax(torch.zeros(64, 10, device="cuda"), dim=-1)
    functions["multinomial 1"] = lambda: torch.multinomial(torch.ones(64, 1000, device="cuda"), 1)
    functions["multinomial 5 without replacement"] = lambda: torch.multinomial(torch.ones(64, 1000, device="cuda"), 5)
    functions["multinomial 5 with replacement"] = lambda: torch.multinomial(
        torch.ones(64, 1000, device="cuda"), 5, replacement=True
    )
    functions["poisson"] = lambda: torch.poisson(torch.full((size,), 3.0, device="cuda"))
    functions["binomial"] = lambda: torch.binomial(
        torch.full((size,), 9.0, device="cuda"), torch.full((size,), 0.4, device="cuda")
    )
    functions["gamma"] = lambda: torch._standard_gamma(torch.full((size,), 2.0, device="cuda"))
    functions["randn complex64"] = lambda: torch.randn(size, device="cuda", dtype=torch.complex64)
    functions["randperm 100000 int32"] = lambda: torch.randperm(100000, device="cuda", dtype=torch.int32)
    functions["sdpa dropout, flash"] = _attention
    functions["a second draw"] = lambda: (torch.rand(3, device="cuda"), torch.randn(3, device="cuda"))[1]
    functions["weights of a layer"] = _layer
    functions["weights of a transformer layer"] = _encoder
    functions["lstm dropout"] = _lstm
    return functions


def _attention() -> Tensor:
    ones = torch.ones(1, 2, 64, 32, device="cuda", dtype=torch.float16)
    with nn.attention.sdpa_kernel([nn.attention.SDPBackend.FLASH_ATTENTION]):
        return F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5)


def _layer() -> Tensor:
    with torch.device("cuda"):
        layer = nn.Sequential(nn.Linear(7, 5), nn.Conv2d(3, 4, 3), nn.Embedding(5, 6))
    return torch.cat([weight.detach().view(-1) for weight in layer.parameters()])


def _encoder() -> Tensor:
    with torch.device("cuda"):
        layer = nn.TransformerEncoderLayer(16, 2, 32)
    return torch.cat([weight.detach().view(-1) for weight in layer.parameters()])


def _lstm() -> Tensor:
    with torch.device("cuda"):
        layer = nn.LSTM(4, 8, 2, dropout=0.5)
    result: Tensor = layer(torch.ones(3, 2, 4, device="cuda"))[0].detach()
    return result


def draw() -> Iterator[dict[str, Any]]:
    """Each of them, from seed 1234."""
    for name, make in draws().items():
        torch.cuda.manual_seed(1234)
        try:
            values = make()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            yield {"name": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            continue
        assert isinstance(values, Tensor)
        state = torch.cuda.get_rng_state()
        yield describe(name, values) | {"offset": int(state[8:].view(torch.int64)[0])}


def describe(name: str, values: Tensor) -> dict[str, Any]:
    """The first and last values in the order of dimensions, exactly, and a checksum of all of them."""
    plain = values.detach().cpu().contiguous()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    flat = plain.reshape(-1)
    wide = flat.double() if flat.is_floating_point() else flat.long()
    ends = wide if len(wide) <= 2 * _SHOWN else torch.cat([wide[:_SHOWN], wide[-_SHOWN:]])
    return {
        "name": name, "shape": list(values.shape), "dtype": str(values.dtype).removeprefix("torch."),
        "ends": ends.tolist(), "sum": float(wide.double().sum()),
        "crc32": zlib.crc32(flat.view(torch.uint8).numpy().tobytes()),
    }  # fmt: skip
