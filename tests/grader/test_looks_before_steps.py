"""What undoes itself when a probe's step calls it is still there when the step begins: so the step looks first."""

from __future__ import annotations

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
