"""What a probe keeps to itself beside what it hands out: notes of what was called, and how long something takes.

They lie in the local variables of suspended generators, which no attribute, closure or copy shows; the ways into one
(`gi_frame`, the collector) raise audit events. What is handed out is a method that is bound to such a generator: unlike
a closure's cell or a default, nobody can put something else in its place. Imports nothing of `grader`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from types import GeneratorType, MethodType
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import torch
from torch.utils._device import DeviceContext

from gradebox.sandbox.probe_loader import WrongReturn
from gradebox.sandbox.types import LISTED, NOTED
from grader.shared.probes.fixed import again, fixed
from vgpu.torch_integration.dispatch.function_mode import FunctionMode
from vgpu.torch_integration.modes import IdleFunctionMode

P = ParamSpec("P")
R = TypeVar("R")
Noted: TypeAlias = Any
"""What a probe notes: what it is, the probe itself knows."""
_Modes: TypeAlias = list[Any]
"""Torch function modes; a submission's may be anything."""
_TakeOff: TypeAlias = Callable[[], _Modes]
_PutBack: TypeAlias = Callable[[_Modes], None]
_Pop: TypeAlias = Callable[[], Any]
_Push: TypeAlias = Callable[[Any], None]
Announce: TypeAlias = Callable[[], None]
"""Raises an audit event, at which the sandbox looks at its instruments. Bound before there is a submission."""
_POLL_SECONDS = 0.005


def _announce(
    audit: Callable[..., None] = sys.audit,
    count: Callable[[], int] = torch._C._len_torch_function_stack,
    mode: Callable[[int], object] = torch._C._get_function_stack_at,
    evaluator: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback,
    *,
    whole: bool = False,
) -> None:
    """With the modes that are on where a step has not taken them off: a submission's could answer for every tensor.
    And with TorchDynamo's evaluator, which sees each frame before it runs.

    Args:
        whole: everything is to be compared now, because the probe goes on with what was noted.
    """
    audit(LISTED if whole else NOTED, *[mode(place) for place in range(count())], (evaluator(),))


def _take_off(
    count: Callable[[], int] = torch._C._len_torch_function_stack,
    pop: _Pop = torch._C._pop_torch_function_stack,
    push: _Push = torch._C._push_on_torch_function_stack,
    kept: tuple[type, ...] = (FunctionMode, IdleFunctionMode),
    default: type = DeviceContext,
    chooses: Any = DeviceContext.__torch_function__,
    how: Any = DeviceContext.__torch_function__.__code__,
    name: str = "__torch_function__",
    space: Callable[[Any], Any] = vars,
) -> _Modes:
    """Take the torch function modes of a submission off, and return all that were on, the innermost last.

    A submission may well log the functions of PyTorch that its training calls. Its modes have no part in what a probe
    looks at. Those of the virtual GPU's classes stay; whether they are its own is seen when something is noted. A
    default device stays as well, if PyTorch's own function answers for it: a model that is handed out is made there.
    """
    modes = [pop() for _ in range(count())][::-1]
    is_genuine = space(default).get(name) is chooses and chooses.__code__ is how
    for mode in modes:
        kind = type(mode)
        if kind in kept or (kind is default and is_genuine and name not in space(mode)):
            push(mode)
    return modes


def _put_back(
    modes: _Modes,
    count: Callable[[], int] = torch._C._len_torch_function_stack,
    pop: _Pop = torch._C._pop_torch_function_stack,
    push: _Push = torch._C._push_on_torch_function_stack,
) -> None:
    for _ in range(count()):
        pop()
    for mode in modes:
        push(mode)


class _Shared(NamedTuple):
    """A generator, with what is needed to go on with it."""

    generator: Generator[Any, Any]
    lock: Any
    """It runs in one thread at a time."""
    wrong: Callable[[str], Exception]
    """Is raised if the generator has been closed."""

    def __deepcopy__(self, memo: object) -> _Shared:
        """Itself, as a plain function is: a model whose hooks we hand out may be copied."""
        return self


_Sender: TypeAlias = Callable[[_Shared, object], Any]


def _begun(generator: Generator[Any, Any]) -> _Shared:
    next(generator)
    return _Shared(generator, threading.Lock(), WrongReturn)


# What is handed out. A function leads to the globals of its module, where things can be exchanged for a while, and
# nobody sees that afterwards: so these functions use only what they are given.


def _send(shared: _Shared, value: object) -> Any:
    generator, lock, wrong = shared
    with lock:
        try:
            return generator.send(value)
        except StopIteration:
            raise wrong("something that was handed to your code was closed by it") from None


def _send_it(shared: _Shared, value: object, send: _Sender = _send) -> None:
    send(shared, value)


def _go_on(shared: _Shared, send: _Sender = _send) -> Any:
    return send(shared, None)


def _call(of: tuple[_Shared, object, _Sender], *arguments: object, **named: object) -> Any:
    shared, instance, send = of
    outcome: list[Any] = []
    send(shared, (outcome, instance, arguments, named))
    error, value = outcome
    if error is not None:
        raise error
    return value


def _bind(of: tuple[_Shared, type[MethodType], Any, Any], instance: object) -> Callable[..., Any]:
    shared, made, call, send = of
    return made(call, (shared, instance, send))


def _wait(of: tuple[_Shared, Callable[[float], None], float, Any]) -> None:
    shared, nap, seconds, send = of
    while not send(shared, None)[0]:
        nap(seconds)  # outside of the lock, which is not fair


def _run(running: Generator[None]) -> None:
    running.send(None)


announce = _announce
"""For a probe that is about to take a reading."""


# --- what a probe calls -----------------------------------------------------------------------------------------------


def notes() -> tuple[Callable[[Noted], None], Callable[[], list[Noted]]]:
    """A function that notes a value, to be handed out, and one that lists what was noted, for the probe alone.

    Whoever hands it out calls it first: what is not noted did not happen. Nobody can change a note, or take one away:
    each is made of tuples when it is noted, and so is the chain of all.
    """
    key = object()
    shared = _begun(_noting(key))
    return MethodType(_send_it, shared), MethodType(_listed, (shared, key, _send))


def _listed(of: tuple[_Shared, object, _Sender]) -> list[Noted]:
    shared, key, send = of
    values: list[Noted] = send(shared, key)
    return values


def _noting(
    key: object, announce: Callable[..., None] = _announce, fixed: Callable[[Any], Any] = fixed, again: Any = again
) -> Generator[list[Noted], object]:
    chain: tuple[Any, ...] = ()
    value = yield []
    while True:
        if value is key:
            announce(whole=True)
            values, link = [], chain
            while link:
                link, value = link
                values.append(again(value))
            values.reverse()
            value = yield values
            del values
        else:
            announce()
            chain = (chain, fixed(value))
            value = yield []


def method(step: Callable[..., Any]) -> Any:
    """`step(instance, ...)` as a method for a class that is handed out: nobody can reach the variables of `step`.

    For a method that notes something. The cells of a plain function's closure can be given other values.
    """
    return property(MethodType(_bind, (_begun(_stepping(step)), MethodType, _call, _send)))


def function(step: Callable[P, R]) -> Callable[P, R]:
    """The same as a function: for a hook, a part of an `autograd.Function`, or whatever else a submission calls."""
    shared = _begun(_stepping(lambda _, *arguments, **named: step(*arguments, **named)))
    return MethodType(_call, (shared, None, _send))


def _stepping(
    step: Callable[..., Any],
    take_off: _TakeOff = _take_off,
    put_back: _PutBack = _put_back,
    announce: Announce = _announce,
    traceback_of: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__,
    without: Callable[[BaseException, Any], BaseException] = BaseException.with_traceback,
    collects: Callable[[], bool] = gc.isenabled,
    collect_no_more: Callable[[], None] = gc.disable,
    collect_again: Callable[[], None] = gc.enable,
) -> Generator[None, Any]:
    going_on, generator = _going_on, GeneratorType
    while True:
        outcome, instance, arguments, named = yield
        modes, collecting = take_off(), collects()
        try:
            # Finalizers and callbacks of the garbage collector would run between a look and a reading.
            collect_no_more()
            # What undoes itself when the step calls it is still there now.
            announce()
            result = step(instance, *arguments, **named)
            outcome += [None, going_on(result, take_off, put_back) if type(result) is generator else result]
        except Exception as error:
            # Without this frame: who clears the frames of the traceback would end this generator.
            outcome += [without(error, getattr(traceback_of(error), "tb_next", None)), None]
        finally:
            put_back(modes)
            if collecting:
                collect_again()
        result = None
        del outcome, instance, arguments, named, modes  # nothing of a call lives on here


def _going_on(
    running: Generator[Any],
    take_off: _TakeOff,
    put_back: _PutBack,
    announce: Announce = _announce,
) -> Generator[Any]:
    """What a generator of a step yields; it runs without modes, as the step does."""
    end = object()
    while True:
        modes = take_off()
        try:
            announce()
            value = next(running, end)
        finally:
            put_back(modes)
        if value is end:
            return
        yield value
        value = None


def note_into(values: list[Any]) -> Callable[[Noted], None]:
    """A function that adds to a list of the probe's, and does not lead to it."""
    return MethodType(_send_it, _begun(_adding(values)))


def _adding(values: list[Any], announce: Announce = _announce) -> Generator[None, object]:
    while True:
        value = yield
        announce()
        values.append(value)


def in_turn(values: Sequence[float], rest: float) -> Callable[[], float]:
    """A function that returns these values one after the other, and `rest` from then on."""
    return MethodType(_go_on, _begun(_turns(list(values), rest)))


def _turns(values: list[float], rest: float) -> Generator[float]:
    yield rest
    yield from values
    while True:
        yield rest


def nap(seconds: float) -> Callable[[], None]:
    """A function that sleeps for so long, and does not say beforehand for how long."""
    return naps(itertools.repeat(seconds))


def naps(seconds: Iterable[float]) -> Callable[[], None]:
    """A function that sleeps for the first of these times when it is called first, and so on."""
    return MethodType(_go_on, _begun(_napping(seconds)))


def _napping(seconds: Iterable[float]) -> Generator[None]:
    sleep = time.sleep  # what is exchanged later has no part in it
    yield
    for each in seconds:
        sleep(each)
        yield


def alarm(at: Collection[int], ring: Callable[[], object]) -> Callable[[], None]:
    """A function whose `at`-th calls ring, and that does not say beforehand which these are."""
    return MethodType(_go_on, _begun(_counting(frozenset(at), ring)))


def _counting(at: Collection[int], ring: Callable[[], object]) -> Generator[None]:
    for number in itertools.count():
        if number in at:
            ring()
        yield


class Gate(NamedTuple):
    """Holds up those who come to it until it is opened. Only `wait` may be handed out."""

    wait: Callable[[], None]
    is_reached: Callable[[], bool]
    """Whether somebody has come to it."""
    open: Callable[[], object]


def gate(longest_seconds: float) -> Gate:
    """A closed gate, which opens by itself if somebody has waited there for so many seconds."""
    opening, looking = object(), object()
    shared = _begun(_watching(opening, looking, longest_seconds))

    def is_reached() -> bool:
        _, reached = _send(shared, looking)
        return bool(reached)

    wait = MethodType(_wait, (shared, time.sleep, _POLL_SECONDS, _send))
    return Gate(wait, is_reached, lambda: _send(shared, opening))


def _watching(opening: object, looking: object, longest_seconds: float) -> Generator[tuple[bool, bool], object]:
    is_open, end, clock = False, 0.0, time.monotonic
    value = yield False, False
    while True:
        if value is opening:
            is_open = True
        elif value is not looking:
            end = end or clock() + longest_seconds
            is_open = is_open or clock() > end
        value = yield is_open, end > 0


def started(call: Callable[[], object]) -> Callable[[float | None], bool]:
    """Run `call` in a thread; a function that waits for its end for so many seconds (None: for ever), and says whether.

    Nothing that the thread shows leads to what says so.
    """
    done = threading.Lock()
    done.acquire()
    thread = threading.Thread(target=MethodType(_run, _running(call, done)), daemon=True)
    thread.start()

    def has_ended(timeout: float | None) -> bool:
        if not done.acquire(timeout=-1 if timeout is None else timeout):
            return False
        done.release()
        thread.join(_POLL_SECONDS)
        return True

    return has_ended


def _running(call: Callable[[], object], done: Any) -> Generator[None]:
    with contextlib.suppress(Exception):  # what it raises is no matter of those who wait
        call()
    done.release()
    yield
