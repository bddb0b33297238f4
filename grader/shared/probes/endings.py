"""How calls end that a docstring says must be refused, and backward passes. An open task is no refusal: its error
passes on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import WrongReturn

_OF_THE_MACHINE = ("CUDA error", "CUDA out of memory", "cuDNN error", "can't allocate memory", "not enough memory")
"""Parts of messages that say nothing of the graph."""
_ADVICE = {
    "CheckpointError": "; what is checkpointed must compute the same when backward calls it again, "
    "and by then a loop's variable has its last value",
}
"""What PyTorch's first line leaves unsaid, by the exception's name."""


def ending(call: Callable[[], object]) -> str:
    """The name of the exception that `call` raised, "ValueError" for all its kinds; "" where it returned.

    Raises:
        NotImplementedError: the task is open.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return ""


def refused(call: Callable[[], object]) -> bool:
    """Whether `call` raised a ValueError; raises as `ending` does."""
    return ending(call) == "ValueError"


def run_backward(output: Tensor, gradient: Tensor | None = None, *, of: str) -> None:
    """`output.backward(gradient)`, as `graph_of` wants it.

    Args:
        output: what the submission returned, or what the probe computed of it.
        gradient: of `output`; None where it is a number.
        of: what the submission calls it.
    """
    with graph_of(of):
        output.backward(gradient)


@contextmanager
def graph_of(name: str) -> Iterator[None]:
    """For a backward pass through a graph that a submission recorded in what it calls `name`.

    PyTorch refuses some graphs itself: a segment that computes something else again than before, a gradient of the
    wrong shape, a saved tensor that was changed. No line of the submission runs then, so nothing else would say that
    the mistake is the submission's.

    Raises:
        WrongReturn: PyTorch refuses the graph.
        RuntimeError: a line of the submission raised it, the simulator lacks something, or the machine has failed.
    """
    try:
        yield
    except RuntimeError as error:
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        is_ours = any(module.partition(".")[0] == "labs" for module in modules)
        message = str(error)
        if (
            is_ours
            or isinstance(error, torch.OutOfMemoryError)
            or type(error).__module__.partition(".")[0] == "vgpu"
            or any(part in message for part in _OF_THE_MACHINE)
        ):
            raise
        # The first line alone, so that the same mistake reads the same in each check.
        first, kind = message.strip().partition("\n")[0], type(error).__name__
        raise WrongReturn(f"backward of {name} ends with {kind}: {first.rstrip('.')}{_ADVICE.get(kind, '')}") from None
