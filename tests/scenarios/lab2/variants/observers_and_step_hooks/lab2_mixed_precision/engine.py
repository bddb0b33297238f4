"""A trainer in parts: a precision, a loop that tells its observers what happens, and observers that act on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from itertools import count, groupby
from typing import Any

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


class Precision:
    """What the products of a training are computed in, and where."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype, device: str | torch.device | None) -> Precision:
        """Moves the model."""
        place = next(model.parameters()).device if device is None else torch.device(device)
        model.to(place)
        return cls(dtype, place)

    @property
    def is_scaled(self) -> bool:
        return self.dtype is torch.float16

    @property
    def casts(self) -> AbstractContextManager[Any]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(device_type=self.device.type, dtype=self.dtype)

    def place(self, batch: Pair) -> Pair:
        inputs, targets = batch
        return inputs.to(self.device), targets.to(self.device)


class Modes:
    """Context: every module in evaluation mode, then in its own again."""

    def __init__(self, model: nn.Module) -> None:
        self.training = [module for module in model.modules() if module.training]
        self.model = model

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        for module in self.model.modules():
            module.training = False
        for module in self.training:
            module.training = True


class Average:
    """A mean over samples; the numbers stay on the device until it is asked for."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, int]] = []

    def add(self, parts: Iterable[tuple[Tensor, int]]) -> None:
        self.parts.extend(parts)

    @property
    def value(self) -> float | None:
        samples = sum(number for _, number in self.parts)
        return math.fsum(loss.item() * number for loss, number in self.parts) / samples if samples else None


class Observer:
    """Does nothing; override what is of interest."""

    def epoch_began(self) -> None: ...
    def epoch_ended(self) -> None: ...
    def window_ended(self, parts: list[tuple[Tensor, int]], taken: bool) -> None: ...


class History(Observer):
    """Losses and steps."""

    def __init__(self) -> None:
        self.losses: list[float | None] = []
        self.taken = 0
        self.skipped = 0

    def epoch_began(self) -> None:
        self.average = Average()

    def window_ended(self, parts: list[tuple[Tensor, int]], taken: bool) -> None:
        self.taken += taken
        self.skipped += not taken
        if taken:
            self.average.add(parts)

    def epoch_ended(self) -> None:
        self.losses.append(self.average.value)


class StepWatch:
    """Context: hooks of an optimizer around the steps that it really takes.

    A fused optimizer is called on an overflow, too, and told about it by `found_inf`.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, before: Callable[[], object], after: Callable[[], object]
    ) -> None:
        self.optimizer, self.before, self.after = optimizer, before, after
        self.steps = 0
        self.exits = ExitStack()

    def __enter__(self) -> StepWatch:
        for handle in (
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ):
            self.exits.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self.exits.close()

    @property
    def overflowed(self) -> bool:
        found = getattr(self.optimizer, "found_inf", None)
        return found is not None and bool(found)

    def _before(self, *_: object) -> None:
        if not self.overflowed:
            self.before()

    def _after(self, *_: object) -> None:
        if not self.overflowed:
            self.steps += 1
            self.after()


class Trainer:
    """The loop; everything that it does not need to know is done by observers and hooks."""

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        optimizer: torch.optim.Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor],
        scaler: torch.amp.GradScaler | None,
        *,
        max_grad_norm: float | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.model, self.precision, self.optimizer, self.criterion = model, precision, optimizer, criterion
        self.max_grad_norm, self.scheduler = max_grad_norm, scheduler
        self._given_scaler = scaler
        self.observers = list(observers)

    @cached_property
    def scaler(self) -> torch.amp.GradScaler:
        if self.precision.is_scaled:
            return self._given_scaler or torch.amp.GradScaler(self.precision.device.type)
        return torch.amp.GradScaler(self.precision.device.type, enabled=False)

    @property
    def final_scale(self) -> float | None:
        return self.scaler.get_scale() if self.precision.is_scaled else None

    def fit(self, loader: Iterable[Pair], epochs: int, window: int) -> None:
        self.model.train()
        self.model.zero_grad()
        with StepWatch(self.optimizer, self._clip, self._schedule) as watch:
            for _ in range(epochs):
                self._tell("epoch_began")
                for batches in self._windows(loader, window):
                    steps = watch.steps
                    parts = list(self._accumulate(batches))
                    self._step()
                    self._tell("window_ended", parts, watch.steps > steps)
                self._tell("epoch_ended")

    def _tell(self, event: str, *details: object) -> None:
        for observer in self.observers:
            getattr(observer, event)(*details)

    @staticmethod
    def _windows(loader: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
        position = count()
        for _, batches in groupby(loader, key=lambda _: next(position) // size):
            yield list(batches)

    def _accumulate(self, batches: list[Pair]) -> Iterator[tuple[Tensor, int]]:
        samples = sum(inputs.shape[0] for inputs, _ in batches)
        for inputs, targets in map(self.precision.place, batches):
            with self.precision.casts:
                loss = self.criterion(self.model(inputs), targets)
            share = inputs.shape[0] / samples
            self.scaler.scale(loss * share).backward()
            yield loss.detach(), inputs.shape[0]

    def _step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.model.zero_grad()

    def _clip(self) -> None:
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)

    def _schedule(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()


class Examiner:
    """Context: looks at what modules return, and at nothing afterwards.

    Attributes:
        first_bad: name of the first module that returned a number that is not finite.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.first_bad: str | None = None
        self.exits = ExitStack()

    def __enter__(self) -> Examiner:
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                self.exits.callback(self._put_back, module, name, buffer, None if buffer is None else buffer.clone())
        for name, module in self.model.named_modules():
            self.exits.callback(module.register_forward_hook(self._hook(name)).remove)
        return self

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            self.exits.close()

    @staticmethod
    def _put_back(module: nn.Module, name: str, buffer: Tensor | None, copy: Tensor | None) -> None:
        module._buffers[name] = buffer
        if buffer is not None and copy is not None:
            buffer.copy_(copy)

    def _hook(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if self.first_bad is None and self._is_bad(output):
                self.first_bad = name

        return look

    def _is_bad(self, output: object) -> bool:
        if isinstance(output, Tensor):
            return not torch.isfinite(output).all().item()
        return isinstance(output, tuple | list) and any(map(self._is_bad, output))


class GradientGuard:
    """Context: each gradient is looked at, then divided by the scale, as soon as backward has left it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.scale = 1.0
        self.alarms: list[Tensor] = []
        self.exits = ExitStack()
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def __enter__(self) -> GradientGuard:
        for parameter in self.parameters:
            self.exits.callback(parameter.register_post_accumulate_grad_hook(self._look).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self.exits.close()

    def begin(self, scale: float) -> None:
        self.scale = scale
        self.alarms.clear()
        self.model.zero_grad()

    @property
    def overflow(self) -> bool:
        return any(alarm.item() for alarm in self.alarms)

    def _look(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.alarms.append(parameter.grad.isfinite().logical_not().any())
        parameter.grad.div_(self.scale)
