"""The sources of random numbers, each as one small record: is it there, take its state, give it back."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class Source(NamedTuple):
    present: Callable[[], bool]
    take: Callable[[], Any]
    give: Callable[[Any], None]


def _always() -> bool:
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _give_python(state: Any) -> None:
    version, words, gauss = state
    random.setstate((version, tuple(words), gauss))


def _take_numpy() -> Any:
    return _plain(np.random.get_state(legacy=False))


def _give_numpy(state: Any) -> None:
    inner = {**state["state"]}
    if "key" in inner:
        inner["key"] = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**state, "state": inner})


SOURCES: dict[str, Source] = {
    "python": Source(_always, random.getstate, _give_python),
    "numpy": Source(_always, _take_numpy, _give_numpy),
    "torch": Source(_always, torch.get_rng_state, torch.set_rng_state),
    "cuda": Source(torch.cuda.is_available, lambda: torch.cuda.get_rng_state(), lambda s: torch.cuda.set_rng_state(s)),
}
