"""What undoes itself when a probe's step calls it is still there when the step begins: so the step looks first."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from grader.shared.probes import kept


def test_a_step_looks_at_the_instruments_before_it_runs() -> None:
    order: list[str] = []

    def step(_: object) -> None:
        order.append("step")

    stepping = kept._stepping(step, announce=lambda: order.append("look"))
    next(stepping)
    stepping.send(([], None, (), {}))
    assert order == ["look", "step"]


def test_a_step_that_yields_looks_before_each_value() -> None:
    order: list[str] = []

    def step() -> Iterator[int]:
        for value in range(2):
            order.append(f"value {value}")
            yield value

    running = kept._going_on(step(), kept._take_off, kept._put_back, lambda: order.append("look"))  # type: ignore[arg-type]
    assert list(running) == [0, 1]
    assert order == ["look", "value 0", "look", "value 1", "look"]


def test_no_garbage_is_collected_between_the_look_and_the_end_of_a_step() -> None:
    """Otherwise a callback of the collector could exchange what the step reads with."""
    collections: list[str] = []
    order: list[str] = []

    def called(phase: str, _: object) -> None:
        collections.append(phase)

    def step(_: object) -> list[list[int]]:
        order.append("step")
        before = len(collections)
        made = [[number] for number in range(10_000)]
        assert len(collections) == before
        return made

    stepping = kept._stepping(step)
    next(stepping)
    gc.callbacks.append(called)
    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        outcome: list[object] = []
        stepping.send((outcome, None, (), {}))
        assert gc.isenabled()
        gc.disable()
        stepping.send(([], None, (), {}))
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
        gc.callbacks.remove(called)
    assert outcome[0] is None, outcome
    assert order == ["step", "step"]
