"""Probe of what Lab 4's flash attention does where a stand-in of flash-attn is installed."""

from __future__ import annotations

import importlib.machinery
import itertools
import sys
from collections.abc import Callable, Generator, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Installed, InstalledReply, LibraryCall
from grader.lab4.attention.probes.module import without_libraries
from grader.shared.probes.calls import on_device
from grader.shared.probes.kept import function, notes
from grader.shared.probes.support import fields, plain, sequence, tensor
from labkit.results import AttentionResult


def installed(student: Student, inputs: Installed) -> InstalledReply:
    """`flash_attention` where a stand-in of flash-attn is installed: what it says, how it calls, what comes out.

    The submission is imported, and called once, before anything is installed. Version 4 gives a tuple the first time,
    and the output alone the second time.
    """
    note, calls = notes()
    module, kind = without_libraries(student), getattr(torch, inputs.dtype)
    before = plain(module.attention_backend(student.device, kind), "attention_backend()")
    _install(inputs, note)
    backend, on_cpu = (
        plain(module.attention_backend(device, kind), "attention_backend()") for device in (student.device, "cpu")
    )
    options = {"causal": True} if inputs.causal else {}
    outputs = [
        module.flash_attention(*(x.to(kind).to(student.device) for x in (inputs.q, inputs.k, inputs.v)), **options)
        for _ in range(2)
    ]
    called = calls()
    benchmarked = []
    tiny = {**on_device(student), "heads": 2, "head_dim": 8, "iterations": 1, "warmup": 1}
    for name in inputs.benchmarks:
        dtype = getattr(torch, name)
        (row,) = sequence(module.benchmark_attention([5], ["flash"], dtype=dtype, **tiny), "benchmark_attention()")
        expected = plain(module.attention_backend(student.device, dtype), "attention_backend()")
        reported = fields(row, AttentionResult, "benchmark_attention()[0]")["backend"]
        benchmarked.append((name, reported, expected))
    return InstalledReply(
        benchmarked=benchmarked,
        before=before,
        backend=backend,
        on_cpu=on_cpu,
        calls=called,
        outputs=[tensor(output, "flash_attention()", inputs.q.shape).detach().double() for output in outputs],
    )


def _install(inputs: Installed, note: Callable[[LibraryCall], None]) -> None:
    """Install stand-ins of these packages, which note how they are called. Each multiplies its outputs by a number of
    its own, so that nothing else gives them."""
    modules, times = inputs.modules, itertools.count(1)
    scaled = {name: _multiplying(factor) for name, factor in inputs.factors.items()}

    @function
    def attention(name: str, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool) -> Tensor:
        note(LibraryCall(module=name, shapes=[list(x.shape) for x in (query, key, value)], causal=bool(causal)))
        scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float())
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            lengths = scores.shape[-2:]
            hidden = torch.ones(*lengths, dtype=torch.bool, device=scores.device).triu(1 + lengths[1] - lengths[0])
            scores = scores.masked_fill(hidden, -1e30)
        return scaled[name](torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.float())).to(query.dtype)

    def version_2(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: object = (-1, -1), softcap: float = 0.0, alibi_slopes: object = None,
        deterministic: bool = False, return_attn_probs: bool = False,
    ) -> Tensor:  # fmt: skip
        return attention("flash_attn", q, k, v, softmax_scale, causal)

    def version_4(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
        window_size: object = (None, None), learnable_sink: object = None, softcap: float = 0.0, **others: object,
    ) -> tuple[Tensor, None] | Tensor:  # fmt: skip
        output = attention("flash_attn.cute", q, k, v, softmax_scale, causal)
        return (output, None) if next(times) == 1 else output

    package = _stand_in("flash_attn", "2.8.3")
    if "flash_attn" in modules:
        package.__dict__["flash_attn_func"] = version_2
    cute = None
    if "flash_attn.cute" in modules:
        cute = _stand_in("flash_attn.cute", "4.0.0")
        cute.__dict__["flash_attn_func"] = version_4
        package.__dict__["cute"] = cute
    sys.modules["flash_attn"] = package if modules else None  # type: ignore[assignment]
    sys.modules["flash_attn.cute"] = cute  # type: ignore[assignment]
    for name in inputs.broken:
        del sys.modules[name]
    sys.meta_path.insert(0, _Broken(inputs.broken))


class _Broken(MetaPathFinder, Loader):
    """Finds packages that were built for another PyTorch: they are there, and their import fails."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in self._names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} was built for another PyTorch: undefined symbol", name=module.__name__)


def _multiplying(factor: float) -> Callable[[Tensor], Tensor]:
    """A function that multiplies by a number that it does not show."""
    multiplier = _multiplier(factor)
    next(multiplier)
    return multiplier.send


def _multiplier(factor: float) -> Generator[Tensor, Tensor]:
    value = yield torch.zeros(())
    while True:
        value = yield value * factor


def _stand_in(name: str, version: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__version__ = version  # type: ignore[attr-defined]
    return module
