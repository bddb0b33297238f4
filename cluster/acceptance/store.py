"""The store through which watchdogs and workers agree: PyTorch's TCPStore, apart from what is being tested.

It lives on one node, which may be the one that breaks. So every node has one in reserve, watchdogs know where, and
`SurvivingStore` moves on to the first of them that still answers.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

__all__ = ["Host", "PrefixStore", "Store", "SurvivingStore", "connect", "node_name", "serve", "within"]

NAME = "acceptance"
"""torchrun's store also holds torchrun's own keys."""
ANSWER_SECONDS = 15.0
"""A store answers within milliseconds. A node without power does not even refuse: nobody waits for TCP to give up."""
CONNECT_SECONDS = 5.0
POLL_SECONDS = 0.1
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where a rank is, and the store that its process keeps in reserve."""

    rank: int
    node: str
    address: str
    port: int
    """0 where this process keeps none: one of each node does."""


def node_name() -> str:
    """What the cluster calls this machine, so that it can be drained by that name."""
    # Slurm's name; on Kubernetes what the manifest takes from spec.nodeName, as a pod's host name is the pod's.
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def serve(host: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Open a store; with port 0 at a free one (its `port`). It lasts as long as the returned object."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False)


def connect(timeout_seconds: float) -> Store:
    """The store of this run, as a client: MASTER_ADDR and MASTER_PORT say where it is.

    Raises:
        torch.distributed.DistError: nobody answers there.
    """
    return _client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout_seconds)


def _client(address: str, port: int, timeout_seconds: float) -> Store:
    timeout = timedelta(seconds=timeout_seconds)
    return within(TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout))


def within(store: Store, name: str = NAME) -> Store:
    """The part of a store that is called so."""
    return PrefixStore(name, store)


def own_address(towards: str) -> str:
    """This machine's address on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


class SurvivingStore:
    """A store that goes on when its node is lost: with the first of the other nodes' that answers, else with its own.

    What this process has set is set there again. What others had set is known again once they have come as well.

    Attributes:
        hosts: of the ranks that were met, by rank.
        moved: whether the first store was lost.
    """

    def __init__(self, store: Store) -> None:
        self.hosts: dict[int, Host] = {}
        self.moved = False
        self._store = store
        self._own: dict[str, str] = {}
        self._reserves: list[Host] = []
        self._reserve: TCPStore | None = None

    def meet(self, *, rank: int, world_size: int, keeps_reserve: bool, seconds: float) -> None:
        """Tell where this process is, and hear where the others are, as far as they say so in time."""
        address = own_address(os.environ["MASTER_ADDR"])
        if keeps_reserve:
            try:
                self._reserve = serve(address)
            except dist.DistError as error:
                print(f"no store in reserve on this node: {error}", file=sys.stderr)
        port = self._reserve.port if self._reserve is not None else 0
        self.set(f"host/{rank}", json.dumps(asdict(Host(rank=rank, node=node_name(), address=address, port=port))))
        ends = time.monotonic() + seconds
        keys = {f"host/{other}": other for other in range(world_size)}
        while not self.check(list(keys)) and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
        for key, other in keys.items():
            if self.check([key]):
                self.hosts[other] = Host(**json.loads(self.get(key)))
        self._reserves = [host for _, host in sorted(self.hosts.items()) if host.port]

    @property
    def serves(self) -> bool:
        """Whether others may depend on this process."""
        return self._reserve is not None

    def set(self, key: str, value: str) -> None:
        """Set a key for all."""
        self._own[key] = value
        self._ask(lambda store: store.set(key, value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(lambda store: bool(store.check(list(keys))))

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        return self._ask(lambda store: bytes(store.get(key)))

    def first(self, key: str, value: str) -> bool:
        """Set a key unless somebody has; whether this process did."""
        return self._ask(lambda store: bytes(store.compare_set(key, "", value))) == value.encode()

    def _ask(self, act: Callable[[Store], Answer]) -> Answer:
        while True:
            try:
                return _in_time(act, self._store, ANSWER_SECONDS)
            except (dist.DistError, TimeoutError):
                self._move()

    def _move(self) -> None:
        """To the next store that answers; in the end to one in this process, which always does."""
        self.moved = True
        while self._reserves:
            host = self._reserves.pop(0)
            try:
                self._store = _in_time(lambda _: self._at(host), self._store, ANSWER_SECONDS)  # noqa: B023  # at once
            except (dist.DistError, TimeoutError):
                continue
            return
        self._store = HashStore()
        for key, value in self._own.items():
            self._store.set(key, value)

    def _at(self, host: Host) -> Store:
        """The store of another node, with all that this process has to say."""
        store = _client(host.address, host.port, CONNECT_SECONDS)
        for key, value in self._own.items():
            store.set(key, value)
        return store


def _in_time(act: Callable[[Store], Answer], store: Store, seconds: float) -> Answer:
    """Ask in a thread that may be left behind: a socket to a node without power blocks for minutes.

    Raises:
        TimeoutError: no answer in time.
        Exception: whatever `act` raises.
    """
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((act(store), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    answer: Answer = value
    return answer
