"""The whole optimizer on every rank, which sees the gradients of its own share only, and so has states of no others."""

import torch
import torch.distributed as dist
from torch.optim import Optimizer


class ShardedOptimizer(Optimizer):
    def __init__(self, params, optimizer_class, **options):
        self.make = lambda group: optimizer_class([group], **options)
        self.whole = None
        self.load = torch.zeros(dist.get_world_size(), dtype=torch.long)
        self.owners = {}
        super().__init__(params, options)

    def add_param_group(self, param_group):
        param_group = dict(param_group)
        if isinstance(param_group["params"], torch.Tensor):
            param_group["params"] = [param_group["params"]]
        param_group["params"] = list(param_group["params"])
        if self.whole is None:
            self.whole = self.make(param_group)
        else:
            self.whole.add_param_group(param_group)
        for p in param_group["params"]:
            owner = int(self.load.argmin())
            self.owners[p] = owner
            self.load[owner] += p.numel() * p.element_size()
        self.param_groups = self.whole.param_groups

    def step(self, closure=None):
        loss = closure() if closure else None
        others = {p: p.grad for p, owner in self.owners.items() if owner != dist.get_rank()}
        for p in others:
            p.grad = None
        self.whole.step()
        for p, gradient in others.items():
            p.grad = gradient
        under_way = []
        for p, owner in self.owners.items():
            weights = p.detach().contiguous()
            under_way.append((p, weights, dist.broadcast(weights, owner, async_op=True)))
        for p, weights, message in under_way:
            message.wait()
            if weights.data_ptr() != p.data_ptr():
                p.data.copy_(weights)
        return loss

    def state_dict(self):
        state = self.whole.state_dict()
        mine = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), state["state"])
        parts = [None for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, mine)
        state["state"] = {number: one for part in parts for number, one in part.items()}
        return state

    def load_state_dict(self, state_dict):
        order = [p for group in self.param_groups for p in group["params"]]
        mine = {
            number: one
            for number, one in state_dict["state"].items()
            if number < len(order) and self.owners[order[number]] == dist.get_rank()
        }
        self.whole.load_state_dict({**state_dict, "state": mine})
        self.param_groups = self.whole.param_groups
