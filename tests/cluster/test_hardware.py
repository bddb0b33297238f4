"""hardware.toml: every card of the virtual GPU is in it, with the same figures, and each name leads to one board."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cluster.acceptance.checks import bandwidth
from cluster.acceptance.context import Context
from cluster.acceptance.hardware import board, boards
from tests.cluster.faults.machines import CARDS
from tests.cluster.faults.reported import BROKEN, HEALTHY
from vgpu import get_spec

SPECS = [card.spec for card in CARDS if card.spec]


@pytest.mark.parametrize("name", SPECS)
def test_a_card_of_the_virtual_gpu_has_the_same_figures_here(name: str) -> None:
    spec = get_spec(name)
    known = board(spec.title)
    assert known is not None
    assert known.multiprocessors in (None, spec.multiprocessors)
    if known.bandwidth_gb is not None:
        assert known.bandwidth_gb * 1e9 == pytest.approx(spec.bandwidth_bytes_per_second, rel=0.02)
    if known.memory_gib is not None:
        assert 0.96 < known.memory_gib * 2**30 / spec.memory_bytes <= 1.0


def test_names_of_one_family_are_not_taken_for_each_other() -> None:
    names = {"NVIDIA H200": 18, "NVIDIA H200 NVL": 18, "NVIDIA H100 80GB HBM3": 18, "NVIDIA H100 NVL": 12}
    assert {name: found.nvlinks for name in names if (found := board(name)) is not None} == names
    assert board("NVIDIA H200 NVL") != board("NVIDIA H200")
    assert board("NVIDIA H100") is None, "nobody knows which one"
    assert board(None) is None


def test_boards_that_are_joined_say_by_what() -> None:
    assert all((entry.nvlinks > 0) == bool(entry.joined) for entry in boards())
    assert all(entry.joined in ("", "switch", "mesh", "bridge") for entry in boards())
    used = {record.result("presence")["device_name"] for story in (*BROKEN, *HEALTHY) for record in story.records()}
    assert all(board(name) is not None for name in used)


def test_the_memory_is_copied_by_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cudaMemcpy does on one GPU reaches half of an H20's data sheet, and `copy_` is that."""

    def refuse(*_: object) -> None:
        raise AssertionError("copy_")

    monkeypatch.setattr(torch.Tensor, "copy_", refuse)
    context: Any = SimpleNamespace(
        on_gpu=True, torch_device=torch.device("cpu"), sizes=SimpleNamespace(copy_bytes=4096)
    )
    context.at, context.synchronize, context.has_fault = lambda words: None, lambda: None, lambda kind: False
    result = bandwidth.measure(cast(Context, context))
    assert result["bytes"] == 4096
    assert all(result["rates"][name] > 0 for name in bandwidth.STREAMS)


def test_a_bound_of_memory_is_below_the_slowest_sound_board_and_above_a_loss_of_a_sixth() -> None:
    for card in CARDS:
        known = board(card.name)
        assert known is not None
        slowest, quickest = card.memory_gb
        assert known.bandwidth_gb
        assert known.copied * known.bandwidth_gb <= slowest, card.name
        assert 0.84 * quickest < known.copied * known.bandwidth_gb, card.name
