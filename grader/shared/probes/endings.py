"""How calls end that a docstring says must be refused. An open task is no refusal: its error passes on."""

from __future__ import annotations

from collections.abc import Callable


def ending(call: Callable[[], object]) -> str:
    """The name of the exception that `call` raised, "ValueError" for all its kinds; "" where it returned.

    Raises:
        NotImplementedError: the task is open.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return ""


def refused(call: Callable[[], object]) -> bool:
    """Whether `call` raised a ValueError; raises as `ending` does."""
    return ending(call) == "ValueError"
