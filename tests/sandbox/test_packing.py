"""What makes a reply of a probe's value uses nothing that a submission can replace."""

from __future__ import annotations

import builtins
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from gradebox.sandbox import codec, failures, packing
from gradebox.sandbox.devices import Reading


@dataclasses.dataclass
class _Call:
    share: float
    graphs: list[bool]


@dataclasses.dataclass
class _Reply:
    calls: list[_Call]
    reading: Any


_REPLACED: list[tuple[Any, str]] = [
    *((builtins, name) for name in ("isinstance", "type", "getattr", "enumerate", "any", "len", "str", "dict")),
    (dataclasses, "fields"),
    (dataclasses, "is_dataclass"),
    (json.JSONEncoder, "encode"),
    (json.JSONEncoder, "iterencode"),
    (json, "dumps"),
    (codec, "to_json"),
    (codec, "dump_json"),
    (codec, "join"),
    (failures, "describe"),
]


@pytest.mark.parametrize(("owner", "name"), _REPLACED, ids=lambda value: getattr(value, "__name__", value))
def test_a_function_replaced_after_the_last_comparison_sees_nothing_of_a_reply(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: dict[str, int] = {}
    reply = _Reply([_Call(0.5, [True, False])], Reading(7))
    put_aside = packing.putting_aside({}, readings, {}, lambda value: None)
    convert, pack = codec.converter(), packing.packer(10**6)
    calls: list[tuple[Any, ...]] = []
    original: Callable[..., Any] = getattr(owner, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, replaced)
    value = convert(reply, put_aside)
    data = pack({"kind": "ok", "value": value}, {})
    monkeypatch.undo()
    assert calls == []
    assert readings == {"reading": 7}
    text, arrays = codec.split(data)
    assert codec.load_json(text) == {
        "kind": "ok",
        "value": {"calls": [{"share": 0.5, "graphs": [True, False]}], "reading": "reading"},
    }
    assert arrays == b""


def test_whoever_describes_an_error_cannot_say_that_all_went_well() -> None:
    assert packing.failed({"kind": "error"}) == {"kind": "error"}
    assert packing.failed({"kind": "ok", "value": {}})["kind"] == "tampered"


def test_a_value_that_json_does_not_have_becomes_an_error() -> None:
    text, _ = codec.split(packing.packer(10**6)({"kind": "ok", "value": object()}, {}))
    assert codec.load_json(text)["kind"] != "ok"
