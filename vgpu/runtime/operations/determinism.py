"""`torch.use_deterministic_algorithms`: calls whose CUDA kernels have no deterministic version.

Sources: PyTorch's CUDA host code, run without a card (`vgpu.tools.cuda_rules.stand_in`), and `alertNotDeterministic` in
the files named below aten/src/ATen/native.
Not here: which operations have which rule (`vgpu.runtime.operations.table`), and CPU kernels, which check themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import AlertRule

_BAG_OF_MAXIMA = 2
"""`mode` of an embedding bag: 0 sums, 1 takes means, 2 takes maxima (EmbeddingBag.h)."""


def always(kernel: str) -> AlertRule:
    """Every call runs this kernel."""
    return lambda args, kwargs: kernel


def median(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Without a dimension there are no indices (cuda/Sorting.cpp)."""
    return "median CUDA with indices output" if len(args) > 1 or "dim" in kwargs else ""


def bincount(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Sums of weights are added atomically; counts are whole numbers, whose order does not matter."""
    return "" if _argument(args, kwargs, 1, "weights") is None else "_bincount_cuda"


def scatter_reduce(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Sums and means have a deterministic path (TensorAdvancedIndexing.cpp), and extremes have no order."""
    return "scatter_reduce_cuda_prod_" if _argument(args, kwargs, 4, "reduce") == "prod" else ""


def scatter(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Of `reduce=` with a tensor, only sums of floats have a deterministic path."""
    reduce, source = kwargs.get("reduce"), args[3] if len(args) > 3 else None
    if reduce is None or not isinstance(source, torch.Tensor):
        return ""
    is_sum = reduce == "add" and (source.is_floating_point() or source.is_complex())
    return "" if is_sum else "scatter_reduce_cuda_kernel"


def histogram(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Counts of integers are whole numbers (SummaryOps.cu)."""
    return "_histc_cuda with floating point input" if args[0].is_floating_point() else ""


def loss_per_pixel(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Without a reduction nothing is added up (NLLLoss2d.cu)."""
    return "" if _argument(args, kwargs, 3, "reduction") == 0 else "nll_loss2d_forward_out_cuda_template"


def put(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Without `accumulate` the last of several writes wins, and with it CUDA adds atomically."""
    return "put_"


def embedding_bag_backward(mode: int) -> AlertRule:
    """Only the gradient of maxima (cuda/EmbeddingBag.cu); `mode` is the place of that argument."""
    kernel = "embedding_bag_backward_cuda_max"
    return lambda args, kwargs: kernel if _argument(args, kwargs, mode, "mode") == _BAG_OF_MAXIMA else ""


def require(kernel: str) -> None:
    """Raise RuntimeError, or warn, as CUDA does if the program has asked for deterministic algorithms."""
    if not kernel:
        return
    start = f"{kernel} does not have a deterministic implementation, but you set "
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(
            f"{start}'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
            "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
            "operation.",
            stacklevel=2,
        )
        return
    raise RuntimeError(
        f"{start}'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or "
        "you can use the 'warn_only=True' option, if that's acceptable for your application. You can also file an "
        "issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
        "this operation."
    )


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)
