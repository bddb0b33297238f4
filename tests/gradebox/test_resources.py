"""How much a machine takes at the same time."""

from __future__ import annotations

import pytest

from gradebox.common import resources


@pytest.mark.parametrize(
    ("cores", "gibibytes", "graders"),
    [(1, 8, 2), (2, 24, 3), (2, 4, 2), (2, 1, 1), (64, 256, 65), (64, 48, 32), (8, None, 9)],
)
def test_cores_and_memory_say_how_many_gradings(
    monkeypatch: pytest.MonkeyPatch, cores: int, gibibytes: int | None, graders: int
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: cores)
    monkeypatch.setattr(resources, "memory_bytes", lambda: None if gibibytes is None else gibibytes << 30)
    assert resources.graders() == graders


@pytest.mark.parametrize(("cores", "graders"), [(1, 1), (2, 1), (16, 8)])
def test_on_a_real_gpu_half_of_the_cores_are_left_for_it(
    monkeypatch: pytest.MonkeyPatch, cores: int, graders: int
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: cores)
    monkeypatch.setattr(resources, "memory_bytes", lambda: 1 << 40)
    assert resources.graders(on_hardware=True) == graders


@pytest.mark.parametrize(("gibibytes", "graders"), [(80, 8), (24, 4), (15, 2), (8, 1), (4, 1)])
def test_a_small_gpu_takes_fewer(monkeypatch: pytest.MonkeyPatch, gibibytes: int, graders: int) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 32)
    assert resources.graders(gibibytes << 30, on_hardware=True) == graders
