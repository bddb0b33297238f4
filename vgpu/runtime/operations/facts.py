"""The facts about an overload, worked out once: from the table, and from the operation's schema and tags.

Source of the schemas: aten/src/ATen/native/native_functions.yaml.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vgpu.runtime.operations import bindings, cuda_dtypes, sparse_dtypes
from vgpu.runtime.operations.operation import Known, Operation, number_of
from vgpu.runtime.operations.table import TABLE

# Their kernels are charged by the process group (`vgpu.torch_integration.distributed`).
_COLLECTIVES = ("c10d", "_c10d_functional")
# Operators of PyTorch; those of others are the program's or a library's.
_OWN_NAMESPACES = {"aten", "prim", "prims", "c10d", "_c10d_functional", "c10d_functional", "profiler", "inductor"}
_FOREACH = ("_foreach", "_fused", "_amp_foreach")
_FUSED_GRADIENTS = 1
# Zeros without memory (`ZeroTensor`, in gradients of `sgn`): PyTorch reads their null pointer under a dispatch mode.
_INSTEAD = {torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default}
_NOTHING_KNOWN = Known()
# Columns for which a call has to go the long way of the dispatch mode.
_UNUSUAL = (
    "is_metadata", "allocates_only", "is_like", "reads", "synchronises", "waits", "indexes", "is_cuda_kernel",
    "few_dimensions", "nondeterministic",
)  # fmt: skip
_COLUMNS = tuple(field.name for field in fields(Known))

# By identity, with the overload itself, so that the identity stays taken: an overload's hash is a Python function.
FOUND: dict[int, tuple[Any, Operation]] = {}


def facts(overload: Any) -> Operation:
    """The facts about an overload, from the cache or from table and schema."""
    found = FOUND.get(number_of(overload))
    if found is None:
        found = FOUND[number_of(overload)] = overload, _classify(overload)
    return found[1]


def _classify(overload: Any) -> Operation:
    schema = overload._schema
    namespace, _, full = schema.name.partition("::")
    base = full if full in TABLE else full.removesuffix("_")
    known = TABLE.get(base, _NOTHING_KNOWN)
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    writes = [alias for alias in aliases if alias.is_write]
    returned = any(item.alias_info is not None for item in schema.returns)
    takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments if not argument.is_out)
    has_out = any(argument.is_out for argument in schema.arguments)
    tags = set(overload.tags)
    pointwise = torch.Tag.pointwise in tags
    is_view = bool(aliases) and not writes and returned
    is_foreach = base.startswith(_FOREACH)
    columns = {name: getattr(known, name) for name in _COLUMNS}
    columns["is_metadata"] |= namespace in ("prim", "profiler")
    columns["is_cuda_kernel"] &= namespace == "aten" and not has_out
    # Products of 16-bit numbers into 32 bits (`out_dtype`) are overloads that only CUDA has.
    columns["is_cuda_kernel"] |= known.product is not None and overload._overloadname in ("dtype", "dtype_out")
    if namespace != "aten":
        columns["nondeterministic"] = None
    if namespace == "aten" and not columns["strict_devices"]:
        columns["wrapper"] = cuda_dtypes.strict_wrapper(overload)
        columns["strict_devices"] = bool(columns["wrapper"])
    columns["check"] = cuda_dtypes.missing_kernel(overload) or columns["check"]
    dtypes = (cuda_dtypes.rule_of(overload) if namespace == "aten" else None) or cuda_dtypes.NOTHING
    may_resize = full in ("resize_", "resize_as_", "set_") or has_out
    is_composite = not columns["is_cuda_kernel"] and torch._C._dispatch_has_kernel_for_dispatch_key(
        overload.name(), "CompositeImplicitAutograd"
    )
    depends_on_data = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    random = torch.Tag.nondeterministic_seeded in tags
    repeats = (pointwise or known.copies) and known.traffic is None and known.product is None and not is_foreach
    is_gemm = known.product is not None and known.library == "blas" and known.call == "product"
    is_plain_view = is_view and not (dtypes.refused or columns["check"] or columns["arithmetic"])
    may_be_short = (
        namespace == "aten"
        and takes_tensor
        and (repeats or is_gemm or is_plain_view)
        and not (is_composite or may_resize or random or depends_on_data or is_foreach)
        and torch.Tag.inplace_view not in tags
        and not any(columns[name] for name in _UNUSUAL)
    )
    return Operation(
        **columns,
        overload=_INSTEAD.get(overload, overload),
        direct=bindings.direct(overload),
        name=f"{namespace}::{full}",
        base=base,
        is_view=is_view,
        is_factory=not takes_tensor,
        random=random,
        takes_generator=any(argument.name == "generator" for argument in schema.arguments),
        mutates=bool(writes),
        may_resize=may_resize,
        is_composite=is_composite,
        is_foreach=is_foreach,
        is_collective=namespace in _COLLECTIVES,
        is_custom=namespace not in _OWN_NAMESPACES,
        depends_on_data=depends_on_data,
        launches=not (
            is_view
            or columns["is_metadata"]
            or torch.Tag.inplace_view in tags
            or known.allocates_only
            or namespace in _COLLECTIVES
        ),
        is_product=known.product is not None,
        is_sum=overload is torch.ops.aten.add.Tensor,
        elementwise=pointwise or known.copies,
        repeats=repeats,
        may_be_short=may_be_short,
        checks_layouts=columns["check"] in sparse_dtypes.OF_PRODUCTS,
        written=_written(base, schema),
        # Elementwise results have their operands' shape; elsewhere a float may be a scale factor or the end of a range.
        shaped_by_floats=not pointwise and not is_foreach,
        dtypes=dtypes,
        refused=frozenset(dtypes.refused),
    )


def _written(base: str, schema: Any) -> tuple[int, ...]:
    """Places of the arguments that the operation writes to; fused optimizers only read gradients, if not scaled."""
    places = [i for i, item in enumerate(schema.arguments) if item.alias_info is not None and item.alias_info.is_write]
    return tuple(place for place in places if not (base.startswith("_fused") and place == _FUSED_GRADIENTS))
