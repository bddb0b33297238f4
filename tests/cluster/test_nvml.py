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


def test_retired_pages_are_counted_by_cause_on_boards_that_have_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with vgpu.attach("V100", values=False):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert read(handle, XidCounter(handle))["retired_pages"] == [0, 0]
        pages = {pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS: [4096, 8192],
                 pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR: [12288]}  # fmt: skip
        monkeypatch.setattr(pynvml, "nvmlDeviceGetRetiredPages", lambda handle, cause: pages[cause])
        assert read(handle, XidCounter(handle))["retired_pages"] == [2, 1]


def test_a_board_with_rows_has_no_retired_pages_and_nothing_is_untold(handle: Any) -> None:
    reading = read(handle, XidCounter(handle))
    assert reading["retired_pages"] is None
    assert "retired_pages" not in reading["untold"]
