"""Backward operations run on the streams of their forward operations (notes/cuda, stream semantics of backward passes).

PyTorch's engine keeps a stream with each node of the graph, for tensors whose device has streams: none here. A node's
number says when it was made, so the streams that were current at that time are noted when a program changes them.
Before a backward pass each node of another stream gets a hook that makes its streams current and waits for the nodes
before it; at the end the caller's streams wait for all of them. A pass in which no node needs this costs nothing. Hooks
of tensors run before those of nodes, so they do the same first. Not here: the streams themselves
(`vgpu.torch_integration.patches.streams`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vgpu.runtime.thread_state import THREAD

Streams = dict[int, int]
"""The current stream of each GPU, by index; default streams may be missing."""
_MOST_NOTES = 10_000
"""Of older changes the streams are forgotten: their nodes run on the caller's."""
_LEAF = "torch::autograd::AccumulateGrad"


def change_streams(streams: Streams) -> None:
    """Make these streams current, and note from which node on."""
    before, THREAD.streams = THREAD.streams, streams
    if _active(before) == _active(streams):
        return
    number, notes = torch._C._autograd._get_sequence_nr(), THREAD.stream_notes
    if notes and notes[-1][0] == number:  # no node was made in between
        notes.pop()
    if _active(notes[-1][1] if notes else {}) != _active(streams):
        notes.append((number, dict(streams)))
        if len(notes) > _MOST_NOTES:
            del notes[: _MOST_NOTES // 2]


def _active(streams: Streams) -> Streams:
    return {gpu: stream for gpu, stream in streams.items() if stream}


def following(run: Callable[..., Any], wait: Callable[[int, int, int], None]) -> Callable[..., Any]:
    """PyTorch's engine with streams; `wait(gpu, stream, other)` lets a stream wait for another one."""

    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not THREAD.stream_notes:
            return run(outputs, *args, **kwargs)
        caller = _active(THREAD.streams)
        outer = THREAD.entering
        handles, used, THREAD.entering = _prepare(outputs, caller, wait)
        try:
            return run(outputs, *args, **kwargs)
        finally:
            THREAD.entering = outer
            for handle in handles:
                handle.remove()
            change_streams(dict(caller))
            for streams in used:
                _wait_for(caller, streams, wait)

    return run_backward


def _prepare(
    outputs: Iterable[torch.Tensor], caller: Streams, wait: Callable[[int, int, int], None]
) -> tuple[list[Any], list[Streams], dict[Any, Callable[[], None]]]:
    """Hooks for the nodes that need them, the streams used next to the caller's, and what hooks of tensors do first."""
    roots = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    before: dict[Any, list[Any]] = {root: [] for root in roots}
    open_nodes = list(before)
    while open_nodes:
        node = open_nodes.pop()
        for following, _ in node.next_functions:
            if following is not None:
                if following not in before:
                    before[following] = []
                    open_nodes.append(following)
                before[following].append(node)
    chosen = {node: _streams_of(node) for node in before if node.name() != _LEAF}
    for node, earlier in before.items():
        if node.name() == _LEAF:
            chosen[node] = chosen[earlier[0]] if earlier else caller
    handles, used, entering = [], [], {}
    for node, streams in chosen.items():
        sources = [chosen[earlier] for earlier in before[node]]
        if len(sources) != 1:
            sources.append(caller)
        if streams != caller or any(source != streams for source in sources):
            # The engine adds up what several nodes pass on to one: between two nodes, on the caller's streams.
            is_added = any(len(before[following]) > 1 for following, _ in node.next_functions if following is not None)
            enter = entering[_key_of(node)] = _enter(streams, sources, wait)
            handles.append(node.register_prehook(lambda _, enter=enter: enter()))
            handles.append(node.register_hook(_leave(caller, streams if is_added else caller, wait)))
        if streams != caller and streams not in used:
            used.append(streams)
    return handles, used, entering


def _streams_of(node: Any) -> Streams:
    notes = THREAD.stream_notes
    place = bisect_right(notes, node._sequence_nr(), key=lambda note: note[0])
    return _active(notes[place - 1][1]) if place else {}


def _enter(streams: Streams, sources: list[Streams], wait: Callable[[int, int, int], None]) -> Callable[[], None]:
    """Done by whichever hook comes first."""
    left = list(sources)

    def enter() -> None:
        change_streams(dict(streams))
        while left:
            _wait_for(streams, left.pop(0), wait)

    return enter


def _leave(caller: Streams, added: Streams, wait: Callable[[int, int, int], None]) -> Callable[[Any, Any], None]:
    def hook(inputs: Any, gradients: Any) -> None:
        change_streams(dict(caller))
        _wait_for(caller, added, wait)

    return hook


def _wait_for(streams: Streams, source: Streams, wait: Callable[[int, int, int], None]) -> None:
    for gpu in streams.keys() | source.keys():
        stream, other = streams.get(gpu, 0), source.get(gpu, 0)
        if stream != other:
            wait(gpu, stream, other)


def hooking(register: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.register_hook`, whose hooks run on the streams of the operation that made the tensor."""

    @functools.wraps(register)
    def register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        if not tensor.requires_grad or not callable(hook):
            return register(tensor, hook)
        key = (_LEAF, id(tensor)) if tensor.grad_fn is None else _key_of(tensor.grad_fn)

        def run(gradient: torch.Tensor) -> Any:
            enter = None if THREAD.entering is None else THREAD.entering.get(key)
            if enter is not None:
                enter()
            return hook(gradient)

        return register(tensor, functools.update_wrapper(run, hook))

    return register_hook


def _key_of(node: Any) -> tuple[str, int]:
    """By which a node is known without being kept alive: its number, or its leaf."""
    name = node.name()
    return name, id(node.variable) if name == _LEAF else node._sequence_nr()
