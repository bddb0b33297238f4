"""How fast this machine's host launches work, compared with the one that a card's entry assumes: `calibrate --host`.

Small models measure little else. Not here: the device's own times (`vgpu.tools.calibrate.measure`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom

from vgpu.device import cost
from vgpu.device.spec import Spec

_ROUNDS, _CALLS, _WARM_UP_CALLS = 15, 200, 20


def _calls() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Small calls by name: the kind of call that the cost model charges, and the call."""
    x, square = torch.zeros(8, device="cuda"), torch.zeros(8, 8, device="cuda")
    image, window = torch.zeros(1, 8, 8, 8, device="cuda"), torch.zeros(8, 8, 3, 3, device="cuda")
    return {
        "x + x": ("", lambda: x + x),
        "x.clone()": ("", lambda: x.clone()),
        "torch.softmax": ("", lambda: torch.softmax(square, -1)),
        "torch.mm": ("product", lambda: torch.mm(square, square)),
        "F.conv2d": ("convolution", lambda: F.conv2d(image, window)),
        "F.layer_norm": ("norm", lambda: F.layer_norm(square, (8,))),
    }


def slowness(spec: Spec) -> dict[str, float]:
    """Of each call, how many times as long this host takes for it as the spec says, in a median round."""
    ratios = {}
    with torch.no_grad():
        for name, (kind, call) in _calls().items():
            for _ in range(_WARM_UP_CALLS):
                call()
            ratios[name] = statistics.median(_seconds(call) for _ in range(_ROUNDS)) / cost.launch_seconds(spec, kind)
    return ratios


def _seconds(call: Callable[[], Any]) -> float:
    """Seconds until a call returns, on a device that has nothing to do before."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_CALLS):
        call()
    seconds = (time.perf_counter() - begin) / _CALLS
    torch.cuda.synchronize()
    return seconds


def line(spec: Spec, ratios: dict[str, float]) -> str:
    """One line of TOML, which is a whole file for `--gpu`: the card with this host."""
    seconds = spec.launch_seconds * statistics.median(ratios.values())
    return f'gpu.{spec.name}-here = {{ base = "{spec.name}", launch_seconds = {seconds:.3g} }}'
