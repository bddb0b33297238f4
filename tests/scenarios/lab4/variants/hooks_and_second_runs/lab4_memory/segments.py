"""Checkpointing by hooks on saved tensors: what a segment saves is replaced by tickets, redeemed by a second run."""

import contextlib
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True)
class Dice:
    """The generators' states at one moment."""

    device: torch.device
    cpu: Tensor
    gpu: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "Dice":
        on_gpu = device.type == "cuda"
        return cls(device, torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None)

    def put_back(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu, self.device)


@dataclass(frozen=True)
class Casting:
    """Which autocast is in force."""

    kind: str
    enabled: bool
    dtype: torch.dtype
    cache: bool

    @classmethod
    def now(cls, kind: str) -> "Casting":
        return cls(
            kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
        )

    def again(self) -> torch.autocast:
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.enabled, cache_enabled=self.cache)


class _AllThere(Exception):
    """The second run has made all that was wanted."""


@dataclass(eq=False)
class Segment(contextlib.AbstractContextManager["Segment"]):
    """`with Segment(blocks, x) as s: y = s.run(x)`: what blocks save in there is not kept."""

    blocks: tuple[nn.Module, ...]
    entry: Tensor
    dice: Dice = field(init=False)
    casting: Casting = field(init=False)
    tickets: int = 0
    safe: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = Dice.now(self.entry.device)
        self.casting = Casting.now(self.entry.device.type)
        self.hooks = saved_tensors_hooks(self.hand_in, self.redeem)

    def __enter__(self) -> "Segment":
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)
        del self.hooks

    def run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def hand_in(self, tensor: Tensor) -> int:
        ticket, self.tickets = self.tickets, self.tickets + 1
        return ticket

    def redeem(self, ticket: int) -> Tensor:
        if ticket not in self.safe:
            self.run_again()
        return self.safe.pop(ticket)

    def store(self, tensor: Tensor) -> int:
        number = len(self.safe)
        self.safe[number] = tensor.detach()
        if len(self.safe) == self.tickets:
            raise _AllThere
        return number

    def run_again(self) -> None:
        self.safe = {}
        outside = Dice.now(self.entry.device)
        self.dice.put_back()
        try:
            with (
                contextlib.suppress(_AllThere),
                torch.enable_grad(),
                self.casting.again(),
                saved_tensors_hooks(self.store, _never),
            ):
                self.run(self.entry.detach().requires_grad_(self.entry.requires_grad))
        finally:
            outside.put_back()


def _never(_: int) -> Tensor:
    raise AssertionError("nobody goes backward through the second run")
