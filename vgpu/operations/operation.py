"""Facts about ATen operations that the dispatch mode needs at every call, worked out once per overload.

Sources: the operation's own schema and tags (aten/src/ATen/native/native_functions.yaml). Not here: what an
operation costs (`vgpu.operations.charges`) or does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vgpu.operations import charges, determinism, layouts, precision, traffic

# No kernel: they only make or change a tensor's description. `_unsafe_view` and friends are not marked as views in
# the schema although they share the storage.
_METADATA = {
    "_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "set_", "resize_", "is_same_size", "sym_size",
    "sym_stride", "sym_numel", "sym_storage_offset", "is_pinned", "result_type", "can_cast", "_nested_tensor_size",
    "is_contiguous", "stride", "size", "numel", "dim", "_version", "_has_same_storage_numel", "_backward",
    "requires_grad_", "retain_grad", "set_data", "_fw_primal", "_make_dual", "is_coalesced", "resolve_conj",
    "resolve_neg", "_fused_sdp_choice", "_cudnn_rnn_flatten_weight", "rename", "refine_names",
}  # fmt: skip
_ALLOCATE_ONLY = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "empty_quantized",
}  # fmt: skip
_LIKE = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
# Read a value back to the host: the call returns only when the device has computed it.
_READ = {"_local_scalar_dense", "item", "equal", "is_nonzero", "allclose"}
_SYNCHRONISE = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
# TensorIterator operations and copies accept a 0-dimensional CPU tensor beside CUDA tensors; these also take
# CPU tensors for some of their arguments (indices, optimizer steps).
_MIXED_DEVICES = {
    "copy_", "_to_copy", "index", "index_put_", "index_put", "_index_put_impl_", "_copy_from", "set_", "_foreach_copy_",
    "_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence", "_ctc_loss",
    "_ctc_loss_backward",
}  # fmt: skip
# Their kernels are charged by the process group (`vgpu.distributed`).
_COLLECTIVES = ("c10d", "_c10d_functional")
_FUSED_GRADIENTS = 1
_FOREACH = ("_foreach", "_fused", "_amp_foreach")
# One kernel on CUDA, several or none on the CPU: `vgpu.kernels.cuda_kernels` has them.
CUDA_KERNELS = {
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward", "_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "native_batch_norm",
    "native_batch_norm_backward", "log_sigmoid_forward", "log_sigmoid_backward",
    "batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt", "batch_norm_backward_reduce",
    "batch_norm_backward_elemt", "_cudnn_rnn", "_cudnn_rnn_backward",
}  # fmt: skip
# Kernels with temporary tensors, beside products and convolutions: `vgpu.memory.workspaces` knows how large.
TAKES_SCRATCH = {
    "_safe_softmax", "embedding_dense_backward", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
}  # fmt: skip
# Kernels with wrapper checks, which do not accept a CPU scalar either.
_STRICT_DEVICES = {
    "mm": "mat2", "addmm": "mat1", "bmm": "mat2", "baddbmm": "batch1", "convolution": "weight",
    "native_layer_norm": "weight", "embedding": "index", "nll_loss_forward": "target", "native_batch_norm": "weight",
    "cat": "tensors", "index_select": "index", "gather": "index", "dot": "tensor", "mv": "vec", "addmv": "mat",
    "scatter_add": "index", "index_add": "index", "index_copy": "index", "native_group_norm": "weight",
}  # fmt: skip
# Operators of PyTorch; those of others are the program's or a library's.
_OWN_NAMESPACES = {"aten", "prim", "prims", "c10d", "_c10d_functional", "c10d_functional", "profiler", "inductor"}


@dataclass(slots=True, frozen=True)
class Operation:
    """What never changes about one overload."""

    overload: Any
    name: str
    base: str
    is_view: bool
    is_metadata: bool
    allocates_only: bool
    is_like: bool
    is_factory: bool
    reads: bool
    synchronises: bool
    random: bool
    takes_generator: bool
    mutates: bool
    may_resize: bool
    mixed_devices: bool
    strict_argument: str | None
    is_composite: bool
    is_foreach: bool
    is_collective: bool
    is_custom: bool
    depends_on_data: bool
    launches: bool
    is_product: bool
    library: str
    in_float32: bool
    tf32_switch: str
    is_cuda_kernel: bool
    takes_scratch: bool
    is_sum: bool
    call: str
    elementwise: bool
    own_traffic: bool
    written: tuple[int, ...]
    nondeterministic: bool
    shaped_by_floats: bool


_known: dict[Any, Operation] = {}


def facts(overload: Any) -> Operation:
    """The facts about an overload, from the cache or from its schema."""
    operation = _known.get(overload)
    if operation is None:
        operation = _known[overload] = _classify(overload)
    return operation


def _classify(overload: Any) -> Operation:
    schema = overload._schema
    qualified = schema.name
    namespace, _, full = qualified.partition("::")
    base = full if full in _METADATA or full in _MIXED_DEVICES else full.removesuffix("_")
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    writes = [alias for alias in aliases if alias.is_write]
    returned = any(item.alias_info is not None for item in schema.returns)
    takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments if not argument.is_out)
    tags = set(overload.tags)
    is_view = bool(aliases) and not writes and returned
    is_metadata = full in _METADATA or namespace in ("prim", "profiler")
    return Operation(
        overload=overload,
        name=f"{namespace}::{full}",
        base=base,
        is_view=is_view,
        is_metadata=is_metadata,
        allocates_only=full in _ALLOCATE_ONLY,
        is_like=full in _LIKE,
        is_factory=not takes_tensor,
        reads=full in _READ,
        synchronises=full in _SYNCHRONISE,
        random=torch.Tag.nondeterministic_seeded in tags,
        takes_generator=any(argument.name == "generator" for argument in schema.arguments),
        mutates=bool(writes),
        may_resize=full in ("resize_", "resize_as_", "set_") or any(a.is_out for a in schema.arguments),
        mixed_devices=full in _MIXED_DEVICES,
        strict_argument=_STRICT_DEVICES.get(base),
        is_composite=base not in CUDA_KERNELS
        and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"),
        is_foreach=base.startswith(_FOREACH),
        is_collective=namespace in _COLLECTIVES,
        is_custom=namespace not in _OWN_NAMESPACES,
        depends_on_data=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        launches=not (is_view or is_metadata or full in _ALLOCATE_ONLY or namespace in _COLLECTIVES),
        is_product=charges.is_product(base),
        library=charges.library_of(base),
        in_float32=base in precision.IN_FLOAT32,
        tf32_switch=precision.TF32_SWITCHES.get(base, ""),
        is_cuda_kernel=namespace == "aten" and base in CUDA_KERNELS and not any(a.is_out for a in schema.arguments),
        takes_scratch=charges.library_of(base) == "blas" or base in layouts.CONVOLUTIONS or base in TAKES_SCRATCH,
        is_sum=overload is torch.ops.aten.add.Tensor,
        call=charges.call_of(base),
        elementwise=torch.Tag.pointwise in tags or base in traffic.COPIES,
        own_traffic=traffic.has_own_rule(base),
        written=_written(base, schema),
        nondeterministic=namespace == "aten" and base in determinism.KERNELS,
        # Elementwise results have their operands' shape; elsewhere a float may be a scale factor or the end of a range.
        shaped_by_floats=torch.Tag.pointwise not in tags and not base.startswith(_FOREACH),
    )


def _written(base: str, schema: Any) -> tuple[int, ...]:
    """Places of the arguments that the operation writes to; fused optimizers only read gradients, if not scaled."""
    places = [i for i, item in enumerate(schema.arguments) if item.alias_info is not None and item.alias_info.is_write]
    return tuple(place for place in places if not (base.startswith("_fused") and place == _FUSED_GRADIENTS))


def needs_values(operation: Operation, args: Sequence[Any]) -> bool:
    """Whether the shape or value of a data-dependent operation's result does depend on values.

    Integer indices do not change the shape of `index`; masks do, and CUDA waits to count them (IndexingUtils.h,
    `expandTensors`).
    """
    if operation.base != "index":
        return operation.depends_on_data
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
