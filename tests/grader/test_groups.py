"""A probe learns for how long a group waits from its making, not from what was written into its options."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from grader.shared.probes import groups


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """The default group of one rank, which waits for 17 seconds."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1, timeout=timedelta(seconds=17)
    )
    yield dist.distributed_c10d._get_default_group()
    dist.destroy_process_group()


def test_options_written_later_change_nothing(group: Any) -> None:
    group._get_backend(torch.device("cpu")).options._timeout = timedelta(seconds=5)
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=5)
    assert groups.timeout_of(group) == 17
    assert groups.timeout_of(object()) is None


def test_what_makes_groups_leads_to_no_note(group: Any) -> None:
    maker = vars(dist.distributed_c10d)["_new_process_group_helper"]
    while hasattr(maker, "__closure__") and maker.__closure__:  # what the grader's devices put around it
        maker = next(cell.cell_contents for cell in maker.__closure__ if callable(cell.cell_contents))
    shared, *rest = maker.__self__
    assert not [each for each in (*shared, *rest) if each is groups._note]
