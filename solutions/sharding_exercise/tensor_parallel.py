"""Task 7.3: a two-layer MLP whose layers are split among the ranks (tensor parallelism), by hand.

Not for DTensor: every message here is one that you send.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

Group = dist.ProcessGroup | None
"""The ranks that share a layer; None: all of them."""


# --- solution only ---
class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


# --- end ---


def copy_to_ranks(x: Tensor, group: Group = None) -> Tensor:
    """Let a tensor that all ranks have into their parts of a layer: the `f` of Megatron-LM.

    Forward sends nothing. Backward sums the gradients of the ranks, in one all-reduce; the gradient that comes to it
    may have any strides (that of a sum has strides of 0), and is left as it is.

    Args:
        x: any shape, the same on each rank of the group.
        group: the ranks that share the layer.

    Returns:
        The same values, differentiable.

    Source: M. Shoeybi and others, "Megatron-LM", section 3 (arXiv:1909.08053).
    """
    # TODO(task 7.3): a torch.autograd.Function of your own, above this function, and its `apply` here.
    # --- solution: task 7.3 ---
    return _Copy.apply(x, group)  # type: ignore[no-any-return]
    # --- end ---


def sum_over_ranks(x: Tensor, group: Group = None) -> Tensor:
    """Sum what each rank's part of a layer computed: the `g` of Megatron-LM.

    Forward sums over the ranks, in one all-reduce; `x` may have any strides, and is left as it is. Backward sends
    nothing: each rank's part gets the whole gradient.

    Args:
        x: any shape, the same on each rank of the group.
        group: the ranks that share the layer.

    Returns:
        The sum, on each rank, differentiable.
    """
    # TODO(task 7.3): another torch.autograd.Function. What would autograd do by itself with dist.all_reduce?
    # --- solution: task 7.3 ---
    return _Sum.apply(x, group)  # type: ignore[no-any-return]
    # --- end ---


class ParallelMLP(nn.Module):
    """down(activation(up(x))), the hidden features of which are shared out among the ranks of a group.

    The first layer is split by its outputs, the second one by its inputs. So the activation needs no message: forward
    is one all-reduce of the output, backward one of the input's gradient, and there are no others.

    Ranks share the hidden features in their order in the group: the first one has the first hidden / ranks of them.
    Each keeps these parameters, new ones in the layers' dtype, on the current GPU, and nothing else of the layers:

    - `up_weight` [hidden / ranks, in], `up_bias` [hidden / ranks] (or None): its rows;
    - `down_weight` [out, hidden / ranks]: its columns;
    - `down_bias` [out] (or None): whole on each rank, added once. Its gradient is the same on each rank.
    """

    def __init__(
        self,
        up: nn.Linear,
        down: nn.Linear,
        *,
        activation: Callable[[Tensor], Tensor] = functional.gelu,
        group: Group = None,
    ) -> None:
        """Take this rank's part of two layers.

        Args:
            up: the whole first layer, with `bias` or without, the same on every rank, on the CPU; it is left as it is.
            down: the whole second layer.
            activation: element by element.
            group: the ranks that share the hidden features.

        Raises:
            ValueError: the layers do not fit together, or the ranks cannot have equal shares of the hidden features.
        """
        super().__init__()
        # TODO(task 7.3):
        # 1. Refuse what cannot be split.
        # 2. The number of this rank in the group says which share is its own.
        # 3. Parameters of their own: a slice of a whole weight keeps all of it.
        # --- solution: task 7.3 ---
        ranks, hidden = dist.get_world_size(group), up.out_features
        if down.in_features != hidden or hidden % ranks:
            raise ValueError(
                f"{hidden} hidden features cannot be split among {ranks} ranks and go to {down.in_features}"
            )
        self.group, self.activation = group, activation
        size = hidden // ranks
        mine = slice(dist.get_rank(group) * size, (dist.get_rank(group) + 1) * size)

        def own(whole: Tensor | None, *where: slice) -> nn.Parameter | None:
            return None if whole is None else nn.Parameter(whole.detach()[where].contiguous().cuda())

        self.up_weight, self.up_bias = own(up.weight, mine), own(up.bias, mine)
        self.down_weight, self.down_bias = own(down.weight, slice(None), mine), own(down.bias)
        # --- end ---

    def forward(self, x: Tensor) -> Tensor:
        """The same output on each rank of the group.

        Args:
            x: [..., in], the same on each rank of the group.

        Returns:
            [..., out].
        """
        # TODO(task 7.3): f, the rows' layer, the activation, the columns' layer, g. Which of the biases goes where?
        # --- solution: task 7.3 ---
        assert self.up_weight is not None
        assert self.down_weight is not None
        hidden = self.activation(functional.linear(copy_to_ranks(x, self.group), self.up_weight, self.up_bias))
        out = sum_over_ranks(functional.linear(hidden, self.down_weight), self.group)
        return out if self.down_bias is None else out + self.down_bias
        # --- end ---
