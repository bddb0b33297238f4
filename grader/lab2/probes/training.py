"""Probes of Lab 2's training: precisions of what runs, what happens at each step, accuracy.

They look at what any way of training must do: dtypes of products, parameters before each forward pass, gradients as
they come in backward. Comparisons of precisions are in `lab2_comparison`, numerical tools in `lab2_stability`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from gradebox.sandbox.measuring import measures
from grader.shared.probes.endings import refused
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields_or_reason, plain
from labkit import data, models
from labkit.results import AmpTraining

AMP = "lab2_mixed_precision.amp_training"
SPOILER = 1e5
"""Infinite in float16, whose largest number is 65504, and harmless in the other precisions."""
FAR = 1e7
"""A target so far off that the loss is large and finite, but not, in float16, the gradient of that output."""
_IDLE_BYTES = 256 * 2**20
"""More than what cuBLAS keeps on any card: on an H100 32 MiB for each thread that has computed a product, and backward
has a thread of its own."""

_DIGITS_BATCH = 64


class _Spy(torch.autograd.Function):
    """The identity; in backward it notes whether autocast is on and the largest gradient that passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, watched: Watched) -> Tensor:
        ctx.watched = watched
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        enabled = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        ctx.watched.note("backward")
        ctx.watched.backwards.append({"autocast": enabled, "largest": float(gradient.detach().float().abs().max())})
        return gradient, None


class Watched(nn.Module):
    """A model that notes its parameters and modes before each forward pass, and what passes its middle in backward.

    With a `head` beside `first` its parameters are in two children: a norm of each is not that of all.
    """

    def __init__(self, first: nn.Module, second: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.head = head
        self.first, self.second = first, second
        self.forwards: list[dict[str, Any]] = []
        self.backwards: list[dict[str, Any]] = []
        self.passes: list[str] = []
        self.most_bytes = 0
        """The most that was allocated on the GPU when somebody looked."""

    def note(self, kind: str) -> None:
        """A forward or a backward pass comes by."""
        self.passes.append(kind)
        if torch.cuda.is_available():
            self.most_bytes = max(self.most_bytes, torch.cuda.memory_allocated())

    def forward(self, x: Tensor) -> Tensor:
        self.forwards.append(
            {
                "samples": len(x),
                "training": modes(self),
                "gradients": torch.is_grad_enabled(),
                "dtypes": dtypes(self),
                "parameters": flat(self) if self.training else [],
            }
        )
        inner = self.first(x) if self.head is None else torch.cat([self.head(x), self.first(x)], dim=1)
        output: Tensor = self.second(_Spy.apply(inner, self))
        self.note("forward")
        return output


class Rows(nn.Module):
    """A linear layer whose weight lies in several parameters, some rows in each; and a parameter that is frozen."""

    def __init__(self, weight: Tensor, *, wide: bool, parts: int = 3) -> None:
        super().__init__()
        self.parts = nn.ModuleList(linear(part, wide=wide) for part in weight.tensor_split(parts))
        self.frozen = nn.Parameter(torch.full((2,), 0.5, dtype=torch.float64 if wide else None), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


def one_thread() -> None:
    """Small tensors: a second thread would only wait for a core that others use."""
    torch.set_num_threads(1)


def dtypes(model: nn.Module) -> list[str]:
    """The dtypes among a model's parameters."""
    return sorted({plain(parameter.dtype, "") for parameter in model.parameters()})


def modes(model: nn.Module) -> list[bool]:
    """Whether each of a model's modules is in training mode."""
    return [module.training for module in model.modules()]


def flat(model: nn.Module) -> list[float]:
    """All parameters that are trained, in one list."""
    parts = [one.detach().cpu().double().flatten() for one in model.parameters() if one.requires_grad]
    return [float(value) for value in torch.cat(parts).tolist()]


def linear(weight: Tensor, *, wide: bool = False) -> nn.Linear:
    """A linear layer without bias, of these weights; in float64 if `wide`."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.double() if wide else weight.clone()
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


class _Losses(TorchDispatchMode):
    """Notes the dtypes in which the logarithm of a softmax is computed, however the cross entropy is written."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._log_softmax, torch.ops.aten.logsumexp):
            self.dtypes.add(plain(result.dtype, ""))
        return result


@measures("time")
def precision(
    student: Any,
    *,
    first: Tensor,
    second: Tensor,
    inputs: Tensor,
    targets: Tensor,
    sizes: Sequence[int],
    epochs: dict[str, int],
) -> dict[str, Any]:
    """Train a classifier with one hidden layer in each precision of `epochs`, one optimizer step per batch.

    The call has the document's arguments, and the dtype where that is not float16. The model comes in evaluation mode,
    and the peak of the device's memory is that of earlier work.
    """
    one_thread()
    train = student.module(AMP).train_with_amp
    runs = {}
    for name, count in epochs.items():
        model = Watched(linear(first), nn.Sequential(nn.ReLU(), linear(second))).to(student.device).eval()
        optimizers: dict[int, torch.optim.Optimizer] = {}
        handle = register_optimizer_step_post_hook(
            lambda one, *_, optimizers=optimizers: optimizers.setdefault(id(one), one)
        )
        idle = torch.empty(_IDLE_BYTES, dtype=torch.uint8, device=student.device)
        del idle
        start = _now()
        try:
            with watch_products(student.gpu) as products, _Losses() as losses:
                result = train(model, batches(inputs, targets, sizes), count, **in_dtype(name))
                ran, number_of_products = products.dtypes(), products.number()
        finally:
            handle.remove()
        states = [value for one in optimizers.values() for state in one.state.values() for value in state.values()]
        runs[name] = {
            "result": fields_or_reason(result, AmpTraining, "train_with_amp()"),
            "elapsed_seconds": _now() - start,
            "products": ran,
            "product_count": number_of_products,
            "losses": sorted(losses.dtypes),
            "forwards": model.forwards,
            "backwards": model.backwards,
            "parameters": dtypes(model),
            "most_bytes": model.most_bytes,
            "state": sorted({plain(value.dtype, "") for value in states if isinstance(value, Tensor) and value.ndim}),
        }
    return {"runs": runs, "idle_bytes": _IDLE_BYTES, "device": student.device}


def in_dtype(name: str) -> dict[str, Any]:
    """The argument `dtype` where it is not the default of the functions of this lab."""
    return {} if name == "float16" else {"dtype": getattr(torch, name)}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def train(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Train a linear model by SGD on squared differences, once per entry of `runs`, and note what each step did.

    A run has `dtype`, `sizes` (of the batches), `rate` (of learning) and may have `epochs`, `accumulation_steps`,
    `max_grad_norm`, `scaler` (arguments of GradScaler), `wide` (float64 throughout), `factor` (of the loss), `spoiled`
    (positions of batches whose inputs are far outside of float16), `far` (of batches whose loss is finite, and only the
    gradient of the last output is not), `decay` (a scheduler multiplies the rate by it with each of its steps),
    `loader` (true: batches come from a DataLoader, which has no positions), `momentum` and `moved` (true: the model
    comes on the CPU, and the device is given).
    """
    one_thread()
    module = student.module(AMP)
    return {"runs": [_train_once(student, module, weight, inputs, targets, run) for run in runs]}


def _train_once(
    student: Any, module: Any, weight: Tensor, inputs: Tensor, targets: Tensor, run: dict[str, Any]
) -> dict[str, Any]:
    wide, factor = run.get("wide", False), run.get("factor", 1.0)
    if wide:
        inputs, targets = inputs.double(), targets.double()
    parts = batches(inputs[: sum(run["sizes"])].clone(), targets[: sum(run["sizes"])].clone(), run["sizes"])
    for position in run.get("spoiled", []):
        parts[position][0].fill_(SPOILER)
    for position in run.get("far", []):
        parts[position][1][:, -1] = FAR
    upper, *lower = weight.tensor_split(3)
    head = linear(upper, wide=wide)
    model = Watched(Rows(torch.cat(lower), wide=wide, parts=2), nn.Identity(), head)
    if not run.get("moved"):
        model.to(student.device)
    assert isinstance(model.first, Rows)
    groups: list[Any] = [{"params": list(head.parameters())}, {"params": list(model.first.parts.parameters())}]
    optimizer = torch.optim.SGD(groups, lr=run["rate"], momentum=run.get("momentum", 0.0))
    decay = run.get("decay")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: decay**step) if decay else None
    scaler = torch.amp.GradScaler(student.device, **run["scaler"]) if "scaler" in run else None

    def criterion(outputs: Tensor, wanted: Tensor) -> Tensor:
        loss: Tensor = factor * 0.5 * (outputs - wanted).square().sum(dim=1).mean()
        return loss

    given = {"device": student.device if run.get("moved") else None, "scheduler": scheduler, "scaler": scaler}
    given |= {name: run.get(name) for name in ("max_grad_norm", "accumulation_steps")}
    result = module.train_with_amp(
        model,
        _loader(parts) if run.get("loader") else parts,
        run.get("epochs", 1),
        optimizer=optimizer,
        criterion=criterion,
        **in_dtype(run["dtype"]),
        **{name: value for name, value in given.items() if value is not None},
    )
    return {
        "result": fields_or_reason(result, AmpTraining, "train_with_amp()"),
        "before": [note["parameters"] for note in model.forwards],
        "after": flat(model),
        "largest_gradients": [note["largest"] for note in model.backwards],
        "passes": model.passes,
        "frozen": [float(value) for value in model.first.frozen.tolist()],
        "scheduler_steps": scheduler.last_epoch if scheduler is not None else None,
    }


def _loader(parts: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """The same batches from a DataLoader."""
    dataset = TensorDataset(*(torch.cat(column) for column in zip(*parts, strict=True)))
    places = torch.arange(len(dataset)).split([len(targets) for _, targets in parts])
    return DataLoader(dataset, batch_sampler=[part.tolist() for part in places])


def evaluate(student: Any, *, logits: Tensor, calls: Sequence[dict[str, Any]], **targets: Tensor) -> dict[str, Any]:
    """`evaluate` of a model whose outputs are its inputs, unless dropout is on.

    A call has `targets` (their name), `sizes` (of the batches), `modes` (of the model's modules: "training",
    "evaluation" or "mixed"), and may have `dtype`, `given` (true: the model comes on the CPU, and the device is given)
    and `loader` (true: batches come from a DataLoader). In the end there are no samples, and the modes of a model are
    told from before and after.
    """
    module = student.module(AMP)
    seen = []
    for call in calls:
        model = Watched(linear(torch.eye(logits.shape[1])), nn.Dropout(0.9))
        options: dict[str, Any] = {"dtype": getattr(torch, call["dtype"])} if "dtype" in call else {}
        if call.get("given"):
            options["device"] = student.device
        else:
            model.to(student.device)
        model.train(call["modes"] != "evaluation")
        model.first.train(call["modes"] == "training")
        before, weights = modes(model), flat(model)
        parts = batches(logits, targets[call["targets"]], call["sizes"])
        with watch_products(student.gpu) as products:
            told = module.evaluate(model, _loader(parts) if call.get("loader") else parts, **options)
            ran = products.dtypes()
        seen.append(
            {
                "accuracy": plain(told, "evaluate()"),
                "before": before,
                "after": modes(model),
                "during": [any(note["training"]) for note in model.forwards],
                "gradients": [note["gradients"] for note in model.forwards],
                "products": ran,
                "unchanged": flat(model) == weights,
            }
        )
    empty = []
    for training in (True, False):
        model.train(training)
        model.first.train(not training)
        before = modes(model)
        told = refused(lambda: module.evaluate(model, []))
        empty.append({"refused": told, "before": before, "after": modes(model)})
    return {"calls": seen, "empty": empty}


def steps(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    labels: Tensor,
    sizes: Sequence[int],
    spoiled: Sequence[int] = (),
    epochs: int = 1,
) -> dict[str, Any]:
    """Train a linear classifier in float16, with the arguments of the document and no others; what each step did.

    Args:
        spoiled: positions of batches whose inputs are far outside of float16.
    """
    one_thread()
    parts = batches(inputs.clone(), labels, sizes)
    for position in spoiled:
        parts[position][0].fill_(SPOILER)
    model = Watched(Rows(weight, wide=False), nn.Identity()).to(student.device)
    assert isinstance(model.first, Rows)
    result = student.module(AMP).train_with_amp(model, parts, epochs)
    return {
        "result": fields_or_reason(result, AmpTraining, "train_with_amp()"),
        "before": [note["parameters"] for note in model.forwards],
        "after": flat(model),
        "frozen": [float(value) for value in model.first.frozen.tolist()],
    }


def digits(student: Any, *, first: Tensor, second: Tensor, order: Tensor, dtype: str, epochs: int) -> dict[str, Any]:
    """Train on the handwritten digits in `dtype`, and the course's own loop in float32, from the same weights.

    The accuracies over all images are those of a forward pass of our own, in float32 on the CPU.
    """
    one_thread()
    train_with_amp = student.module(AMP).train_with_amp
    images, labels = data.load("digits").tensors
    loader = [(images[part], labels[part]) for part in order.split(_DIGITS_BATCH)]
    tests = data.load("digits", split="test").tensors

    def accuracy(model: nn.Module) -> float:
        model.cpu().float().eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in ((images, labels), tests))
        return right / (len(labels) + len(tests[1]))

    model = classifier(first, second).to(student.device)
    train_with_amp(model, loader, epochs, **in_dtype(dtype))
    return {"reached": accuracy(model)}


def digits_truth(student: Any, *, first: Tensor, second: Tensor, order: Tensor, epochs: int) -> dict[str, Any]:
    """The accuracy that the same training reaches in float32 by a loop of the course."""
    one_thread()
    images, labels = data.load("digits").tensors
    tests = data.load("digits", split="test").tensors
    model = classifier(first, second)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        for part in order.split(_DIGITS_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    with torch.no_grad():
        right = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in ((images, labels), tests))
    return {"reached": right / (len(labels) + len(tests[1]))}
