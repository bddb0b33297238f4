"""Task 7.1: an optimizer whose states are shared out among the ranks (ZeRO, stage 1).

Not for gradients: those of all ranks are equal before `step`, as DistributedDataParallel leaves them.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer


class ShardedOptimizer(Optimizer):
    """Any optimizer of `torch.optim`, each rank of which keeps states of its own share of the parameters only.

    Each parameter belongs to one rank, as a whole, so that it does not matter how the optimizer class computes. The
    parameters are balanced by their bytes: no rank owns more than another one and the largest parameter. After `step`
    every rank has every new weight, from the rank that owns it; on the way each weight is sent once.

    All ranks make it with the same parameters in the same order, in the default process group, and call each of its
    functions together. Weights and gradients are the same on all ranks beforehand. There may be fewer parameters than
    ranks; parameters may have different dtypes, any strides, and no gradient: then they stay as they are.

    Code that reads and writes optimizers goes on working: learning rate schedulers, and other code that changes
    `param_groups`, whose entries are complete on every rank (all parameters, all options, defaults of the optimizer
    class included).

    Source: S. Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section
    5.1 (arXiv:1910.02054).
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], optimizer_class: type[Optimizer], **options: Any
    ) -> None:
        """Share the parameters out.

        Args:
            params: parameters, or groups of them with options of their own, as for every optimizer.
            optimizer_class: for example `torch.optim.AdamW`.
            options: of that class, for example `lr=1e-3`.

        Raises:
            ValueError: there are no parameters, or one of them is in two groups.
        """
        # TODO(task 7.1):
        # 1. What `add_param_group` needs.
        # 2. Let Optimizer's own __init__ make the groups: it calls `add_param_group` for each of them.
        # --- solution: task 7.1 ---
        self._class, self._options = optimizer_class, options
        self._own: Optimizer | None = None
        self._owner: dict[Tensor, int] = {}
        self._bytes = [0] * dist.get_world_size()
        super().__init__(params, options)
        # --- end ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take further parameters in, also after some steps; what was shared out before stays where it is.

        Args:
            param_group: "params", a list of parameters, and options that differ from those of the constructor.

        Raises:
            ValueError: as in the constructor.
        """
        # TODO(task 7.1):
        # 1. Optimizer's own add_param_group refuses what makes no sense.
        # 2. Share out: the next parameter goes to the rank that owns least. In which order is that balanced best?
        # 3. This rank's optimizer gets a group with its share, which may be empty. Its class fills in what was not
        #    given: not all of a class's defaults are arguments of its constructor.
        # --- solution: task 7.1 ---
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in sorted(group["params"], key=lambda one: one.nbytes, reverse=True):
            owner = self._bytes.index(min(self._bytes))
            self._owner[parameter] = owner
            self._bytes[owner] += parameter.nbytes
        own = {**group, "params": [one for one in group["params"] if self._owner[one] == dist.get_rank()]}
        if self._own is None:
            self._own = self._class([own], **self._options)
        else:
            self._own.add_param_group(own)
        for name, value in self._own.param_groups[-1].items():
            group.setdefault(name, value)
        # --- end ---

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update this rank's share, then let every rank have every weight.

        Args:
            closure: computes the loss again, and gradients, before anything is updated; called once, on every rank.

        Returns:
            What the closure returned; None without one.
        """
        # TODO(task 7.1):
        # 1. This rank's optimizer steps with the options that `param_groups` have now.
        # 2. Every weight goes from its owner to all others. Few large messages are quicker than many small ones, and
        #    collectives take contiguous tensors of one dtype.
        # --- solution: task 7.1 ---
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert self._own is not None
        for own, group in zip(self._own.param_groups, self.param_groups, strict=True):
            own.update({name: value for name, value in group.items() if name != "params"})
        self._own.step()
        self._hand_out()
        return loss
        # --- end ---

    # --- solution only ---
    @torch.no_grad()
    def _hand_out(self) -> None:
        """Each owner's parameters of a dtype travel in one message."""
        shares: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        for parameter, owner in self._owner.items():
            shares.setdefault((owner, parameter.dtype), []).append(parameter)
        for (owner, _), parameters in shares.items():
            message = torch.cat([parameter.reshape(-1) for parameter in parameters])
            dist.broadcast(message, owner)
            if owner != dist.get_rank():
                parts = message.split([parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view(parameter.shape))

    # --- end ---

    def state_dict(self) -> dict[str, Any]:
        """The whole state, of all ranks, as the optimizer class without sharding would give it.

        Returns:
            On every rank: "state", by a parameter's number in the order of `param_groups`, on the CPU; "param_groups".
        """
        # TODO(task 7.1): Optimizer's own state_dict numbers the parameters; the states are spread over the ranks.
        # --- solution: task 7.1 ---
        assert self._own is not None
        numbers = {one: number for number, one in enumerate(self._all_parameters())}
        mine = {
            numbers[parameter]: {
                name: value.cpu() if isinstance(value, Tensor) else value for name, value in state.items()
            }
            for parameter, state in self._own.state.items()
        }
        shares: list[dict[int, Any]] = [{}] * dist.get_world_size()
        dist.all_gather_object(shares, mine)
        whole = super().state_dict()
        whole["state"] = dict(sorted(entry for share in shares for entry in share.items()))
        return whole
        # --- end ---

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, on any number of ranks, or what the class without sharding gave.

        Each rank keeps the states of its own share only.

        Raises:
            ValueError: the groups are others, or have other numbers of parameters.
        """
        # TODO(task 7.1): which numbers has this rank's share, group by group? Take the options back as well.
        # --- solution: task 7.1 ---
        assert self._own is not None
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is that of an optimizer with other parameters")
        kept = [number for group in saved for number in group["params"]]
        numbers = dict(zip(self._all_parameters(), kept, strict=True))
        groups = [
            {**theirs, "params": [numbers[parameter] for parameter in own["params"]]}
            for own, theirs in zip(self._own.param_groups, saved, strict=True)
        ]
        states = state_dict["state"]
        mine = {number: states[number] for group in groups for number in group["params"] if number in states}
        self._own.load_state_dict({"state": mine, "param_groups": groups})
        for group, theirs in zip(self.param_groups, saved, strict=True):
            group.update({name: value for name, value in theirs.items() if name != "params"})
        # --- end ---

    # --- solution only ---
    def _all_parameters(self) -> list[Tensor]:
        return list(itertools.chain.from_iterable(group["params"] for group in self.param_groups))

    # --- end ---
