"""What PyTorch would exchange of its own while a submission runs, done before: any other exchange is then seen."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

_Exchanged: TypeAlias = Any
"""A class some of whose methods PyTorch exchanges, which its types do not show."""
_NO_TAGS = {"___has_generation_tag_patch": True, "___needs_generation_tag_patch": False}
"""Whether Dynamo has exchanged them, as PyTorch 2.15 and 2.11 note it (torch/_dynamo/mutation_guard.py)."""


def settle(torch: ModuleType) -> None:
    """Wrap the `step` of each optimizer's class, as the first optimizer of the class does; leave Dynamo no method.

    Dynamo exchanges two methods of modules to tell which modules a function makes, and asks that of no module since it
    takes their parameters for inputs.
    """
    kinds: list[_Exchanged] = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    for kind in kinds:
        is_optimizer = issubclass(kind, torch.optim.Optimizer) and "step" in vars(kind)
        if is_optimizer and not getattr(kind.step, "hooked", False):
            wrapped = kind.profile_hook_step(kind.step)
            wrapped.hooked = True
            kind.step = wrapped
    for name, value in _NO_TAGS.items():
        setattr(torch.nn.Module, name, value)
