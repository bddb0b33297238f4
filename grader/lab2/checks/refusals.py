"""Says whether a call was refused that must be, and taken that makes sense."""

from __future__ import annotations

from gradebox.run.assertions import require


def require_refused(refused: bool, wanted: bool, call: str) -> None:
    """Fail unless `call` raised a ValueError where it makes no sense, and none where it does."""
    if wanted:
        require(refused, f"{call} raised no ValueError", "see Raises in its docstring")
    else:
        require(
            not refused,
            f"{call} raised a ValueError although it makes sense",
            "refuse what its docstring names under Raises, and nothing else",
        )
