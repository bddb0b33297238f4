"""Loaders that probes hand to a submission: which batches they have, and what notes a pass, nobody can read or write.

Imports nothing of `grader` but `kept`: whoever holds a loader holds its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Protocol, TypeVar

from grader.shared.probes.kept import method

Batch = TypeVar("Batch", covariant=True)


class Loader(Iterable[Batch], Protocol[Batch]):
    """What can be gone through again and again."""


class SizedLoader(Loader[Batch], Sized, Protocol[Batch]):
    """The same with a length."""


def loader(batches: Callable[[], Iterator[Batch]]) -> Loader[Batch]:
    """A loader without a length, each pass of which goes through what `batches` returns then."""

    class Hidden:
        __iter__ = method(lambda _: batches())

    return Hidden()


def sized_loader(length: int, batches: Callable[[], Iterator[Batch]]) -> SizedLoader[Batch]:
    """The same with a length, as a DataLoader has one, and no index."""

    class Hidden:
        __iter__ = method(lambda _: batches())

        def __len__(self) -> int:
            return length

    return Hidden()
