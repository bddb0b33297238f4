"""The table of operations: no name that is none, and each part of the virtual GPU has what the table says it has."""

import pytest
import torch

from vgpu.device.spec import get_spec
from vgpu.runtime.memory import workspaces
from vgpu.runtime.operations import kernel_cost, table
from vgpu.torch_integration.kernels import cuda_kernels, wide_products


def test_every_name_is_an_operator_of_torch() -> None:
    assert [name for name in table.TABLE if not hasattr(torch.ops.aten, name)] == []


def test_a_name_has_one_row() -> None:
    with pytest.raises(ValueError, match="mm has two rows"):
        table._row("mm", reads=True)


def test_kernels_and_scratch_are_those_of_the_table() -> None:
    # Products have one for their overloads with `out_dtype` alone.
    kernels = set(cuda_kernels.KERNELS) - set(wide_products.KERNELS)
    assert {name for name, row in table.TABLE.items() if row.is_cuda_kernel} == kernels
    by_function = {name for name, row in table.TABLE.items() if row.takes_scratch and not (row.library or row.product)}
    attention = {name for name, row in table.TABLE.items() if row.takes_scratch and row.product and not row.library}
    assert by_function | attention == set(workspaces.SCRATCH)


def test_what_a_row_names_elsewhere_is_there() -> None:
    calls = {row.call for row in table.TABLE.values()} - {""}
    assert calls | kernel_cost.CALLS_OF_NO_ROW == set(get_spec("T4").host.call_seconds)
