"""Models that note how they are trained, and what the probes of several criteria of Lab 2 have in common.

They look at what any way of training must do: dtypes of parameters and weights before each forward pass, gradients as
they come in backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from gradebox.sandbox.probe_loader import Student
from grader.lab2.shared.cases import (
    BATCH_STEP,
    AmpResult,
    BackwardPass,
    ClearedDigits,
    Digits,
    DigitsReference,
    DigitsReply,
    ForwardPass,
    Passes,
    PassesReply,
    batch_of,
)
from grader.shared.probes.calls import on_device
from grader.shared.probes.facts import dtype, has_graph, is_training, modules_of, parameters_of
from grader.shared.probes.kept import function, method, notes
from grader.shared.probes.loaders import SizedLoader, sized_loader
from grader.shared.probes.ranks import Indexed
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import exact, fields_or_reason, plain
from labkit import data, models
from labkit.results import AmpTraining

AMP = "lab2_mixed_precision.amp_training"
OVERFLOWING_INPUT = 1e5
"""Infinite in float16, whose largest number is 65504, and harmless in the other precisions."""

_DIGITS_BATCH = 64
# Bound before a submission runs: what it replaces does not reach them.
_is_autocast_enabled = torch.is_autocast_enabled


@dataclass(frozen=True)
class Seen:
    """What a model saw of its training."""

    forwards: list[ForwardPass]
    backwards: list[BackwardPass]
    passes: list[str]
    """"forward" and "backward", in their order."""
    most_bytes: int
    """The most that was allocated on the GPU when a pass came by."""


class Watched(nn.Module):
    """Two modules one after the other; with a `head` next to `first` its parameters are in two children: a norm of each
    is not the norm of all."""

    def __init__(self, first: nn.Module, second: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.head = head
        self.first, self.second = first, second


def watched(
    first: nn.Module,
    second: nn.Module,
    head: nn.Module | None = None,
    *,
    signs: Tensor | None = None,
    turned: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Watched, Callable[[], Seen]]:
    """A model that is watched before each forward pass and in the middle of backward; and what was seen of it.

    Args:
        first: see `Watched`, as for the other modules.
        second: the other one.
        head: beside the first one.
        signs: by which the gradient of each output of `first` is multiplied if autocast is on in backward.
        turned: of which samples the model says the next class, so that nobody knows its outputs who goes around it.
    """
    note, noted = notes()

    def back(ctx: object, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        enabled = _is_autocast_enabled("cuda") or _is_autocast_enabled("cpu")
        note((BackwardPass(enabled, float(gradient.detach().float().abs().max())), _allocated()))
        return gradient * signs.to(gradient) if enabled and signs is not None else gradient

    class Middle(torch.autograd.Function):
        """The identity. A class of its own, so that no node of a graph has an attribute that notes."""

        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.view_as(x)

        backward = staticmethod(function(back))

    apply = Middle.apply

    def noting(model: Watched, x: Tensor) -> Tensor:
        training, before = modes(model), flat(model)
        inner = model.first(x) if model.head is None else torch.cat([model.head(x), model.first(x)], dim=1)
        output: Tensor = model.second(apply(inner))
        # The mode can be another one by now; what was computed has a graph or none.
        graph = has_graph(inner, output)
        forward = ForwardPass(len(x), training=training, gradients=graph, dtypes=dtypes(model), parameters=before)
        note((forward, _allocated() if graph else 0))
        return output if turned is None else torch.where(turned(x).unsqueeze(1), output.roll(1, dims=1), output)

    class Noting(Watched):
        forward = method(noting)

    def seen() -> Seen:
        passes: list[tuple[ForwardPass | BackwardPass, int]] = noted()
        forwards = [each for each, _ in passes if isinstance(each, ForwardPass)]
        backwards = [each for each, _ in passes if isinstance(each, BackwardPass)]
        with_graph = [each for each, _ in passes if isinstance(each, BackwardPass) or each.gradients]
        return Seen(
            forwards=forwards,
            backwards=backwards,
            passes=["backward" if isinstance(each, BackwardPass) else "forward" for each in with_graph],
            most_bytes=max((size for _, size in passes), default=0),
        )

    return Noting(first, second, head), seen


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


class Rows(nn.Module):
    """A linear layer whose weight is in several parameters, some rows in each; and a parameter that is frozen."""

    def __init__(self, weight: Tensor, *, dtype: torch.dtype = torch.float32, parts: int = 3) -> None:
        super().__init__()
        self.parts = nn.ModuleList(linear(part, dtype) for part in weight.tensor_split(parts))
        self.frozen = nn.Parameter(torch.full((2,), 0.5, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


def one_thread() -> None:
    """Small tensors: a second thread would only wait for a core that others use."""
    torch.set_num_threads(1)


def dtypes(model: nn.Module) -> list[str]:
    """The dtypes among a model's parameters."""
    return sorted({plain(dtype(parameter), "") for parameter in parameters_of(model)})


def modes(model: nn.Module) -> list[bool]:
    """Whether each of a model's modules is in training mode."""
    return [is_training(module) for module in modules_of(model)]


def flat(model: nn.Module) -> list[float]:
    """All parameters that are trained, in one list."""
    trained = [exact(parameter, "a parameter") for parameter in parameters_of(model) if has_graph(parameter)]
    parts = [parameter.detach().cpu().double().flatten() for parameter in trained]
    return [float(value) for value in torch.cat(parts).tolist()]


def linear(weight: Tensor, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A linear layer without bias, of these weights in this dtype."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.to(dtype, copy=True)
    return layer


def batches(inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """The samples in batches of these sizes."""
    return list(zip(inputs.split(list(sizes)), targets.split(list(sizes)), strict=True))


def classifier(first: Tensor, second: Tensor) -> nn.Module:
    """Of digits, with one hidden layer, of these weights and no biases to begin with."""
    model = models.mlp(in_features=64, hidden=(first.shape[0],), classes=10)
    for layer, weight in zip((model[1], model[3]), (first, second), strict=True):
        assert isinstance(layer, nn.Linear)
        layer.weight.data, layer.bias.data = weight.clone(), torch.zeros_like(layer.bias)
    return model


def loader(parts: Sequence[tuple[Tensor, Tensor]]) -> DataLoader[tuple[Tensor, ...]]:
    """The same batches from a DataLoader."""
    dataset = Indexed(*(torch.cat(column) for column in zip(*parts, strict=True)))
    places = torch.arange(len(dataset)).split([len(targets) for _, targets in parts])
    return DataLoader(dataset, batch_sampler=[part.tolist() for part in places])


def in_dtype(name: str) -> dict[str, torch.dtype]:
    """The argument `dtype` if it is not the default of the functions of this lab."""
    return {} if name == "float16" else {"dtype": dtype_of(name)}


def dtype_of(name: str) -> torch.dtype:
    """The dtype that PyTorch calls so."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def amp_result(value: object) -> AmpResult:
    """What `train_with_amp` returned, or why it is no result."""
    result: AmpResult = fields_or_reason(value, AmpTraining, "train_with_amp()")  # type: ignore[assignment]
    return result


def digits(student: Student, inputs: Digits) -> DigitsReply:
    """The accuracy is that of a forward pass of our own."""
    one_thread()
    train_with_amp = student.module(AMP).train_with_amp
    images, labels = data.load("digits").tensors
    batched = [(images[part], labels[part]) for part in inputs.order.split(_DIGITS_BATCH)]
    model = classifier(inputs.first, inputs.second).to(student.device)
    with watch_products(student.gpu) as products:
        train_with_amp(model, batched, inputs.epochs, **in_dtype(inputs.dtype))
        ran = products.counts()
    # By a model that nobody else has had: hooks could answer for the one that was trained.
    judged = classifier(inputs.first, inputs.second)
    with torch.no_grad():
        for own, trained in zip(judged.parameters(), parameters_of(model), strict=True):
            own.copy_(exact(trained, "a parameter").detach())
    return DigitsReply(accuracy=_accuracy(judged), products=ran)


def cleared_digits(student: Student, inputs: ClearedDigits) -> DigitsReply:
    """`digits` with gradients that are cleared."""
    with gradients_cleared():
        return digits(student, Digits(**inputs.fields_by_name()))


@contextmanager
def gradients_cleared() -> Iterator[None]:
    """No gradient outlives a step of an optimizer in here."""

    def clear(optimizer: torch.optim.Optimizer, *_: object) -> None:
        optimizer.zero_grad()

    handle = register_optimizer_step_post_hook(clear)
    try:
        yield
    finally:
        handle.remove()


def digits_reference(student: Student, inputs: DigitsReference) -> DigitsReply:
    """In a child without any student's code."""
    one_thread()
    images, labels = data.load("digits").tensors
    model = classifier(inputs.first, inputs.second)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(inputs.epochs):
        for part in inputs.order.split(_DIGITS_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    return DigitsReply(accuracy=_accuracy(model))


def _accuracy(model: nn.Module) -> float:
    """Over all digits, those of the training and those of the test."""
    train, test = data.load("digits").tensors, data.load("digits", split="test").tensors
    with torch.no_grad():
        right = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in (train, test))
    return right / (len(train[1]) + len(test[1]))


Batch = tuple[Tensor, Tensor]


def _turning(batches: int, seed: int) -> SizedLoader[Batch]:
    """A loader each pass of which has batches of its own, that say which they are."""
    passes = itertools.count()

    def of_a_pass() -> Iterator[Batch]:
        first = next(passes) * batches
        return iter([_batch(seed, number) for number in range(first, first + batches)])

    return sized_loader(batches, of_a_pass)


def _batch(seed: int, number: int) -> Batch:
    images, classes = batch_of(seed, number)
    return torch.from_numpy(images).reshape(-1, 1, 8, 8), torch.from_numpy(classes)


def passes(student: Student, inputs: Passes) -> PassesReply:
    """The model notes what it is trained on, whoever fetched it."""
    one_thread()
    torch.manual_seed(0)
    note, seen = notes()
    classes = linear(inputs.weight[:, :-1])
    classes.bias = nn.Parameter(inputs.weight[:, -1].clone())
    turning = _turning(inputs.batches, inputs.seed)
    train: dict[str, Callable[[], object]] = {
        "train_with_amp": lambda: student.module(AMP).train_with_amp(
            _noting(nn.Sequential(nn.Flatten(), classes), inputs.seed, note).to(student.device),
            turning,
            inputs.epochs,
        ),
        "train_unstable": lambda: _train_unstable(student, inputs, note),
        "measure_accuracies": lambda: student.module("lab2_mixed_precision.precision_comparison").measure_accuracies(
            function(lambda: _noting(_classifier(), inputs.seed, note)),
            turning,
            [_batch(inputs.seed, 0)],
            dtypes=[torch.float32],
            epochs=inputs.epochs,
            **on_device(student),
        ),
    }
    train[inputs.function]()
    became = None
    if inputs.function == "train_with_amp":
        weight, bias = (exact(each, "a parameter").detach().cpu().double() for each in (classes.weight, classes.bias))
        became = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    return PassesReply(batches=seen(), weight=became)


def _train_unstable(student: Student, inputs: Passes, note: Callable[[int], None]) -> object:
    module = student.module("lab2_mixed_precision.stability_tests")
    model = _noting(module.UnstableModel(1.0), inputs.seed, note).to(student.device)
    return module.train_unstable(model, _turning(inputs.batches, inputs.seed), inputs.epochs)


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def _noting(model: nn.Module, seed: int, note: Callable[[int], None]) -> nn.Module:
    """The model; it notes the number of each batch that it is trained on, or -1 if another batch says that number."""

    @function
    def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if is_training(module):
            images = exact(arguments[0], "what the model is called with").detach().cpu().float()
            number = round(float(images.flatten()[0]) / BATCH_STEP)
            # Pixels are exact in each precision of the lab.
            genuine = number >= 0 and torch.equal(images.flatten(), _batch(seed, number)[0].flatten())
            note(number if genuine else -1)

    model.register_forward_pre_hook(hook)
    return model
