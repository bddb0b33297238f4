"""Task 7.2: parameters, gradients and optimizer states shared out with PyTorch's `fully_shard` (FSDP2, ZeRO stage 3).

Not for starting processes: every function here is called by all ranks of the default process group, each of which has a
GPU of its own as the current one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    compute_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
    prefetch: int = 0,
) -> nn.Module:
    """Shard a model with `fully_shard`, in place: each block by itself, then what is left.

    A block's parameters are gathered when it is its turn, and let go after it, so that no rank ever holds the whole
    model on its GPU, neither here nor in a training step.

    Args:
        model: in float32, on the CPU, the same on every rank.
        blocks: parts of it, in the order in which they compute; none is a part of another one.
        compute_dtype: None: float32. Otherwise blocks, and what is left of the model, are gathered, compute and return
            in this dtype. Parameters and optimizer states stay in float32; gradients are summed in float32; and what
            the whole model returns is float32.
        reshard_after_forward: whether a block lets its gathered parameters go after forward, and gathers them once more
            for backward. Otherwise it keeps them until its backward is done.
        prefetch: how many of the blocks that follow begin to be gathered before a block computes, in forward.

    Returns:
        The model, whose parameters are DTensors on this rank's GPU now; buffers are whole on each.

    Raises:
        ValueError: there are no blocks, one of them is no part of the model or is the model itself, or `prefetch` is
            below 0.

    Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    # TODO(task 7.2):
    # 1. Refuse arguments that make no sense, before anything is changed.
    # 2. A policy for the blocks, one for the model.
    # 3. fully_shard for each block, then for the model.
    # 4. set_modules_to_forward_prefetch, for those blocks that have others behind them.
    # --- solution: task 7.2 ---
    parts = set(model.modules()) - {model}
    if not blocks or not parts.issuperset(blocks) or prefetch < 0:
        raise ValueError("shard() needs blocks, all of them parts of the model, and a prefetch of 0 at least")
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    whole = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, output_dtype=torch.float32 if compute_dtype else None
    )
    for block in blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mp_policy=whole, reshard_after_forward=reshard_after_forward)
    for index, block in enumerate(blocks):
        following = blocks[index + 1 : index + 1 + prefetch]
        if following:
            assert isinstance(block, FSDPModule)
            block.set_modules_to_forward_prefetch([later for later in following if isinstance(later, FSDPModule)])
    return model
    # --- end ---


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    inputs: Tensor,
    targets: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    *,
    max_norm: float | None = None,
) -> float:
    """One step of training, all ranks together, each with its own batch of the same size.

    Args:
        model: as `shard` returned it.
        optimizer: of its parameters, made after `shard`.
        inputs: of this rank, on its GPU.
        targets: as the criterion wants them.
        criterion: outputs and targets to the mean loss of a batch.
        max_norm: None: no clipping. Otherwise the gradient's norm, that of all parameters of all ranks together, is
            clipped to it.

    Returns:
        The mean loss over the batches of all ranks, before the step. Gradients are gone afterwards (None).
    """
    # TODO(task 7.2):
    # 1. Forward, backward: which ranks' gradients have been averaged by then?
    # 2. Clip, step, drop the gradients.
    # 3. The mean of the ranks' losses.
    # --- solution: task 7.2 ---
    loss = criterion(model(inputs), targets)
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean.item()
    # --- end ---


def gather_state(model: nn.Module) -> dict[str, Tensor]:
    """A sharded model's whole state, parameters and buffers, to be saved by one rank.

    Returns:
        On rank 0 what `state_dict()` of the model without sharding would be, ordinary tensors on the CPU; on all other
        ranks an empty dictionary.
    """
    # TODO(task 7.2): torch.distributed.checkpoint.state_dict has it; see its options.
    # --- solution: task 7.2 ---
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, Any] = get_model_state_dict(model, options=options)
    return whole
    # --- end ---


def load_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a sharded model the state that `gather_state` gave, on any number of ranks.

    Args:
        model: as `shard` returned it; afterwards it is sharded as before.
        state: on rank 0 the whole state, which is left as it is; what other ranks pass is not looked at.
    """
    # TODO(task 7.2): only rank 0 has something to give.
    # --- solution: task 7.2 ---
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(state) if dist.get_rank() == 0 else {}, options=options)
    # --- end ---
