"""Every change of an instrument shows in the memory that a comparison reads, and without one nothing does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gradebox.sandbox import dictionary_memory


class Base:
    def answer(self) -> int:
        return 1


class Other(ModuleType):
    pass


def fresh() -> dict[str, Any]:
    """One of each kind of what is looked at, by name."""

    class Instrument(Base):
        limit = 3

        @property
        def reading(self) -> int:
            return 1

    def function(*, rtol: float = 1e-5) -> float:
        return rtol

    module = ModuleType("measures")
    module.clock = function  # type: ignore[attr-defined]
    return {
        "namespace": vars(module),
        "class": gc.get_referents(vars(Instrument))[0],
        "defaults": function.__kwdefaults__,
        "numbers": {1: "one", 2: "two"},
        "shared": Instrument().__dict__ | {"a": 1},
        "module": module,
        "order": Instrument,
        "property": vars(Instrument)["reading"],
        "static": staticmethod(function),
    }


def look(things: dict[str, Any]) -> Callable[[], list[str]]:
    """A function that says by name what has changed since."""
    names = {id(thing): name for name, thing in things.items()}
    spaces = [thing for thing in things.values() if type(thing) is dict]
    others = [thing for thing in things.values() if type(thing) is not dict]
    changed = dictionary_memory.remember(spaces, others)
    return lambda: sorted(names[number] for number in changed())


def test_nothing_is_listed_where_nothing_has_changed() -> None:
    things = fresh()
    changed = look(things)
    assert changed() == []
    assert things["order"]().reading == things["order"]().answer() == 1
    assert things["module"].clock() == 1e-5
    assert changed() == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("namespace", lambda things: setattr(things["module"], "clock", len)),
        ("namespace", lambda things: setattr(things["module"], "more", len)),
        ("namespace", lambda things: delattr(things["module"], "clock")),
        ("namespace", lambda things: things["namespace"].update({str(number): number for number in range(5000)})),
        ("namespace", lambda things: things["namespace"].clear()),
        ("class", lambda things: setattr(things["order"], "limit", 4)),
        ("class", lambda things: setattr(things["order"], "__getattribute__", lambda *_: 0)),
        ("class", lambda things: delattr(things["order"], "limit")),
        ("defaults", lambda things: things["defaults"].update(rtol=1.0)),
        ("numbers", lambda things: things["numbers"].update({2: "three"})),
        ("numbers", lambda things: things["numbers"].update(three=3)),
        ("shared", lambda things: things["shared"].update(a=2)),
        ("module", lambda things: setattr(things["module"], "__class__", Other)),
        ("order", lambda things: setattr(things["order"], "__bases__", (type("Another", (Base,), {}),))),
        ("property", lambda things: things["property"].__init__(lambda _: 2)),
        ("static", lambda things: things["static"].__init__(len)),
    ],
)
def test_a_change_is_listed_and_nothing_else(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    things = fresh()
    changed = look(things)
    change(things)
    assert changed() == [name]


def test_what_was_put_back_is_as_before() -> None:
    things = fresh()
    changed = look(things)
    things["order"].limit = 4
    things["order"].limit = 3
    assert changed() == []


def test_where_the_layout_is_another_everything_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then whoever asks looks at the objects themselves."""
    things = fresh()
    with monkeypatch.context() as patch:
        patch.setattr(dictionary_memory, "_IS_KNOWN", False)
        assert look(things)() == sorted(things)
