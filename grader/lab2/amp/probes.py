"""Probes of Lab 2's training in mixed precision: dtypes of what runs, `evaluate`, defaults and refusals."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab2.amp.cases import (
    Defaults,
    DefaultsReply,
    DefaultsRun,
    EmptyEvaluation,
    Evaluate,
    EvaluateCall,
    EvaluateReply,
    Evaluation,
    Precision,
    PrecisionReply,
    PrecisionRun,
    TrainArguments,
)
from grader.lab2.shared.probes import (
    AMP,
    OVERFLOWING_INPUT,
    Seen,
    Watched,
    amp_result,
    batches,
    dtype_of,
    dtypes,
    flat,
    in_dtype,
    linear,
    loader,
    modes,
    one_thread,
    watched,
)
from grader.shared.probes.endings import ending, refused
from grader.shared.probes.facts import dtype
from grader.shared.probes.kept import function, in_turn, notes
from grader.shared.probes.record import Reported, VirtualGpu, mark, memory_since_now, reading, watch_products
from grader.shared.probes.support import fields, plain
from grader.shared.probes.threads import in_every_thread
from labkit.results import AmpTraining

_IDLE_BYTES = 256 * 2**20
"""More than what cuBLAS keeps on any card: on an H100 32 MiB for each thread that has computed a product, and backward
has a thread of its own."""
_EARLIER_CYCLES = 30_000_000, 60_000_000
"""Of work that is still in the GPU's queue when a training is called: tens of milliseconds, drawn between these, so
that nobody can take them off a time that includes them."""

_MOVING_SECONDS = 0.04, 0.08
"""For which a model is on its way to the device, drawn as well: much longer than these trainings."""

_LOSSES = ("_log_softmax", "logsumexp")
"""One of them is in each cross entropy that is not put together by hand."""


class _Losses(TorchDispatchMode):
    """Notes the dtypes in which they are computed."""

    def __init__(self, note: Callable[[tuple[str, str]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _LOSSES:
            self._note((func.overloadpacket.__name__, plain(result.dtype, "")))
        return result


@contextmanager
def _watch_losses(gpu: VirtualGpu) -> Iterator[Callable[[str], Reported]]:
    """A function that says in which dtypes an operation ran in the block; `gpu` as for `watch_products`."""
    if gpu is not None:
        begin = mark(gpu)
        yield lambda name: reading(gpu, "dtypes", begin, name=f"aten::{name}")
        return
    note, noted = notes()
    with in_every_thread(lambda: _Losses(note)):
        yield lambda name: sorted({dtype for operation, dtype in noted() if operation == name})


@measures("time")
def precision(student: Student, inputs: Precision) -> PrecisionReply:
    """The call has the document's arguments, and the dtype if that is not float16.

    The model comes in evaluation mode, the GPU still works on something else, and the peak of its memory is that of
    earlier work.
    """
    one_thread()
    runs = {name: _train(student, inputs, name, epochs) for name, epochs in inputs.epochs.items()}
    return PrecisionReply(runs=runs, idle_bytes=_IDLE_BYTES, device=student.device)


def _train(student: Student, inputs: Precision, name: str, epochs: int) -> PrecisionRun:
    train = student.module(AMP).train_with_amp
    second = nn.Sequential(nn.ReLU(), linear(inputs.second))
    model, seen = watched(linear(inputs.first), second, signs=inputs.signs)
    model.to(student.device).eval()
    note, states = notes()
    handle = register_optimizer_step_post_hook(function(lambda optimizer, *_: note(_state_dtypes(optimizer))))
    note_move, moves = notes()
    drawn = random.SystemRandom()
    cycles = drawn.randrange(*_EARLIER_CYCLES)
    rest, move = in_turn([drawn.uniform(*_MOVING_SECONDS)], 0.0), model._apply

    def move_slowly(*arguments: object, **options: object) -> nn.Module:
        if seconds := rest():
            begin = _now()
            time.sleep(seconds)
            note_move(_now() - begin + earlier)
            _queue_earlier_work(cycles)  # what was there before is done by now
        moved: nn.Module = move(*arguments, **options)  # type: ignore[no-untyped-call]
        return moved

    model._apply = function(move_slowly)  # type: ignore[method-assign]
    idle = torch.empty(_IDLE_BYTES, dtype=torch.uint8, device=student.device)
    del idle
    _wake(student.device, dtype_of(name))
    before = _now()
    _queue_earlier_work(cycles)
    memory = memory_since_now(student.gpu) if student.gpu is not None else None
    start = _now()
    earlier = start - before
    _queue_earlier_work(cycles)
    try:
        with watch_products(student.gpu) as products, _watch_losses(student.gpu) as losses:
            result = train(model, batches(inputs.inputs, inputs.targets, inputs.sizes), epochs, **in_dtype(name))
            product_dtypes, product_count, product_flops = products.dtypes(), products.number(), products.flops()
            log_softmaxes, logsumexps = map(losses, _LOSSES)
            peak: Reported = None if memory is None else memory.peak()
    finally:
        handle.remove()
        elapsed = _now() - start - earlier - sum(moves())
        del model._apply
    watch = seen()
    return PrecisionRun(
        result=amp_result(result),
        elapsed_seconds=max(0.0, elapsed),
        products=product_dtypes,
        product_count=product_count,
        product_flops=product_flops,
        log_softmaxes=log_softmaxes,
        logsumexps=logsumexps,
        peak_bytes=peak,
        forwards=watch.forwards,
        backwards=watch.backwards,
        parameters=dtypes(model),
        after=flat(model),
        most_bytes=watch.most_bytes,
        state=sorted({name for names in states() for name in names}),
        sure=[] if name == "float32" else _sure(student, inputs.sure, name),
    )


def _sure(student: Student, weight: Tensor, name: str) -> list[float]:
    """The classifier's weights after a step on a sample of each class. Its outputs are about 11 for the right one and 0
    for others: what is missing to a probability of 1 is too little to be subtracted from 1 in 16 bits."""
    model, classes = linear(weight).to(student.device), len(weight)
    batch = 16 * torch.eye(classes), torch.arange(classes)
    student.module(AMP).train_with_amp(model, [batch], 1, **in_dtype(name))
    return flat(model)


def _state_dtypes(optimizer: torch.optim.Optimizer) -> set[str]:
    """Of an optimizer's state right after a step; what it is cast to in the end does not count."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return {str(plain(dtype(value), "")) for value in values if isinstance(value, Tensor) and value.ndim}


def _wake(device: str, dtype: torch.dtype) -> None:
    """Have the device's libraries loaded: some look at a model's outputs before they start the clock."""
    weight = torch.ones(8, 8, device=device, requires_grad=True)
    with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        nn.functional.cross_entropy(nn.functional.linear(weight, weight), torch.arange(8, device=device)).backward()


def _queue_earlier_work(cycles: int, *, sleep: Callable[[int], None] = torch.cuda._sleep) -> None:
    if torch.cuda.is_available():
        sleep(cycles)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def evaluate(student: Student, inputs: Evaluate) -> EvaluateReply:
    """In the end there are no samples, and the model's modules are in mixed modes."""
    evaluations = [_evaluate(student, inputs, call) for call in inputs.calls]
    model, _ = _identity(inputs)
    model.to(student.device)
    empty = []
    for training in (True, False):
        model.train(training)
        model.first.train(not training)
        before = modes(model)
        was_refused = refused(lambda: student.module(AMP).evaluate(model, []))
        empty.append(EmptyEvaluation(refused=was_refused, before=before, after=modes(model)))
    return EvaluateReply(calls=evaluations, empty=empty)


def _identity(inputs: Evaluate, turned: Callable[[Tensor], Tensor] | None = None) -> tuple[Watched, Callable[[], Seen]]:
    return watched(linear(torch.eye(inputs.logits.shape[1])), nn.Dropout(0.9), turned=turned)


def _turned(classes: int) -> Callable[[Tensor], Tensor]:
    """Whether a sample's logit of one drawn class is larger than that of another."""
    left, right = random.SystemRandom().sample(range(classes), 2)
    return lambda x: x[:, left] > x[:, right]


def _evaluate(student: Student, inputs: Evaluate, call: EvaluateCall) -> Evaluation:
    classes = inputs.logits.shape[1]
    turned = _turned(classes)
    model, seen = _identity(inputs, turned)
    options: dict[str, object] = {"dtype": dtype_of(call.dtype)} if call.dtype else {}
    if call.device_given:
        options["device"] = student.device
    else:
        model.to(student.device)
    model.train(call.modes != "evaluation")
    model.first.train(call.modes == "training")
    before, weights = modes(model), flat(model)
    targets = (inputs.targets[call.targets] + turned(inputs.logits)) % classes
    parts = batches(inputs.logits, targets, call.sizes)
    with watch_products(student.gpu) as products:
        accuracy = student.module(AMP).evaluate(model, loader(parts) if call.loader else parts, **options)
        product_dtypes = products.dtypes()
    return Evaluation(
        accuracy=plain(accuracy, "evaluate()"),
        before=before,
        after=modes(model),
        during=[any(note.training) for note in seen().forwards],
        gradients=[note.gradients for note in seen().forwards],
        products=product_dtypes,
        unchanged=flat(model) == weights,
    )


def defaults(student: Student, inputs: Defaults) -> DefaultsReply:
    """The trainings, one on the CPU, and then whether each of the refusals is one."""
    one_thread()
    module = student.module(AMP)
    batch = [(inputs.inputs, inputs.labels)]
    # A training before, whose only step overflows: its scaler is not that of those that follow.
    overflowing = [(torch.full_like(inputs.inputs, OVERFLOWING_INPUT), inputs.labels)]
    ending(lambda: module.train_with_amp(linear(inputs.weight).to(student.device), overflowing, 1))
    runs = []
    for run in inputs.runs:
        model = nn.Sequential(linear(inputs.weight), nn.Identity()).to(student.device)
        result = module.train_with_amp(model, batch, **_options(run))
        runs.append(DefaultsRun(result=fields(result, AmpTraining, "train_with_amp()"), after=flat(model)))  # type: ignore[arg-type]

    def refuses(call: TrainArguments) -> bool:
        model = linear(inputs.weight).to(student.device)
        return refused(lambda: module.train_with_amp(model, batch, **_options(call)))

    on_cpu = module.train_with_amp(linear(inputs.weight), batch, 1, device="cpu", dtype=torch.float32)
    return DefaultsReply(
        runs=runs,
        on_cpu=fields(on_cpu, AmpTraining, "train_with_amp(..., device='cpu')"),  # type: ignore[arg-type]
        refused=[refuses(call) for call in inputs.refusals],
    )


def _options(call: TrainArguments) -> dict[str, object]:
    """A call's arguments, with the dtype that is meant."""
    return {name: dtype_of(str(value)) if name == "dtype" else value for name, value in call.items()}
