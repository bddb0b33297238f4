"""The operations that CUDA's autocast treats, each with a call: the documented lists, written out.

Source: torch docs, torch.amp, "CUDA Ops that can autocast to float16", "... to float32", "... that promote to the
widest input type"; aten/src/ATen/autocast_mode.h. Not here: what the programs assert about them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

Call = Callable[[], Tensor | tuple[Tensor, ...]]
_N = 8


def _make(dtype: torch.dtype) -> Callable[..., Tensor]:
    def tensor(*shape: int) -> Tensor:
        # Away from 0 and 1, where the inverse functions have their edges.
        return torch.linspace(0.1, 0.9, int(torch.Size(shape).numel()), device="cuda").view(shape).to(dtype)

    return tensor


def lower() -> dict[str, Call]:
    """Run in the low precision, given float32."""
    t = _make(torch.float32)
    m, v, b, image = t(_N, _N), t(_N), t(2, _N, _N), t(1, 2, _N, _N)
    cell = (t(4 * _N, _N), t(4 * _N, _N), t(4 * _N), t(4 * _N))

    def part(chunks: int) -> tuple[Tensor, ...]:
        return tuple(weight[: chunks * _N] for weight in cell)

    return {
        "__matmul__": lambda: m @ m,
        "addbmm": lambda: torch.addbmm(m, b, b),
        "addmm": lambda: torch.addmm(m, m, m),
        "addmv": lambda: torch.addmv(v, m, v),
        "addr": lambda: torch.addr(m, v, v),
        "baddbmm": lambda: torch.baddbmm(b, b, b),
        "bmm": lambda: torch.bmm(b, b),
        "chain_matmul": lambda: torch.chain_matmul(m, m, m),
        "linalg_multi_dot": lambda: torch.linalg.multi_dot([m, m, m]),
        "linalg_vecdot": lambda: torch.linalg.vecdot(m, m),
        "conv1d": lambda: F.conv1d(t(2, 3, _N), t(4, 3, 3)),
        "conv2d": lambda: F.conv2d(image, t(3, 2, 3, 3)),
        "conv3d": lambda: F.conv3d(image[None], t(3, 1, 1, 3, 3)),
        "conv_transpose1d": lambda: F.conv_transpose1d(t(2, 3, _N), t(3, 4, 3)),
        "conv_transpose2d": lambda: F.conv_transpose2d(image, t(2, 3, 3, 3)),
        "conv_transpose3d": lambda: F.conv_transpose3d(image[None], t(1, 3, 1, 3, 3)),
        "conv_tbc": lambda: torch.conv_tbc(t(5, 2, 3), t(3, 3, 4), t(4)),
        "convolution": lambda: torch.convolution(image, t(3, 2, 3, 3), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
        "_convolution": lambda: torch._convolution(
            image, t(3, 2, 3, 3), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, False, False, True, True
        ),
        "einsum": lambda: torch.einsum("ij,jk->ik", m, m),
        "linear": lambda: F.linear(m, m, v),
        "matmul": lambda: torch.matmul(b, m),
        "mm": lambda: torch.mm(m, m),
        "mv": lambda: torch.mv(m, v),
        "prelu": lambda: F.prelu(m, t(1)),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(image, image, image),
        "lstm_cell": lambda: torch.lstm_cell(m, (m, m), *part(4))[0],
        "gru_cell": lambda: torch.gru_cell(m, m, *part(3)),
        "rnn_tanh_cell": lambda: torch.rnn_tanh_cell(m, m, *part(1)),
        "rnn_relu_cell": lambda: torch.rnn_relu_cell(m, m, *part(1)),
        "LSTM": lambda: torch.nn.LSTM(_N, 4, device="cuda")(b)[0],
        "GRU": lambda: torch.nn.GRU(_N, 4, device="cuda")(b)[0],
        "RNN": lambda: torch.nn.RNN(_N, 4, device="cuda")(b)[0],
        "Tensor.mm": lambda: m.mm(m),
        "Tensor.addmm": lambda: m.addmm(m, m),
        "Tensor.bmm": lambda: b.bmm(b),
        "Tensor.mv": lambda: m.mv(v),
        "Tensor.matmul": lambda: b.matmul(m),
        "__rmatmul__": lambda: m.__rmatmul__(m),
    }


def to_float32() -> dict[str, Call]:
    """Run in float32, given the low precision."""
    t = _make(torch.float16)
    m, v, image = t(_N, _N), t(_N), t(1, 1, 4, 4)
    ones, classes = torch.ones(_N, device="cuda"), torch.zeros(_N, dtype=torch.int64, device="cuda")
    up = {"scale_factor": 2.0}
    return {
        "__pow__": lambda: v**1.5,
        "__rpow__": lambda: 2.0**v,
        "__rdiv__": lambda: 1.0 / v,  # Tensor.__rdiv__ is reciprocal() * other
        "acos": lambda: v.acos(),
        "asin": lambda: torch.asin(v),
        "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(m, m),
        "cosh": lambda: v.cosh(),
        "cosine_embedding_loss": lambda: F.cosine_embedding_loss(m, m, ones),
        "cosine_similarity": lambda: F.cosine_similarity(m, m),
        "cdist": lambda: torch.cdist(m, m),
        "cross_entropy": lambda: F.cross_entropy(m, classes),
        "dist": lambda: torch.dist(v, v),
        "erfinv": lambda: v.erfinv(),
        "exp": lambda: v.exp(),
        "expm1": lambda: torch.expm1(v),
        "group_norm": lambda: F.group_norm(m, 2),
        "hinge_embedding_loss": lambda: F.hinge_embedding_loss(v, ones),
        "huber_loss": lambda: F.huber_loss(m, m),
        "kl_div": lambda: F.kl_div(m, m, reduction="batchmean"),
        "l1_loss": lambda: F.l1_loss(m, m),
        "layer_norm": lambda: F.layer_norm(m, (_N,)),
        "log": lambda: v.log(),
        "log10": lambda: torch.log10(v),
        "log1p": lambda: v.log1p(),
        "log2": lambda: torch.log2(v),
        "logsumexp": lambda: torch.logsumexp(m, 1),
        "margin_ranking_loss": lambda: F.margin_ranking_loss(v, v, ones),
        "mse_loss": lambda: F.mse_loss(m, m),
        "multilabel_margin_loss": lambda: F.multilabel_margin_loss(m, classes.expand(_N, _N).contiguous()),
        "multi_margin_loss": lambda: F.multi_margin_loss(m, classes),
        "nll_loss": lambda: F.nll_loss(m, classes),
        "nll_loss2d": lambda: F.nll_loss(t(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.int64, device="cuda")),
        "nuclear_norm": lambda: torch.nuclear_norm(m),
        "pdist": lambda: F.pdist(m),
        "poisson_nll_loss": lambda: F.poisson_nll_loss(m, m),
        "pow": lambda: torch.pow(v, v),
        "pow scalar": lambda: torch.pow(v, 2.5),
        "pow base": lambda: torch.pow(2.0, v),
        "reciprocal": lambda: v.reciprocal(),
        "renorm": lambda: torch.renorm(m, 2, 0, 1.0),
        "rsqrt": lambda: torch.rsqrt(v),
        "sinh": lambda: v.sinh(),
        "smooth_l1_loss": lambda: F.smooth_l1_loss(m, m),
        "soft_margin_loss": lambda: F.soft_margin_loss(m, torch.ones(_N, _N, device="cuda")),
        "softplus": lambda: F.softplus(v),
        "tan": lambda: v.tan(),
        "triplet_margin_loss": lambda: F.triplet_margin_loss(m, m, m),
        "upsample_nearest1d": lambda: F.interpolate(image[0], **up),
        "upsample_nearest2d": lambda: F.interpolate(image, **up),
        "upsample_nearest3d": lambda: F.interpolate(image[None], **up),
        "_upsample_nearest_exact1d": lambda: F.interpolate(image[0], mode="nearest-exact", **up),
        "_upsample_nearest_exact2d": lambda: F.interpolate(image, mode="nearest-exact", **up),
        "_upsample_nearest_exact3d": lambda: F.interpolate(image[None], mode="nearest-exact", **up),
        "upsample_linear1d": lambda: F.interpolate(image[0], mode="linear", **up),
        "upsample_bilinear2d": lambda: F.interpolate(image, mode="bilinear", **up),
        "_upsample_bilinear2d_aa": lambda: F.interpolate(image, mode="bilinear", antialias=True, **up),
        "upsample_trilinear3d": lambda: F.interpolate(image[None], mode="trilinear", **up),
        "upsample_bicubic2d": lambda: F.interpolate(image, mode="bicubic", **up),
        "_upsample_bicubic2d_aa": lambda: F.interpolate(image, mode="bicubic", antialias=True, **up),
    }


def float32_result() -> dict[str, Call]:
    """Run in float32 unless the caller names a dtype, given the low precision."""
    t = _make(torch.float16)
    m, v = t(_N, _N), t(_N)
    return {
        "cumprod": lambda: v.cumprod(0),
        "cumsum": lambda: torch.cumsum(v, 0),
        "linalg_vector_norm": lambda: torch.linalg.vector_norm(v),
        "linalg_matrix_norm": lambda: torch.linalg.matrix_norm(m),
        "log_softmax": lambda: torch.log_softmax(m, 0),
        "F.log_softmax": lambda: F.log_softmax(m, dim=-1),
        "norm": lambda: torch.norm(v),
        "Tensor.norm": lambda: v.norm(),
        "norm dim": lambda: m.norm(2, dim=1),
        "prod": lambda: v.prod(),
        "prod dim": lambda: torch.prod(m, 1),
        "softmax": lambda: m.softmax(-1),
        "F.softmax": lambda: F.softmax(m, dim=-1),
        "nn.Softmax": lambda: torch.nn.Softmax(-1)(m),
        "sum": lambda: v.sum(),
        "sum dim": lambda: torch.sum(m, dim=1),
    }


def promote() -> dict[str, Call]:
    """Run in the widest of their inputs' types, given float32 and the low precision."""
    low, high = _make(torch.float16), _make(torch.float32)
    index = torch.zeros(2, 2, dtype=torch.int64, device="cuda")
    first = (torch.tensor([1], device="cuda"),)
    return {
        "addcdiv": lambda: torch.addcdiv(high(4), low(4), low(4)),
        "addcmul": lambda: torch.addcmul(low(4), high(4), low(4)),
        "atan2": lambda: torch.atan2(low(4), high(4)),
        "bilinear": lambda: F.bilinear(low(1, 2), high(1, 2), low(1, 2, 2), high(1)),
        "cross": lambda: torch.cross(low(3), high(3), dim=0),
        "dot": lambda: torch.dot(low(4), high(4)),
        "vdot": lambda: torch.vdot(high(4), low(4)),
        "grid_sampler": lambda: F.grid_sample(low(1, 1, 3, 3), high(1, 2, 2, 2), align_corners=False),
        "index_put": lambda: torch.index_put(high(4), first, low(1)),
        "index_put low": lambda: torch.index_put(low(4), first, high(1)),
        "scatter_add": lambda: torch.scatter_add(high(2, 2), 0, index, low(2, 2)),
        "scatter_add low": lambda: low(2, 2).scatter_add(0, index, high(2, 2)),
        "tensordot": lambda: torch.tensordot(low(2, 2), high(2, 2)),
    }


def builtin_promotion() -> dict[str, Call]:
    """Not treated by autocast, and promoting by themselves (torch docs: torch.amp, ops that promote)."""
    low, high = _make(torch.float16), _make(torch.float32)
    return {
        "add": lambda: low(4) + high(4),
        "mul": lambda: low(4) * high(4),
        "sub": lambda: high(4) - low(4),
        "div": lambda: low(4) / high(4),
        "cat": lambda: torch.cat([low(4), high(4)]),
        "stack": lambda: torch.stack([high(4), low(4)]),
        "where": lambda: torch.where(high(4) > 0, low(4), high(4)),
        "maximum": lambda: torch.maximum(low(4), high(4)),
    }


def untouched() -> dict[str, Call]:
    """In none of the lists: they stay in the low precision that they are given."""
    t = _make(torch.float16)
    m, image = t(_N, _N), t(1, 2, 4, 4)
    weight = torch.ones(2, device="cuda")
    return {
        "relu": lambda: F.relu(m),
        "gelu": lambda: F.gelu(m),
        "silu": lambda: F.silu(m),
        "leaky_relu": lambda: F.leaky_relu(m),
        "sigmoid": lambda: torch.sigmoid(m),
        "tanh": lambda: m.tanh(),
        "sqrt": lambda: m.sqrt(),
        "sin": lambda: m.sin(),
        "abs": lambda: m.abs(),
        "add": lambda: m + 1.0,
        "mul": lambda: m * m,
        "div": lambda: m / 2,
        "mean": lambda: m.mean(),
        "max": lambda: m.max(),
        "clamp": lambda: m.clamp(0, 1),
        "dropout": lambda: F.dropout(m, 0.5),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "avg_pool2d": lambda: F.avg_pool2d(image, 2),
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(image, 1),
        "batch_norm": lambda: F.batch_norm(image, None, None, weight, weight, training=True),
        "cat": lambda: torch.cat([m, m]),
        "transpose": lambda: m.t(),
        "var": lambda: m.var(),
        "gather": lambda: m.gather(0, torch.zeros(1, 1, dtype=torch.int64, device="cuda")),
    }
