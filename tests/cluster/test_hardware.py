"""hardware.toml: every card of the virtual GPU is in it, with the same figures, and each name leads to one board."""

from __future__ import annotations

import pytest

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
