"""Device-side asserts: what a CUDA kernel finds wrong with values, which the CPU's kernels refuse before they return.

On a card the call returns, with a result that means nothing, and the error comes at the next call that waits
(`VirtualGPU.fail`). A row names an operation, the words of the CPU's kernel, and the assertion of CUDA's, by its file
below aten/src/ATen/native/cuda. Not here: checks that CUDA makes on the host too, before it launches anything.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.faults import DeviceAssert
from vgpu.runtime.operations import shapes_only
from vgpu.runtime.operations.operation import Operation

_INDEX = r"index -?\d+ is out of bounds for dimension \d+ with size \d+|index out of range in self"
_FOUND = r"INDICES element is out of DATA bounds"
_BOUNDS = '"index out of bounds"'

# Operations -> (the CPU's words, CUDA's file, its assertion).
_ROWS: dict[str, tuple[str, str, str]] = {
    "index _unsafe_index index_put index_put_ _unsafe_index_put _index_put_impl_": (
        _INDEX, "IndexKernel.cu", f"-sizes[i] <= index && index < sizes[i] && {_BOUNDS}",
    ),
    "index_fill": (_INDEX, "IndexKernel.cu", f"idx >= -self_dim_size && idx < self_dim_size && {_BOUNDS}"),
    "index_copy": (
        r"index_copy_\(\): index -?\d+ is out of bounds", "IndexKernel.cu",
        'idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"',
    ),
    "take put": (
        r"out of range: tried to access index", "IndexKernel.cu",
        'idx < numel && idx >= -numel && "cuda_take_put_kernel() index out of bounds"',
    ),
    "gather scatter scatter_add scatter_reduce": (
        _INDEX, "ScatterGatherKernel.cu", f"idx_dim >= 0 && idx_dim < index_size && {_BOUNDS}",
    ),
    "index_select embedding": (f"{_INDEX}|{_FOUND}", "Indexing.cu", "srcIndex < srcSelectDimSize"),
    "index_add index_reduce": (f"{_INDEX}|{_FOUND}", "Indexing.cu", "dstIndex < dstAddDimSize"),
    "_embedding_bag _embedding_bag_forward_only": (
        r"Index \d+ of input takes value|embedding_bag: Expected idx >= 0", "EmbeddingBag.cu",
        "input[emb] < numRows",
    ),
    "embedding_renorm": (
        r"select\(\): index -?\d+ out of range", "Embedding.cu", "indices[i] < num_rows",
    ),
    "nll_loss_forward nll_loss_backward": (r"Target -?\d+ is out of bounds", "Loss.cu", "t >= 0 && t < n_classes"),
    "nll_loss2d_forward nll_loss2d_backward": (
        r"Target -?\d+ is out of bounds", "NLLLoss2d.cu", "t >= 0 && t < n_classes",
    ),
    "multi_margin_loss multi_margin_loss_backward": (
        r"target out of range", "MultiMarginLoss.cu", "target_k >= 0 && target_k < dim",
    ),
    "multilabel_margin_loss_forward multilabel_margin_loss_backward": (
        r"argument #2 'target' is out of range", "MultiLabelMarginCriterion.cu", "target_idx < dim",
    ),
    "binary_cross_entropy": (
        r"all elements of input should be between 0 and 1", "Loss.cu", "input_val >= zero && input_val <= one",
    ),
    "multinomial": (
        r"probability tensor contains either|invalid multinomial distribution", "MultinomialKernel.cu",
        "cumdist[size - 1] > static_cast<scalar_t>(0)",
    ),
    "binary_cross_entropy ": (
        r"all elements of target should be between 0 and 1", "Loss.cu", "target_val >= zero && target_val <= one",
    ),
    "poisson": (
        r"invalid Poisson rate", "Distributions.cu",
        'lambda >= 0 && "invalid Poisson rate, expected rate to be non-negative"',
    ),
    "_assert_async": (
        r"Expected Tensor with single nonzero value, but got zero", "TensorCompare.cu", "input[0] != 0",
    ),
    "max_unpool2d max_unpool3d": (
        r"Found an invalid max index", "MaxUnpooling.cu", "maxind >= 0 && maxind < outputImageSize",
    ),
}  # fmt: skip
_RULES: dict[str, list[tuple[re.Pattern[str], str]]] = {}
for _names, (_words, _file, _condition) in _ROWS.items():
    for _name in _names.split():
        _RULES.setdefault(_name, []).append((re.compile(_words), f"{_file}: `{_condition}`"))
_IS_NO_VALUE = "Boolean value of Tensor with"


def assertion_of(operation: Operation, error: Exception) -> str | None:
    """The assertion that fails on the device where the CPU's kernel raises `error`; None where the host checks, too."""
    if isinstance(error, DeviceAssert):
        return str(error)
    if (
        operation.base == "_assert_async"
        and operation.overload._overloadname == "msg"
        and _IS_NO_VALUE not in str(error)
    ):
        # TensorCompare.cu prints the message that it was given instead of the condition.
        return f"TensorCompare.cu: `{error}`"
    words = str(error)
    return next((assertion for rule, assertion in _RULES.get(operation.base, ()) if rule.match(words)), None)


def outcome(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the call returns all the same: tensors of the right shape, whose values mean nothing (zeros)."""
    if operation.mutates:
        return args[0]
    if not operation.overload._schema.returns:
        return None
    described = operation.overload(*shapes_only.on_meta(args, {})[0], **shapes_only.on_meta((), kwargs)[1])
    return _zeros(described)


def _zeros(described: Any) -> Any:
    if isinstance(described, torch.Tensor):
        return torch.zeros_like(described, device="cpu")
    if isinstance(described, (list, tuple)):
        return type(described)(_zeros(item) for item in described)
    return described
