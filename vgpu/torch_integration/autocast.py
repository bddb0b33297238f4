"""`torch.autocast("cuda")` by CUDA's lists (aten/src/ATen/autocast_mode.h; torch.amp documentation).

PyTorch's own autocast would act on the CPU tensors underneath by the CPU's lists, or on meta tensors not at all: so the
function mode casts the arguments, above autograd. Not here: the context manager itself, which is PyTorch's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU


def _since(version: tuple[int, int], *names: str) -> tuple[str, ...]:
    """Names that a list has from a version of PyTorch on."""
    major, minor = torch.__version__.split(".")[:2]
    return names if (int(major), int(minor)) >= version else ()


LOWER = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "_convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "linalg_vecdot",
    "scaled_dot_product_attention",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
]
FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "__pow__",
    "__rpow__",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm",
    "nuclear_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss_nd",
    "nll_loss2d",
    "cross_entropy_loss",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "upsample_trilinear3d",
    # On the list of newer versions only (see `_since`).
    *_since((2, 12), "rms_norm"),
]
# They get dtype=float32 unless the caller gave one.
FLOAT32_RESULT = [
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "norm",
]
PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
_BANNED = "binary_cross_entropy"
_BANNED_TEXT = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class WeightCache:
    """Low-precision copies of leaf parameters, kept until the outermost autocast block ends (`cached_cast`)."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def cast(self, gpu: VirtualGPU, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        leaf = tensor.requires_grad and tensor.is_leaf and tensor.dtype == torch.float32
        if not (leaf and torch.is_autocast_cache_enabled()) or tensor._is_view() or torch.is_inference_mode_enabled():
            gpu.charge_autocast()
            return tensor.to(dtype)
        known = self._casts.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1].dtype == dtype:
            return known[1]
        gpu.charge_autocast()
        with torch.enable_grad():  # under no_grad, too: the block's other calls get the same copy
            low = tensor.to(dtype)
        self._casts[id(tensor)] = weakref.ref(tensor), low
        return low

    def clear(self) -> None:
        """`torch.clear_autocast_cache`."""
        self._casts.clear()


def functions(names: Iterable[str]) -> set[Callable[..., Any]]:
    """Every Python-visible function or method of one of these names that a function mode may be shown."""
    places = (torch, torch.Tensor, torch._C._nn, torch._C._VariableFunctions, torch._C._linalg)  # type: ignore[attr-defined]
    variants = [(place, name) for name in names for place in places]
    return {getattr(place, name) for place, name in variants if callable(getattr(place, name, None))}


def prepare(gpu: VirtualGPU, cache: WeightCache, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments as autocast would hand them to the function called `name`; unchanged where it does nothing."""
    if not torch.is_autocast_enabled("cuda") or kwargs.get("out") is not None:  # out= is not on the lists
        return args, kwargs

    def eligible(value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype != torch.float64
            and gpu.registry.has(value)
        )

    def cast_all(dtype: torch.dtype) -> Arguments:
        def cast(value: Any) -> Any:
            if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
                return type(value)(cast(item) for item in value) if type(value) in (list, tuple) else value
            return cache.cast(gpu, value, dtype) if eligible(value) and value.dtype != dtype else value

        return tuple(cast(value) for value in args), {key: cast(value) for key, value in kwargs.items()}

    if name in _RECURRENT:
        return cast_all(torch.float16)
    if name in _LOWER:
        return cast_all(torch.get_autocast_dtype("cuda"))
    if name in _FLOAT32:
        return cast_all(torch.float32)
    if name in _FLOAT32_RESULT:
        has_dtype = kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args)
        if not has_dtype and args and eligible(args[0]) and args[0].dtype != torch.float32:
            return args, {**kwargs, "dtype": torch.float32}
        return args, kwargs
    if name == _BANNED:
        if any(isinstance(value, torch.Tensor) and gpu.registry.has(value) for value in args):
            raise RuntimeError(_BANNED_TEXT)
        return args, kwargs
    wide = [value.dtype for value in args if eligible(value)]
    return cast_all(torch.float32) if torch.float32 in wide and len(set(wide)) > 1 else (args, kwargs)


_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""cuDNN's, which take float16 whatever autocast is asked for: aten/src/ATen/cudnn/AutocastRNN.cpp; so on an H100."""
_LOWER, _FLOAT32, _FLOAT32_RESULT = set(LOWER), set(FLOAT32), set(FLOAT32_RESULT)
ALL_NAMES = (*LOWER, *FLOAT32, *FLOAT32_RESULT, *PROMOTE, _BANNED)
