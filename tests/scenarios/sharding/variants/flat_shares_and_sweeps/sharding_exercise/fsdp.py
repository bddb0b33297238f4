"""Prefetching by names of modules; state by PyTorch's functions, a tensor at a time on the way back."""

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_


def shard(model, blocks, *, compute_dtype=None, reshard_after_forward=True, prefetch=0):
    blocks = list(blocks)
    names = {module: name for name, module in model.named_modules()}
    if prefetch < 0 or not blocks or any(names.get(block, "") == "" for block in blocks):
        raise ValueError("blocks must be parts of the model")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    kinds = {} if compute_dtype is None else {"param_dtype": compute_dtype, "reduce_dtype": torch.float32}
    outer = kinds if compute_dtype is None else {**kinds, "output_dtype": torch.float32}
    for block in blocks:
        fully_shard(
            block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**kinds), reshard_after_forward=reshard_after_forward
        )
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**outer), reshard_after_forward=False)
    for ahead in range(len(blocks)):
        blocks[ahead].set_modules_to_forward_prefetch(blocks[ahead + 1 : ahead + prefetch + 1])
    return model


def train_step(model, optimizer, inputs, targets, criterion, *, max_norm=None):
    loss = criterion(model(inputs), targets)
    loss.backward()
    if max_norm is not None:
        clip_grad_norm_(model.parameters(), max_norm, foreach=False)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    told = [0.0] * dist.get_world_size()
    dist.all_gather_object(told, loss.item())
    return sum(told) / len(told)


def gather_state(model):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return state if dist.get_rank() == 0 else {}


def load_state(model, state):
    copies = {name: value.clone() for name, value in state.items()} if dist.get_rank() == 0 else {}
    set_model_state_dict(
        model, copies, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=True)
    )
