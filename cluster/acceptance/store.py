"""The store through which watchdogs and workers agree: PyTorch's TCPStore, apart from what is being tested."""

import os
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

__all__ = ["PrefixStore", "Store", "connect", "serve", "within"]

NAME = "acceptance"
"""torchrun's store also holds torchrun's own keys."""


def serve(host: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Open a store; with port 0 at a free one (its `port`). It lasts as long as the returned object."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False)


def connect(timeout_seconds: float) -> Store:
    """The store of this run, as a client: MASTER_ADDR and MASTER_PORT say where it is."""
    return within(
        TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
        )
    )


def within(store: Store, name: str = NAME) -> Store:
    """The part of a store that is called so."""
    return PrefixStore(name, store)
