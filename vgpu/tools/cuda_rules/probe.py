"""Tries PyTorch's own operators, layers and optimizers in every dtype, and notes what each overload says.

`python -m vgpu.tools.cuda_rules.probe FILE` runs in a process of its own, on `vgpu.tools.cuda_rules.stand_in`. It makes
the inputs on the CPU and copies them. Not here: how layers and optimizers look like operators
(`vgpu.tools.cuda_rules.databases`), and what follows from the notes (`vgpu.tools.cuda_rules.condense`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vgpu.runtime.operations.cuda_dtypes import choice_of, size_of
from vgpu.tools.cuda_rules.databases import key_of, operators

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "complex32", "int64", "int32", "int16",
    "int8", "uint8", "bool", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
SAMPLES = 5
"""So many of an operator's inputs are tried per dtype."""
_WITH_GRADIENTS = ("float32", "float16", "bfloat16", "complex64")
_BATCH, _SECONDS = 30, 120

Signature = tuple[tuple[str, str], ...]
Seen = dict[tuple[str, str, Signature, str], set[str]]
"""(overload, its choice, dtypes of its tensor arguments by name, size) -> what it raised: "Type: text", or "".

Choice and size are those of `vgpu.runtime.operations.cuda_dtypes`; a call that returned an empty result is empty.
"""
SKIPPED = "-"
"""Stands for an input that could not be moved."""


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
        self._note(func, args, kwargs, "", result)
        return result

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], outcome: str, result: Any = None) -> None:
        signature, on_gpu = [], False
        names = [argument.name for argument in func._schema.arguments]
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            tensors = [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]
            if tensors:
                signature.append((name, str(tensors[0].dtype).removeprefix("torch.")))
                on_gpu = on_gpu or tensors[0].is_cuda
        if on_gpu:
            size = size_of(args, kwargs, result)
            key = (func.name(), choice_of(func, args, kwargs), tuple(signature), size)
            self.seen.setdefault(key, set()).add(outcome)


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
    torch.manual_seed(0)
    random.seed(0)
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=learns), SAMPLES))
    except Exception:
        return
    for sample in samples:
        try:
            moved = sample.transform(place)
        except Exception:
            yield SKIPPED
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


def _batch(ops: Sequence[Any], target: BinaryIO) -> None:
    for op in ops:
        signal.alarm(_SECONDS)  # some wait for the device, which is none
        notes = Notes()
        said = {name: list(outcomes(op, name, _on_gpu, notes)) for name in DTYPES}
        claimed = sorted(str(dtype).removeprefix("torch.") for dtype in op.dtypesIfCUDA)
        pickle.dump((key_of(op), said, notes.seen, claimed), target)
        target.flush()


def _noted(path: Path) -> set[str]:
    """The operators that an earlier run has noted; what it was writing when it ended is cut off."""
    keys: set[str] = set()
    if path.exists():
        with open(path, "r+b") as notes:
            end = 0
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                while True:
                    keys.add(pickle.load(notes)[0])
                    end = notes.tell()
            notes.truncate(end)
    return keys


def main(path: Path) -> None:
    """Try all that are not noted yet, in forks: an operation that ends its process costs that operator alone."""
    warnings.filterwarnings("ignore")
    torch.cuda._is_in_bad_fork = lambda: False  # nothing is lost in a fork, for there is no card
    noted = _noted(path)
    ops = [op for op in operators() if key_of(op) not in noted]
    at = 0
    with open(path, "ab") as sink:
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
                    sink.flush()
                    count += 1
            os.waitpid(child, 0)
            at += count
            if count < min(_BATCH, len(ops) - at + count):
                print(f"{key_of(ops[at])}: its process ended", file=sys.stderr)
                at += 1
            print(f"{at} of {len(ops)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
