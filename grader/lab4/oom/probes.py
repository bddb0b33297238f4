"""Probes of Lab 4's out-of-memory script and handler.

The script runs on a virtual GPU of 24 GB on every machine: the probe attaches it by itself.
"""

from __future__ import annotations

import gc
import itertools
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

import vgpu
from gradebox.sandbox.devices import Reading
from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab4.oom.cases import (
    Attempts,
    Fits,
    FitsReply,
    ForwardPass,
    Look,
    OomProgram,
    OtherReply,
    OtherTraining,
    Retry,
    RetryReply,
    RetryRun,
    Steady,
    SteadyReply,
    Trainings,
    TrainingsReply,
)
from grader.lab4.shared.cases import ProgramReply
from grader.shared.probes.facts import has_graph, is_training
from grader.shared.probes.handed_out import zeros
from grader.shared.probes.kept import function, method, notes
from grader.shared.probes.loaders import Loader, loader
from grader.shared.probes.record import Reported, VirtualGpu, mark, memory_since_now, reading, watch_products
from grader.shared.probes.support import exact, fields, plain, run_program
from grader.shared.readings import ProductCount
from labkit.device import GPU_24_GB
from labkit.results import LargeTraining

SCRIPT, RETRY = "lab4_memory.oom_fixes", "lab4_memory.oom_retry"
_BALLAST_BYTES = 2**20
_NOBODY_HAS = 2**50
"""Bytes. A driver may lend a GPU the machine's memory (Windows does), so that twice its own is there."""
_ERRORS = {"RuntimeError": RuntimeError, "ValueError": ValueError, "MemoryError": MemoryError}
_TOKENS = {"training": 1, "validation": 2}
"""Of a sample of each loader."""
_MOST_ATTEMPTS = 50
_STEP = 2**28
"""Bytes: what fills the device leaves less than that free."""


Batch: TypeAlias = tuple[Tensor, Tensor]
"""Data and targets."""
StudentModel: TypeAlias = Any
"""A model of the submission's class, whose `layers` are linear layers."""


def fits(student: Student, inputs: Fits) -> FitsReply:
    """Train the full model on a GPU of 24 GB, shapes only, where something before it has filled the device and gone."""
    module, length = student.module(SCRIPT), inputs.length
    with torch.device("cuda"):
        model = module.VeryLargeModel()
    parameters = sum(exact(parameter, "a parameter").numel() for parameter in model.parameters())
    # Of pages that nobody has written: with shapes only, nobody reads them either.
    samples = zeros(max(*inputs.batches, *inputs.validation), length, 4096)
    memory = memory_since_now(student.gpu)
    before = torch.empty(torch.cuda.mem_get_info()[0] // _STEP * _STEP, dtype=torch.uint8, device="cuda")
    del before
    torch.cuda.empty_cache()
    before_bytes = memory.peak()
    note, noted = notes()

    def fetched(name: str, sizes: Sequence[int]) -> Iterator[Batch]:
        for size in sizes:
            note((name, None, torch.cuda.memory_allocated()))  # what the device holds when a batch is fetched
            yield samples[:size], samples[-size:]

    @function
    def begins(_: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        (data,) = (*arguments, *named.values())
        note(("", data.numel() // (length * 4096), torch.cuda.memory_allocated()))

    model.register_forward_pre_hook(begins, with_kwargs=True)
    died, result = None, None
    loaders = (
        loader(partial(fetched, "train", inputs.batches)),
        loader(partial(fetched, "val", inputs.validation)),
    )
    memory, begun = memory_since_now(student.gpu), mark(student.gpu)
    try:
        result = module.train_large_model(model, *loaders, micro_batch=inputs.micro_batch)
    except torch.OutOfMemoryError as error:
        died = str(error).partition(". GPU")[0]
    forwards, moved, grown = _forwards(noted())
    return FitsReply(
        died=died,
        result=None if result is None else fields(result, LargeTraining, "train_large_model()"),
        parameters=parameters,
        forwards=forwards,
        moved_bytes=moved,
        grown_bytes=grown,
        largest_copy=cast(float, reading(student.gpu, "largest_copy_in", begun)),
        before_bytes=before_bytes,
        peak_bytes=memory.peak(),
        products=cast("list[ProductCount]", reading(student.gpu, "products", begun)),  # the judge gets it
    )


def _forwards(noted: Sequence[tuple[str, int | None, int]]) -> tuple[list[int], dict[str, int], dict[str, int]]:
    """Samples of each forward pass, and for each loader what its first micro-batch added to what the device held when
    the batch was fetched, and its second one to what was held at the first. Of these only: later on a step may fall
    between fetching a batch and using it."""
    forwards: list[int] = []
    moved: dict[str, int] = {}
    grown: dict[str, int] = {}
    loader, before = "", 0
    for name, samples, held in noted:
        if samples is None:
            loader, before = name, held
            continue
        forwards.append(samples)
        added = moved if loader not in moved else grown
        added.setdefault(loader, held - before)
        before = held
    return forwards, moved, grown


def trainings(student: Student, inputs: Trainings) -> TrainingsReply:
    """Train a small model in float64.

    Then train it in float32 with the criterion multiplied by `scale`: one epoch of the same samples, each of them cut
    out as a sequence of one token, to see what small gradients do. Then train it in float64 in each of the other ways.
    """
    module, steps = student.module(SCRIPT), len(inputs.batches)

    def filled(dtype: torch.dtype) -> StudentModel:
        model = module.VeryLargeModel(inputs.layers, inputs.weights.shape[-1]).to(dtype)
        with torch.no_grad():
            for layer, weight, bias in zip(model.layers, inputs.weights, inputs.biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        return model.to(student.device)

    sizes = [*inputs.batches, *inputs.validation]
    pairs = list(zip(inputs.data.split(sizes), inputs.targets.split(sizes), strict=True))
    model = filled(torch.float64)
    started, starts = notes()
    loaders = _counted(pairs[:steps], started, "training"), _counted(pairs[steps:], started, "validation")
    with watch_products(student.gpu) as products:
        result = module.train_large_model(
            model,
            *loaders,
            epochs=inputs.epochs,
            micro_batch=inputs.micro_batch,
            learning_rate=inputs.learning_rate,
        )
        ran = products.counts()
    small = filled(torch.float32)
    tokens = [(sample.float().unsqueeze(1), target.float().unsqueeze(1)) for sample, target in pairs]
    small_result = module.train_large_model(
        small,
        tokens[:steps],
        tokens[steps:],
        epochs=1,
        micro_batch=inputs.micro_batch,
        learning_rate=inputs.learning_rate,
        criterion=lambda output, target: functional.mse_loss(output, target) * inputs.scale,
    )
    reported = fields(result, LargeTraining, "train_large_model()")

    def train(other: OtherTraining) -> OtherReply:
        model = filled(torch.float64)
        own = [tuple(x.reshape(len(x) // 2, 2, -1) for x in pair) for pair in pairs] if other.sequence else pairs
        wrap: Callable[[Sequence[Batch]], object] = _streamed if other.streamed else list
        options = {"criterion": functional.l1_loss} if other.criterion_given else {}
        ended = module.train_large_model(
            model,
            wrap(own[:steps]),
            wrap(own[steps:]),
            epochs=other.epochs,
            micro_batch=other.micro_batch,
            learning_rate=inputs.learning_rate,
            **options,
        )
        return OtherReply(result=fields(ended, LargeTraining, "train_large_model()"), weights=_weights(model))

    return TrainingsReply(
        others=[train(other) for other in inputs.others],
        products=ran,
        device=student.device,
        result=reported,
        passes=[starts().count(name) for name in ("training", "validation")],
        weights=_weights(model),
        are_numbers=all(isinstance(loss, (int, float)) for loss in (*result.losses, *result.validation_losses)),
        small_result=fields(small_result, LargeTraining, "train_large_model()"),
        small_weights=_weights(small),
    )


def _weights(model: StudentModel) -> Tensor:
    """Of all layers of a submission's model."""
    return torch.stack([layer.weight.detach() for layer in model.layers])


def _counted(batches: Sequence[Batch], note: Callable[[str], None], name: str) -> list[Batch]:
    """A list that notes when it is iterated."""

    def begun(counted: list[Batch]) -> Iterator[Batch]:
        note(name)
        return list.__iter__(counted)

    class Counted(list[Batch]):
        """Holds nothing of that."""

        __iter__ = method(begun)

    return Counted(batches)


def _ballast() -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
    """The identity, for whose every node in a graph there is memory as long as the node lives, backward or not; and
    what lets go of the memory of those that have died.

    The node does not hold it: there somebody could take it away and keep the graph.
    """
    held: list[tuple[weakref.ref[object], Tensor]] = []

    def forward(ctx: object, x: Tensor) -> Tensor:
        # Without a callback, which would lead here.
        held.append((weakref.ref(ctx), torch.empty(_BALLAST_BYTES, dtype=torch.uint8, device=x.device)))
        return x.view_as(x)

    class Ballast(torch.autograd.Function):
        """A class of its own, so that nothing leads to what is held."""

        @staticmethod
        def backward(ctx: object, *gradients: Tensor) -> Tensor:
            return gradients[0]

    Ballast.forward = staticmethod(function(forward))  # type: ignore[method-assign]

    def let_go() -> None:
        held[:] = [(node, memory) for node, memory in held if node() is not None]

    return Ballast.apply, let_go


def _streamed(batches: Sequence[Batch]) -> Loader[Batch]:
    return loader(lambda: iter(batches))


def _loader(sizes: Sequence[int], width: int, phase: str) -> Loader[Batch]:
    """Batches on the CPU, whose samples are sequences of so many tokens: by that the model knows where they are from.

    When a batch is fetched says nothing: some fetch one ahead, or all batches of an epoch at once.
    """
    shapes = [(size, _TOKENS[phase], width) for size in sizes]
    return loader(lambda: ((torch.randn(shape), torch.randn(shape)) for shape in shapes))


def _requested_bytes() -> int:
    """What live tensors have asked for."""
    return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))


def _watched(
    gpu: VirtualGpu, width: int, note: Callable[[ForwardPass | Reported], None], let_go: Callable[[], None]
) -> nn.Module:
    """A small model; notes of each forward pass phase, samples, mode, whether a graph is recorded, memory and work.

    Of one that backward computes again it notes the work alone. Before it looks at memory it calls `let_go`.
    """
    memory, graph_task = memory_since_now(gpu), torch._C._current_graph_task_id

    def noted(model: nn.Module, x: Tensor) -> Tensor:
        let_go()
        x = exact(x, "a batch")
        held, requested = memory.held(), _requested_bytes()
        layers: Any = model.layers
        with watch_products(gpu) as products:
            # Not by calling the layers, whose hooks could return something without a graph.
            hidden = functional.linear(x, layers[0].weight, layers[0].bias)
            hidden = functional.relu(functional.dropout(hidden, 0.3, model.training))
            output = functional.linear(hidden, layers[1].weight, layers[1].bias)
            flops = None if gpu is None else products.flops()
        if graph_task() != -1:
            note(flops)
            return output
        note(
            ForwardPass(
                phase=next((phase for phase, tokens in _TOKENS.items() if x.shape[1] == tokens), "none"),
                samples=len(x),
                tokens=x.shape[1],
                training=is_training(model),
                # The mode can be another one by now, and for whoever is asked; the output has a graph or none.
                graph=has_graph(output),
                held_bytes=held,
                requested_bytes=requested,
                flops=flops,
            )
        )
        return output

    class Watched(nn.Module):
        """Holds nothing of that."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

        forward = method(noted)

    return Watched()


def steady(student: Student, inputs: Steady) -> SteadyReply:
    """How the model was called over two epochs, and what was allocated then, when a loss was computed and in each step.

    Each graph holds a ballast, so that a loss which is kept with its graph shows.
    """
    note, noted = notes()
    weighed, let_go = _ballast()
    model = _watched(student.gpu, inputs.width, note, let_go).to(student.device).eval()

    @function
    def look(moment: str) -> None:
        let_go()
        note((moment, _requested_bytes()))

    @function
    def criterion(output: Tensor, target: Tensor) -> Tensor:
        look("criterion")
        return weighed(functional.mse_loss(output, target))

    hook = register_optimizer_step_pre_hook(function(lambda *_: look("step")))
    train_large_model = student.module(SCRIPT).train_large_model
    with watch_products(student.gpu) as products:
        result = train_large_model(
            model,
            _loader(inputs.batches, inputs.width, "training"),
            _loader(inputs.validation, inputs.width, "validation"),
            epochs=2,
            micro_batch=inputs.micro_batch,
            criterion=criterion,
        )
        flops = None if student.gpu is None else products.flops()
    hook.remove()
    fields(result, LargeTraining, "train_large_model()")  # something else is a wrong return
    passes, looks = 0, []
    for each in noted():
        passes += type(each) is ForwardPass
        if type(each) is tuple:
            looks.append(Look(moment=each[0], forwards=passes, requested_bytes=each[1]))
    return SteadyReply(
        looks=looks,
        sample_bytes=inputs.width * 4,
        forwards=[each for each in noted() if type(each) is ForwardPass],
        flops=flops,
        flops_again=cast("list[float]", [each for each in noted() if type(each) is Reading]),
        training_afterwards=is_training(model),
        ballast_bytes=_BALLAST_BYTES,
    )


@measures("device memory")
def retry(student: Student, inputs: Retry) -> RetryReply:
    """`run_with_oom_retry` with attempts that really run out of memory above `fits`, or then raise the error named.

    Memory of a failed attempt is held by its local variables, and in some cases by objects that refer to each other.
    """
    run = student.module(RETRY).run_with_oom_retry
    too_much = 2 * torch.cuda.get_device_properties(0).total_memory if student.gpu is not None else _NOBODY_HAS
    return RetryReply(cases=[_retried(student, run, case, too_much) for case in inputs.cases])


def _retried(student: Student, run: Callable[..., object], case: Attempts, too_much: int) -> RetryRun:
    """One call of the handler, and what it did."""
    (note, noted), numbers = notes(), itertools.count(1)
    earlier: list[weakref.ref[Tensor]] = []

    @function
    def attempt(micro_batch: int) -> str | None:
        more = memory.held() if memory is not None else torch.cuda.memory_allocated() - held
        alive = sum(tensor() is not None for tensor in earlier)
        note((micro_batch, more, torch.cuda.memory_reserved() - reserved, alive))
        if next(numbers) > _MOST_ATTEMPTS:
            raise AssertionError("no end of attempts")
        activations = torch.empty(64 * 2**20, dtype=torch.uint8, device=student.device)
        earlier.append(weakref.ref(activations))
        if case.cycle:
            own: list[object] = [activations]
            own.append(own)
            gc.collect(1)  # what is left is old from now on, as most that a training step holds
        if micro_batch > case.fits:
            torch.empty(too_much, dtype=torch.uint8, device=student.device)
        if case.raises is not None:
            raise _ERRORS[case.raises](case.message)
        return None if case.returns_nothing else f"done with {micro_batch} and {activations.numel()} bytes"

    returned: object = None
    raised, message = None, ""
    gc.collect()
    torch.cuda.empty_cache()
    # Before the submission's code: what it allocates itself to be let go of later counts.
    held, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    memory = memory_since_now(student.gpu) if student.gpu is not None else None
    try:
        returned = plain(run(attempt, case.start), "run_with_oom_retry()")
    except NotImplementedError:
        raise
    except Exception as error:
        raised, message = type(error).__name__, str(error)
        error.__traceback__ = None
    rows = noted()
    return RetryRun(
        returned=returned,
        raised=raised,
        message=message,
        attempts=[tried for tried, *_ in rows],
        held_bytes=[more for _, more, _, _ in rows],
        tensors_alive=[alive for *_, alive in rows],
        reserved_bytes=[more for _, _, more, _ in rows],
    )


def program(student: Student, inputs: OomProgram) -> ProgramReply:
    """The script as a program, on a virtual GPU of 24 GB."""
    with vgpu.attach(GPU_24_GB, values=False, force=True), tempfile.TemporaryDirectory() as folder:
        return ProgramReply(**run_program(student, SCRIPT, ["--micro-batch", "16"], Path(folder, "results")))
