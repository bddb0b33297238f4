"""What a simulator answers by is compared: entries, parts, and what hides a method."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradebox.sandbox.answers import comparing


class _Memory:
    def __init__(self) -> None:
        self.figure = 1

    def latest(self) -> int:
        return self.figure


class _Device:
    def __init__(self) -> None:
        self.memory = _Memory()


def _put(device: _Device, table: dict[str, int]) -> None:
    table["lies"] = 0


def _exchange(device: _Device, table: dict[str, int]) -> None:
    table["answers"] = 2


def _replace(device: _Device, table: dict[str, int]) -> None:
    device.memory = _Memory()


def _hide(device: _Device, table: dict[str, int]) -> None:
    device.memory.latest = lambda: 0  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "labels"),
    [
        (_put, ["a table"]),
        (_exchange, ["a table"]),
        (_replace, ["_Device.memory"]),
        (_hide, ["_Memory (hidden methods)"]),
    ],
)
def test_each_kind_of_change_is_named(change: Callable[[_Device, dict[str, int]], None], labels: list[str]) -> None:
    device, table = _Device(), {"answers": 1}
    changed = comparing({"a table": table}, [(device, "memory")])
    device.memory.figure = 2  # a figure may change
    assert changed() == []
    change(device, table)
    assert [label for label, _ in changed()] == labels
