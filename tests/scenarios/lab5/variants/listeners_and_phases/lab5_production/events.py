"""Events with listeners: who hears of what is said in one place, when the listeners are put on."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Events:
    """Listeners by the name of what happens."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = defaultdict(list)

    def on(self, name: str, listener: Callable[..., Any]) -> None:
        """From now on `listener` hears of it, after those that were there before."""
        self._listeners[name].append(listener)

    def emit(self, name: str, **what: Any) -> list[Any]:
        """Tell all listeners, in their order; what they answer."""
        return [listener(**what) for listener in self._listeners[name]]
