"""The cases: each database of `torch.testing`, and what one entry of it asks of the virtual GPU.

PyTorch's own tests of every device are generated from these databases (`test_ops.py`, `test_modules.py`,
`test_optim.py`): sample inputs for 700 operators, inputs that an operator has to refuse and with which words, layers
and optimizers with their arguments. A case yields what is not as it should be, in words; nothing where all is well.
"""

# mypy: disable-error-code="no-untyped-call"
# (the databases carry few annotations)

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.foreign.pytorch.compare import DrawsRandomNumbers, differences, different_numbers, on_the_cpu, tensors
from vgpu.device.errors import Unsupported

NOT_ON_THE_CPU = "the CPU computes none of the samples: nothing to compare with"
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "bool", "complex64")


@dataclass(frozen=True)
class Case:
    """One entry of a database in one dtype."""

    database: str
    name: str
    dtype: str
    run: Callable[[int], Iterator[str]]
    """Takes the number of samples, yields what is wrong."""

    @property
    def key(self) -> str:
        """What a list of known differences calls it."""
        return f"{self.database}: {self.name}" + (f" {self.dtype}" if self.dtype else "")


def cases() -> Iterator[Case]:
    """All of them, of the installed release. A GPU must be attached.

    Raises ImportError where `expecttest` is missing.
    """
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    entry: Any
    for entry in op_db:
        for dtype in DTYPES:
            if getattr(torch, dtype) in entry.supported_dtypes("cuda"):
                yield Case("operators", entry.full_name, dtype, _bound(operator, entry, getattr(torch, dtype)))
        if entry.error_inputs_func is not None:
            yield Case("refusals", entry.full_name, "", _bound(refusal, entry))
    for entry in module_db:
        for dtype in DTYPES:
            if getattr(torch, dtype) in entry.dtypes:
                yield Case("layers", entry.module_cls.__name__, dtype, _bound(layer, entry, getattr(torch, dtype)))
    for entry in optim_db:
        yield Case("optimizers", entry.optim_cls.__name__, "float32", _bound(optimizer, entry))


def _bound(function: Callable[..., Iterator[str]], *arguments: Any) -> Callable[[int], Iterator[str]]:
    return lambda samples: function(*arguments, samples)


def operator(entry: Any, dtype: torch.dtype, samples: int) -> Iterator[str]:
    """Results and gradients of an operator are the CPU's, for the samples of the database."""
    differentiable = (
        dtype.is_floating_point and entry.supports_autograd and dtype in entry.supported_backward_dtypes("cuda")
    )
    inputs = entry.sample_inputs("cuda", dtype, requires_grad=differentiable)
    number, compared = 0, 0
    written = "empty" not in entry.name
    for number, sample in enumerate(itertools.islice(inputs, samples), start=1):
        arguments = ((sample.input, *sample.args), sample.kwargs)
        compared += yield from _compared(f"sample {number}: ", entry.op, arguments, differentiable, written=written)
    if number and not compared:
        yield NOT_ON_THE_CPU


def _compared(
    where: str, function: Any, arguments: Any, differentiable: bool, plain: Any = None, *, written: bool = True
) -> Generator[str, None, bool]:
    """`function(*args, **kwargs)` on the GPU and, or instead `plain`, on the CPU; False where the CPU cannot do it."""
    theirs = on_the_cpu(arguments)
    with DrawsRandomNumbers() as draws:
        expected, refusal = _called(plain or function, theirs)
    actual, error = _called(function, arguments)
    if error is not None and (refusal is None or isinstance(error, Unsupported)):
        yield f"{where}{type(error).__name__}: {error}"
        return True
    if refusal is not None:
        return False
    inputs = tensors(arguments)
    on_gpu = any(tensor.is_cuda for tensor in inputs or tensors(actual))
    same = written and not draws.detected
    for problem in differences(actual, expected, device="cuda" if on_gpu else "cpu", numbers=same):
        yield where + problem
    if differentiable and same:
        leaves = [(tensor, other) for tensor, other in zip(inputs, tensors(theirs), strict=True) if other.requires_grad]
        yield from (where + problem for problem in _gradients(actual, expected, leaves))
    return True


def _called(function: Any, arguments: Any) -> tuple[Any, Exception | None]:
    args, kwargs = arguments
    torch.manual_seed(0)
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def _gradients(actual: Any, expected: Any, leaves: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[str]:
    def total(value: Any) -> torch.Tensor | None:
        parts = [_weighted(tensor) for tensor in tensors(value) if tensor.requires_grad and tensor.is_floating_point()]
        return sum(parts[1:], parts[0]) if parts else None

    mine, theirs = total(actual), total(expected)
    if theirs is None or not leaves:
        return
    if mine is None:
        yield "no gradient, unlike on the CPU"
        return
    try:
        right = torch.autograd.grad(theirs, [other for _, other in leaves], allow_unused=True)
    except Exception:
        return
    try:
        got = torch.autograd.grad(mine, [tensor for tensor, _ in leaves], allow_unused=True)
    except Exception as error:
        yield f"backward: {type(error).__name__}: {error}"
        return
    for gradient, other in zip(got, right, strict=True):
        if (gradient is None) != (other is None):
            yield "a gradient that the CPU has not" if other is None else "no gradient where the CPU has one"
        elif gradient is not None and other is not None:
            yield from (f"gradient: {problem}" for problem in different_numbers(gradient.cpu(), other))
    for gradient, (leaf, _) in zip(got, leaves, strict=True):
        if gradient is not None and gradient.device != leaf.device:
            yield f"a gradient on {gradient.device} of a tensor on {leaf.device}"


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """A sum with a weight for each element, since the plain sum of a softmax or a norm has no gradient."""
    if result.layout is not torch.strided:
        return result.sum()
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).reshape(result.shape)
    return (result * weights.to(result.device, result.dtype)).sum()


def refusal(entry: Any, samples: int) -> Iterator[str]:
    """Wrong inputs are refused with the error and the words that CUDA is expected to have."""
    for number, wrong in enumerate(itertools.islice(entry.error_inputs("cuda"), samples), start=1):
        sample = wrong.sample_input
        arguments = ((sample.input, *sample.args), sample.kwargs)
        result, error = _called(entry.op, arguments)
        if result is NotImplemented or (not wrong.error_regex and _called(entry.op, on_the_cpu(arguments))[1] is None):
            continue  # Python refuses it then; or the CPU does not refuse it either, and nothing says why CUDA should
        if error is None:
            yield f"input {number}: not refused; expected {wrong.error_regex!r}"
        elif not isinstance(error, wrong.error_type) or not re.search(wrong.error_regex, str(error)):
            yield f"input {number}: {type(error).__name__}: {error}; expected {wrong.error_regex!r}"


def layer(entry: Any, dtype: torch.dtype, samples: int) -> Iterator[str]:
    """A layer's results and the gradients of inputs and parameters are the CPU's, training and not."""
    for training in (True, False):
        inputs = entry.module_inputs_func(
            entry, device="cuda", dtype=dtype, requires_grad=dtype.is_floating_point, training=training
        )
        for number, sample in enumerate(itertools.islice(inputs, samples), start=1):
            if sample.forward_input is None:
                continue
            args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
            torch.manual_seed(0)
            module = entry.module_cls(*args, **kwargs).to("cuda", dtype).train(training)
            plain = copy.deepcopy(module).cpu()
            arguments = (sample.forward_input.args, sample.forward_input.kwargs)
            where = f"{'training' if training else 'evaluation'}, sample {number}: "
            yield from _compared(where, module, arguments, dtype.is_floating_point, plain)


def optimizer(entry: Any, samples: int) -> Iterator[str]:
    """Four steps end at the CPU's parameters, with each set of arguments, in each implementation."""
    for sample in itertools.islice(entry.optim_inputs_func(device="cuda"), samples):
        if sample.kwargs.get("differentiable"):
            continue
        ways: list[dict[str, Any]] = [{"foreach": False}] if "foreach" in entry.supported_impls else [{}]
        ways += [{"foreach": True}] if "foreach" in entry.supported_impls else []
        ways += [{"fused": True}] if "cuda" in getattr(entry, "supports_fused_on", ()) else []
        for way in ways:
            kwargs = {**sample.kwargs, **way}
            expected = _stepped(
                entry.optim_cls, "cpu", {**kwargs, "capturable": False} if "capturable" in kwargs else kwargs
            )
            actual = _stepped(entry.optim_cls, "cuda", kwargs)
            for parameter, other in zip(actual, expected, strict=True):
                if not parameter.is_cuda:
                    yield f"{sample.desc} {way}: a parameter on {parameter.device}"
                yield from (
                    f"{sample.desc} {way}: {text}"
                    for text in different_numbers(parameter.detach().cpu(), other.detach())
                )


def _stepped(kind: Any, device: str, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).to(device)
    inputs = torch.arange(20, dtype=torch.float32).reshape(5, 4).to(device) / 20
    matrices = (
        [parameter for parameter in model.parameters() if parameter.dim() == 2]
        if kind.__name__ == "Muon"
        else model.parameters()
    )
    moved = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in kwargs.items()}
    stepper = kind(matrices, **moved)

    def closure() -> torch.Tensor:
        stepper.zero_grad()
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        return loss

    if kind.__name__ == "SparseAdam":
        return _sparse_steps(kind, device, moved)
    for _ in range(4):
        if kind.__name__ == "LBFGS":
            stepper.step(closure)
        else:
            closure()
            stepper.step()
    return list(model.parameters())


def _sparse_steps(kind: Any, device: str, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    table = torch.nn.Embedding(6, 3, sparse=True).to(device)
    with torch.no_grad():
        table.weight.copy_(torch.arange(18.0).reshape(6, 3) / 18)
    stepper = kind(table.parameters(), **kwargs)
    for row in range(4):
        stepper.zero_grad()
        table(torch.tensor([row, row, 5], device=device)).square().sum().backward()
        stepper.step()
    return list(table.parameters())
