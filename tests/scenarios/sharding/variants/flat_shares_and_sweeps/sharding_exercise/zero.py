"""An all-gather of flat shares, padded to the largest of them; nothing of Optimizer but its name."""

import copy

import torch
import torch.distributed as dist
from torch.optim import Optimizer


class ShardedOptimizer(Optimizer):
    def __init__(self, params, optimizer_class, **options):
        params = list(params)
        if not params:
            raise ValueError("no parameters")
        if not isinstance(params[0], dict):
            params = [{"params": params}]
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.optimizer_class, self.options = optimizer_class, options
        self.shares = [[] for _ in range(self.ranks)]
        self.locals = []
        self.whole_groups = []
        super().__init__(params, options)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        order = sorted(range(len(group["params"])), key=lambda index: -group["params"][index].nbytes)
        mine = []
        for index in order:
            p = group["params"][index]
            owner = min(range(self.ranks), key=lambda rank: sum(q.nbytes for q in self.shares[rank]))
            self.shares[owner].append(p)
            if owner == self.rank:
                mine.append(p)
        options = {name: value for name, value in group.items() if name != "params"}
        # An optimizer for each group; one without parameters tells the defaults.
        nobody = torch.nn.Parameter(torch.zeros(1, device="cpu"))
        local = self.optimizer_class(mine or [nobody], **{**self.options, **options})
        self.locals.append((local, mine))
        for name, value in local.param_groups[0].items():
            group.setdefault(name, value)

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for (local, _), group in zip(self.locals, self.param_groups, strict=True):
            for name in group:
                if name != "params":
                    local.param_groups[0][name] = group[name]
            local.step()
        with torch.no_grad():
            for dtype in sorted({p.dtype for share in self.shares for p in share}, key=str):
                parts = [[p for p in share if p.dtype == dtype] for share in self.shares]
                sizes = [sum(p.numel() for p in part) for part in parts]
                device = next(p.device for part in parts for p in part)
                sent = torch.zeros(max(sizes), dtype=dtype, device=device)
                if sizes[self.rank]:
                    sent[: sizes[self.rank]] = torch.cat([p.flatten() for p in parts[self.rank]])
                everything = torch.empty(self.ranks * max(sizes), dtype=dtype, device=device)
                dist.all_gather_into_tensor(everything, sent)
                for rank, part in enumerate(parts):
                    place = rank * max(sizes)
                    for p in part:
                        p.copy_(everything[place : place + p.numel()].view_as(p))
                        place += p.numel()
        return loss

    def _numbers(self):
        return {p: number for number, p in enumerate(p for group in self.param_groups for p in group["params"])}

    def state_dict(self):
        numbers = self._numbers()
        whole = {}
        for owner in range(self.ranks):
            state = [{}]
            if owner == self.rank:
                for local, mine in self.locals:
                    for p in mine:
                        if p in local.state:
                            state[0][numbers[p]] = {
                                name: value.to("cpu", copy=True) if torch.is_tensor(value) else value
                                for name, value in local.state[p].items()
                            }
            dist.broadcast_object_list(state, owner)
            whole.update(state[0])
        groups, first = [], 0
        for group in self.param_groups:
            count = len(group["params"])
            options = {name: copy.copy(value) for name, value in group.items() if name != "params"}
            groups.append({**options, "params": list(range(first, first + count))})
            first += count
        return {"state": whole, "param_groups": groups}

    def load_state_dict(self, state_dict):
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError("other groups")
        for theirs, ours in zip(groups, self.param_groups, strict=True):
            if len(theirs["params"]) != len(ours["params"]):
                raise ValueError("other parameters")
        for theirs, ours, (local, mine) in zip(groups, self.param_groups, self.locals, strict=True):
            places = dict(zip(ours["params"], theirs["params"], strict=True))
            states = {
                index: state_dict["state"][places[p]]
                for index, p in enumerate(mine)
                if places[p] in state_dict["state"]
            }
            options = {name: value for name, value in theirs.items() if name != "params"}
            local.load_state_dict(
                {"state": states, "param_groups": [{**options, "params": list(range(len(mine) or 1))}]}
            )
            ours.update(options)
