"""Blocks ahead by hooks of its own; the state by full_tensor and broadcasts."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model, blocks, *, compute_dtype=None, reshard_after_forward=True, prefetch=0):
    mine = [module for module in model.modules() if module is not model]
    if not len(blocks):
        raise ValueError("no blocks")
    for block in blocks:
        if not any(block is module for module in mine):
            raise ValueError("a block is no part of the model")
    if prefetch < 0:
        raise ValueError("prefetch is 0 at least")
    common = {"param_dtype": compute_dtype, "reduce_dtype": torch.float32}
    for block in reversed(blocks):
        fully_shard(block, mp_policy=MixedPrecisionPolicy(**common), reshard_after_forward=reshard_after_forward)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**common, output_dtype=torch.float32))
    for number, block in enumerate(blocks):

        def ahead(module, arguments, number=number):
            if not torch.is_grad_enabled() or prefetch == 0:
                return
            for following in blocks[number + 1 : number + 1 + prefetch]:
                following.unshard(async_op=True)

        block.register_forward_pre_hook(ahead)
    return model


def train_step(model, optimizer, inputs, targets, criterion, *, max_norm=None):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = criterion(outputs, targets)
    loss.backward()
    if max_norm:
        gradients = [p.grad.to_local() for p in model.parameters()]
        squares = sum((g.double() ** 2).sum() for g in gradients)
        dist.all_reduce(squares)
        factor = min(1.0, max_norm / (squares.sqrt().item() + 1e-6))
        for g in gradients:
            g *= factor
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    losses = torch.stack([loss.detach()] * dist.get_world_size())
    dist.all_gather_into_tensor(losses, loss.detach().reshape(1))
    return losses.mean().item()


def gather_state(model):
    state = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if dist.get_rank() == 0:
            state[name] = whole.detach().cpu().clone()
    return state


def load_state(model, state):
    with torch.no_grad():
        for name, value in model.state_dict().items():
            whole = torch.empty(value.shape, dtype=value.dtype, device="cuda")
            if dist.get_rank() == 0:
                whole.copy_(state[name])
            dist.broadcast(whole, 0)
            if isinstance(value, DTensor):
                value.copy_(distribute_tensor(whole, value.device_mesh, value.placements))
            else:
                value.copy_(whole)
