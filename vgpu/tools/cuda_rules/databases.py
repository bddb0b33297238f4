"""PyTorch's databases for tests of every device, all in the form of OpInfo: operators, layers and optimizers.

An entry has a name, `sample_inputs(device, dtype, requires_grad=...)`, and is called with an input. Needs `expecttest`.
Not here: what is done with the entries (`vgpu.tools.cuda_rules.probe`).
"""

# mypy: disable-error-code="no-untyped-call"
# (the databases carry few annotations)

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex64, torch.complex128)
_STEPS = 2


@dataclass
class Sample:
    """One input, as OpInfo's `SampleInput`."""

    input: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def transform(self, place: Callable[[Any], Any]) -> Sample:
        """The same with every tensor, device and parameter replaced by `place` of it."""
        layer = isinstance(self.input, torch.nn.Module)
        moved = copy.deepcopy(self.input)._apply(place) if layer else tree_map(place, self.input)
        return Sample(moved, tree_map(place, tuple(self.args)), tree_map(place, dict(self.kwargs)))


@dataclass
class Layer:
    """A class of `torch.nn`, called on its inputs; its `ModuleInfo` knows them."""

    info: Any
    training: bool
    variant_test_name: str = ""

    @property
    def name(self) -> str:
        """The class's, in evaluation with a mark."""
        return f"layer {self.info.module_cls.__name__}" + ("" if self.training else ", evaluated")

    @property
    def dtypesIfCUDA(self) -> Sequence[torch.dtype]:  # noqa: N802 - OpInfo's name for it
        """Floats and complex numbers of every size: the database names those of the tests only."""
        return (*_FLOATS, *_COMPLEX, *self.info.dtypes)

    def sample_inputs(self, device: str, dtype: torch.dtype, *, requires_grad: bool) -> Iterator[Sample]:
        """Each layer with an input; raises where the layer cannot have parameters of this dtype."""
        if not (dtype.is_floating_point or dtype.is_complex):
            requires_grad = False
        for given in self.info.module_inputs_func(
            self.info, device=device, dtype=dtype, requires_grad=requires_grad, training=self.training
        ):
            if given.forward_input is None:
                continue
            layer = self.info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
            if dtype.is_floating_point or dtype.is_complex:
                layer.to(device, dtype)
            elif list(layer.parameters()):
                raise TypeError(f"parameters cannot be {dtype}")
            yield Sample(layer.train(self.training), given.forward_input.args, given.forward_input.kwargs)

    def __call__(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """What the layer returns."""
        return layer(*args, **kwargs)


@dataclass
class Optimizer:
    """A class of `torch.optim` in one of its implementations, called on the parameters that it steps."""

    info: Any
    variant_test_name: str
    dtypesIfCUDA: Sequence[torch.dtype] = _FLOATS  # noqa: N815 - OpInfo's name for it

    @property
    def name(self) -> str:
        """The class's."""
        return f"optimizer {self.info.optim_cls.__name__}"

    def sample_inputs(self, device: str, dtype: torch.dtype, *, requires_grad: bool) -> Iterator[Sample]:
        """Parameters of this dtype with each set of arguments; raises where they cannot have gradients."""
        chosen = {} if self.variant_test_name == "default" else {self.variant_test_name: True}
        for given in self.info.optim_inputs_func(device="cuda"):
            parameter = torch.ones(4, 3, dtype=dtype, device=device, requires_grad=True)
            yield Sample([parameter], (), {**given.kwargs, **chosen})

    def __call__(self, parameters: list[torch.Tensor], **kwargs: Any) -> None:
        """Two steps."""
        leaves = [parameter.detach().clone().requires_grad_() for parameter in parameters]
        stepper = self.info.optim_cls(leaves, **kwargs)
        for _ in range(_STEPS):
            for leaf in leaves:
                leaf.grad = torch.ones_like(leaf)
            if self.info.step_requires_closure:
                stepper.step(lambda: leaves[0].real.sum())
            else:
                stepper.step()


def operators() -> list[Any]:
    """OpInfo's operators, its lists of operations on lists, all layers in both modes, and all optimizers."""
    from torch.testing._internal import common_methods_invocations as infos
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db
    from torch.testing._internal.opinfo import core

    # It looks for a test in the stack and its source, for every input, which takes longer than all the rest.
    core.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    entries: list[Any] = list(infos.op_db)
    for name in dir(infos):
        if name.startswith("foreach") and isinstance(getattr(infos, name), list):
            entries += [op for op in getattr(infos, name) if hasattr(op, "sample_inputs")]
    for info in module_db:
        entries += [Layer(info, training) for training in ((True, False) if info.train_and_eval_differ else (True,))]
    for optimizer in optim_db:
        ways = ["default", *(way for way in ("foreach", "fused") if way in optimizer.supported_impls)]
        entries += [Optimizer(optimizer, way) for way in ways if not optimizer.only_supports_sparse_grads]
    return entries


def key_of(op: Any) -> str:
    """An operator's name with its variant's."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)
