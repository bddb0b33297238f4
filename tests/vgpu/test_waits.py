"""What waits for the device, in time, in `torch.cuda.set_sync_debug_mode`, and not in a CUDA graph.

Which functions of torch.linalg wait is asked of their documentation, in the words of its notes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vgpu

_NOTE = "this function synchronizes that device with the CPU"
_NOTE_WITH_ERRORS = "synchronizes only when :attr:`check_errors`"
_SECONDS = 0.05


def _matrix() -> torch.Tensor:
    return torch.eye(4, device="cuda") * 2 + 0.1


# Functions that take more than a matrix.
_ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "lstsq": lambda: (_matrix(), _matrix()),
    "solve": lambda: (_matrix(), _matrix()),
    "solve_ex": lambda: (_matrix(), _matrix()),
}


def _documented(note: str) -> list[str]:
    functions = {name: getattr(torch.linalg, name) for name in dir(torch.linalg) if not name.startswith("_")}
    return [name for name, function in functions.items() if note in " ".join((function.__doc__ or "").split())]


def _call(name: str, **options: Any) -> Callable[[], Any]:
    arguments = _ARGUMENTS.get(name, lambda: (_matrix(),))()
    return lambda: getattr(torch.linalg, name)(*arguments, **options)


def _is_refused_in_a_graph(call: Callable[[], Any]) -> bool:
    """In the words of the capture that it ended (CUDA Runtime API, cudaErrorStreamCaptureInvalidated)."""
    refusals = []
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()
    except torch.AcceleratorError as error:
        refusals = [str(error), str(error.__context__)]
    texts = ["failed due to a previous error during capture", "not permitted when stream is capturing"]
    assert all(text in refusal for text, refusal in zip(texts, refusals, strict=bool(refusals)))
    return bool(refusals)


def _waits(gpu: vgpu.VirtualGPU, call: Callable[[], Any]) -> bool:
    """Whether a call waits, by each way to see that."""
    call()
    torch.cuda._sleep(int(_SECONDS * gpu.spec.clock_hertz))
    torch.cuda.set_sync_debug_mode("warn")
    begin = gpu.now()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    torch.cuda.set_sync_debug_mode("default")
    waited = gpu.now() - begin > _SECONDS / 2
    torch.cuda.synchronize()
    files = [warning.filename for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
    assert bool(files) == waited
    assert set(files) <= {__file__}  # the program's line, and not a file of ours
    assert _is_refused_in_a_graph(call) == waited
    return waited


def test_the_documentation_has_these_notes() -> None:
    assert {"inv", "solve", "cholesky", "eigh", "svd", "lu_factor"} <= set(_documented(_NOTE))
    assert {"inv_ex", "cholesky_ex", "solve_ex"} <= set(_documented(_NOTE_WITH_ERRORS))


@pytest.mark.parametrize("name", _documented(_NOTE))
def test_what_the_documentation_says_waits(gpu: vgpu.VirtualGPU, name: str) -> None:
    assert _waits(gpu, _call(name))


@pytest.mark.parametrize("name", _documented(_NOTE_WITH_ERRORS))
def test_what_waits_only_to_check_for_errors(gpu: vgpu.VirtualGPU, name: str) -> None:
    assert not _waits(gpu, _call(name))
    assert _waits(gpu, _call(name, check_errors=True))


@pytest.mark.parametrize(
    ("waits", "call"),
    [
        (True, lambda x: torch.svd(x)),
        (True, lambda x: torch.linalg.matrix_norm(x, 2)),
        (False, lambda x: torch.linalg.matrix_norm(x)),
        (False, lambda x: torch.linalg.det(x)),
        (False, lambda x: torch.linalg.qr(x)),
        (True, lambda x: torch.histc(x)),
        (False, lambda x: torch.histc(x, min=0, max=1)),
        (True, lambda x: torch.normal(x, x.abs())),
        (False, lambda x: torch.normal(x, 1.0)),
        (True, lambda x: x[x > 0]),
        (False, lambda x: torch.where(x > 0, x, 0.0)),
    ],
)
def test_what_the_source_says_of_others(gpu: vgpu.VirtualGPU, waits: bool, call: Callable[[Any], Any]) -> None:
    x = _matrix()
    assert _waits(gpu, lambda: call(x)) == waits
