"""How calls end that a docstring says must be refused."""

from __future__ import annotations

from collections.abc import Callable


def ending(call: Callable[[], object]) -> str:
    """The name of the exception that `call` raised; "" where it returned. An open task is no refusal and passes on."""
    try:
        call()
    except NotImplementedError:
        raise
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return ""
