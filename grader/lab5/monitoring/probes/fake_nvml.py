"""An NVML whose GPUs say what a check wants, under the names of `pynvml`; notes who asked what.

Patched before the student's code is imported, so that `from pynvml import ...` binds it too. What a GPU is not told to
know raises NVMLError_NotSupported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from threading import get_ident
from time import monotonic

import pynvml

from grader.lab5.monitoring.cases import MadeUpGpu
from grader.lab5.monitoring.probes.nvml_functions import (
    Later,
    Request,
    asker,
    problem,
    take_the_place_of_pynvml,
)

_POLL_SECONDS = 0.005


class FakeNvml:
    """Takes `pynvml`'s place in this process, for good: a probe's process ends with its probe.

    The functions that take the place of pynvml's do not lead here: they ask a suspended generator, so that nobody who
    holds one can say who asked what, or read what a GPU will say.

    A question that is to take long is answered with `Later` until its time has come: whoever asks gets nothing by not
    waiting, and nobody holds what would open the way.

    Args:
        gpus: what each GPU knows, in NVML's own units; a key that is missing is not supported.
        error: the name of the error that nvmlInit raises ("DRIVER_NOT_LOADED"); None: it works.
    """

    def __init__(self, gpus: Sequence[MadeUpGpu], *, error: str | None = None) -> None:
        self.gpus = [gpu.copy() for gpu in gpus]
        self.users = 0
        self.started = 0
        self.calls: list[int] = []
        """The thread of each question to a GPU."""
        self.questions_while_closed = 0
        self.error = error
        self.question_seconds = 0.0
        """How long each answer takes."""
        self.held: set[int] = set()
        """Threads that ask while no answer comes."""
        self._is_holding = False
        self._exempt: set[int] = set()
        self._begun: dict[tuple[int, object, str], float] = {}
        """When a question was asked that is not answered yet: of a thread, about a GPU."""
        answers = _answers(self)
        next(answers)
        take_the_place_of_pynvml(asker(answers))

    def hold(self) -> None:
        """From now on no question is answered."""
        self.held.clear()
        self._is_holding = True

    def release(self) -> None:
        """All questions are answered again."""
        self._is_holding = False

    def exempt(self) -> None:
        """The calling thread's questions are answered all the same."""
        self._exempt.add(get_ident())

    def start(self) -> None:
        """nvmlInit."""
        if self.error is not None:
            raise problem(self.error)
        self.users += 1
        self.started += 1

    def stop(self) -> None:
        """nvmlShutdown."""
        if not self.users:
            raise problem("UNINITIALIZED")
        self.users -= 1

    def count(self) -> int:
        """How many GPUs there are."""
        if not self.users:
            self.questions_while_closed += 1
            raise problem("UNINITIALIZED")
        return len(self.gpus)

    def handle(self, index: int) -> int:
        """What stands for a GPU: its index."""
        if not 0 <= index < self.count():
            raise problem("INVALID_ARGUMENT")
        return index

    def ask(self, index: object, key: str) -> object:
        """What one GPU knows, or `Later`."""
        place = me, _, _ = get_ident(), index, key
        if place not in self._begun:
            count = self.count()
            if not isinstance(index, int) or not 0 <= index < count:
                raise problem("INVALID_ARGUMENT")
            self.calls.append(me)
            self._begun[place] = monotonic()
        if self._is_holding and me not in self._exempt:
            self.held.add(me)
            return Later(_POLL_SECONDS)
        left = self._begun[place] + self.question_seconds - monotonic()
        if left > 0:
            return Later(left)
        del self._begun[place]
        assert isinstance(index, int)
        readings: Mapping[str, object] = self.gpus[index]
        if key not in readings:
            raise problem("NOT_SUPPORTED")
        return readings[key]


def _answers(fake: FakeNvml) -> Generator[object, Request]:
    """Answers one request after the other, each the name of a method with its arguments, or the error it raised."""
    names = ("start", "stop", "count", "handle", "ask")
    methods: dict[object, Callable[..., object]] = {name: getattr(fake, name) for name in names}
    answer: object = None
    while True:
        name, *arguments = yield answer
        try:
            answer = methods[name](*arguments)
        except pynvml.NVMLError as error:
            answer = error.with_traceback(None)  # its frames lead here
        except (KeyError, TypeError):  # no function of pynvml's asks like this
            answer = problem("INVALID_ARGUMENT")
