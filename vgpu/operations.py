"""Facts about ATen operations that the dispatch mode needs at every call, worked out once per overload.

Sources: the operation's own schema and tags (aten/src/ATen/native/native_functions.yaml). Not here: what an
operation costs (`vgpu.charges`) or does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vgpu import charges

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
}  # fmt: skip
# Kernels with wrapper checks, which do not accept a CPU scalar either.
_STRICT_DEVICES = {
    "mm": "mat2", "addmm": "mat1", "bmm": "mat2", "baddbmm": "batch1", "convolution": "weight",
    "native_layer_norm": "weight", "embedding": "index", "nll_loss_forward": "target", "native_batch_norm": "weight",
    "cat": "tensors", "index_select": "index", "gather": "index", "dot": "tensor", "mv": "vec", "addmv": "mat",
}  # fmt: skip


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
    depends_on_data: bool
    launches: bool
    is_product: bool
    library: str


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
        is_composite=torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"),
        is_foreach=base.startswith(("_foreach", "_fused", "_amp_foreach")),
        is_collective=namespace in ("c10d", "_c10d_functional"),
        depends_on_data=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        launches=not (is_view or is_metadata or full in _ALLOCATE_ONLY),
        is_product=charges.is_product(base),
        library=charges.library_of(base),
    )
