"""What NVML says of a GPU, in the forms in which nvidia-ml-py says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

import vgpu
from cluster.acceptance.nvml import read
from labkit.monitoring.nvml import XidCounter


@pytest.fixture
def handle() -> Iterator[Any]:
    with vgpu.attach("H100", values=False):
        pynvml.nvmlInit()
        yield pynvml.nvmlDeviceGetHandleByIndex(0)


def test_the_default_ecc_mode_comes_in_a_list(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100 a healthy node failed by it."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDefaultEccMode", lambda handle: [1])
    assert read(handle, XidCounter(handle))["ecc_mode_default"] == 1


def test_an_answer_of_another_form_is_untold_and_fails_no_node(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda handle: 0)
    reading = read(handle, XidCounter(handle))
    assert reading["mig_mode"] is None
    assert reading["untold"]["mig_mode"].startswith("TypeError")
    assert reading["up"]
