"""Tries every operator of PyTorch's OpInfo in every dtype, and notes what each overload says.

`python -m vgpu.tools.cuda_rules.probe FILE` runs in a process of its own, on `vgpu.tools.cuda_rules.stand_in`. It makes
the inputs on the CPU and copies them. Not here: what follows from the notes (`vgpu.tools.cuda_rules.condense`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "complex32", "int64", "int32", "int16",
    "int8", "uint8", "bool", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
SAMPLES = 5
"""So many of an operator's inputs are tried per dtype."""
_WITH_GRADIENTS = ("float32", "float16", "bfloat16", "complex64")
_BATCH, _SECONDS = 30, 600

Signature = tuple[tuple[str, str], ...]
Seen = dict[tuple[str, Signature], set[str]]
"""(overload, dtypes of its tensor arguments by name) -> what it raised: "Type: text", "" where it returned."""


class Notes(TorchDispatchMode):
    """Notes the outcome of each overload that is called with CUDA tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._note(func, args, kwargs, f"{type(error).__name__}: {str(error)[:500]}")
            raise
        self._note(func, args, kwargs, "")
        return result

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], outcome: str) -> None:
        signature, on_gpu = [], False
        names = [argument.name for argument in func._schema.arguments]
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            tensors = [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]
            if tensors:
                signature.append((name, str(tensors[0].dtype).removeprefix("torch.")))
                on_gpu = on_gpu or tensors[0].is_cuda
        if on_gpu:
            self.seen.setdefault((func.name(), tuple(signature)), set()).add(outcome)


def _on_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda").requires_grad_(value.requires_grad)
    named = (isinstance(value, torch.device) and value.type == "cpu") or (isinstance(value, str) and value == "cpu")
    return "cuda" if named else value


def outcomes(op: Any, name: str, place: Any, notes: Any) -> Iterator[str]:
    """What an operator says to each of its first inputs in the dtype `name`, moved by `place`; "" where it returns.

    Inputs that cannot be made are left out.
    """
    dtype = getattr(torch, name)
    learns = name in _WITH_GRADIENTS
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=learns), SAMPLES))
    except Exception:
        return
    for sample in samples:
        try:
            moved = sample.transform(place)
        except Exception:
            continue
        try:
            with notes:
                result = op(moved.input, *moved.args, **moved.kwargs)
        except Exception as error:
            yield f"{type(error).__name__}: {str(error)[:500]}"
            continue
        yield ""
        if not learns:
            continue
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        try:
            with notes:
                torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
        except Exception:
            continue


def operators() -> list[Any]:
    """OpInfo's operators, and its lists of operations on lists."""
    from torch.testing._internal import common_methods_invocations as infos

    found = list(infos.op_db)
    for name in dir(infos):
        if name.startswith("foreach") and isinstance(getattr(infos, name), list):
            found += [op for op in getattr(infos, name) if hasattr(op, "sample_inputs")]
    return found


def key_of(op: Any) -> str:
    """An operator's name with its variant's."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _batch(ops: Sequence[Any], target: BinaryIO) -> None:
    signal.alarm(_SECONDS)
    for op in ops:
        notes = Notes()
        said = {name: list(outcomes(op, name, _on_gpu, notes)) for name in DTYPES}
        claimed = sorted(str(dtype).removeprefix("torch.") for dtype in op.dtypesIfCUDA)
        pickle.dump((key_of(op), said, notes.seen, claimed), target)
        target.flush()


def main(path: str) -> None:
    """Try all of them, in forks: an operation that ends its process costs that operator alone."""
    warnings.filterwarnings("ignore")
    torch.cuda._is_in_bad_fork = lambda: False  # nothing is lost in a fork, for there is no card
    ops = operators()
    at = 0
    with open(path, "wb") as sink:
        while at < len(ops):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                try:
                    with os.fdopen(writing, "wb") as target:
                        _batch(ops[at : at + _BATCH], target)
                finally:
                    os._exit(0)
            os.close(writing)
            count = 0
            with os.fdopen(reading, "rb") as source:
                while True:
                    try:
                        item = pickle.load(source)
                    except (EOFError, pickle.UnpicklingError):
                        break
                    pickle.dump(item, sink)
                    count += 1
            os.waitpid(child, 0)
            at += count
            if count < min(_BATCH, len(ops) - at + count):
                print(f"{key_of(ops[at])}: its process ended", file=sys.stderr)
                at += 1
            print(f"{at} of {len(ops)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
