"""What is remembered of a node between two light checks: how it was when it was accepted, and how it was last.

Whoever is compared with the accepted state stays failed until it is accepted again: a fault that nobody fixed does not
go away because the next check finds nothing new.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cluster.acceptance.kernel_log import Xid
from labkit import LabError
from labkit.files import atomic_write

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StateError(LabError):
    """The file of a node's state is none."""


@dataclass(kw_only=True)
class Seen:
    """One look at a node."""

    boot: str
    """The kernel's number of this boot; counters of an earlier one mean nothing."""
    gpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    """NVML's readings by UUID."""
    ports: list[dict[str, Any]] = field(default_factory=list)
    last_record: int = -1
    """Of the kernel's log."""


@dataclass(kw_only=True)
class State:
    """What the file holds."""

    accepted: Seen
    last: Seen


def read(path: Path) -> State | None:
    """The state of the last check; None where there is none.

    Raises:
        StateError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return State(accepted=Seen(**document["accepted"]), last=Seen(**document["last"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged ({error!r}): remove it once the node is known to be good") from error


def write(path: Path, state: State) -> None:
    """Keep it; the old one stays where this fails."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")


def new_xids(xids: list[Xid], accepted: Seen, boot: str) -> list[Xid]:
    """Those since the node was accepted; of another boot all are new."""
    return [xid for xid in xids if accepted.boot != boot or xid.sequence > accepted.last_record]
