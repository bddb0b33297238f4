"""Bytes that the record of a virtual GPU's memory adds up by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vgpu
from vgpu.runtime.audit_events import BROKEN_EVENT
from vgpu.runtime.memory import device_memory


def test_the_record_adds_up_what_was_allocated_and_believes_no_figure() -> None:
    with vgpu.attach("T4", force=True) as gpu:
        kept = [torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        (kept[0].float() @ kept[1].float()[:, None].reshape(-1)).item()
        assert gpu.memory.latest()[0] == torch.cuda.memory_allocated()
        before = torch.cuda.memory_allocated()
        block = torch.empty(2**21, dtype=torch.uint8, device="cuda")
        taken = torch.cuda.memory_allocated() - before  # a cached block may be larger
        assert taken >= 2**21
        del block
        gpu.memory.allocator.allocated_now -= 2**21
        kept.append(torch.empty(2**21, dtype=torch.uint8, device="cuda"))
        now, most = gpu.memory.latest()
        assert now == before + taken
        assert most == now
        gpu.memory.allocator.allocated_now += 2**21
        del kept
        assert gpu.memory.latest() == (torch.cuda.memory_allocated(), now)


def test_a_lost_message_of_a_smaller_storage_does_not_void_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if a signal handler had resized it while a message was being noted.
    events: list[tuple[Any, ...]] = []
    monkeypatch.setattr(device_memory, "_audit", lambda *event: events.append(event))
    with vgpu.attach("T4", force=True) as gpu:
        block = torch.empty(2**21, dtype=torch.uint8, device="cuda")
        living, lost = gpu.memory.living, []

        def interrupted(message: Any) -> Any:
            if type(message) is not list:
                return living(message)
            lost.append(message)
            raise ValueError("generator already executing")

        monkeypatch.setattr(gpu.memory, "living", interrupted)
        block.untyped_storage().resize_(0)
        assert lost
        gpu.memory.latest()
        assert not events
        block.untyped_storage().resize_(2**21)
        monkeypatch.setattr(gpu.memory, "living", living)
        # A block that the registry gives back although its storage lives.
        given_back = gpu.registry.block_of(block)
        assert given_back is not None
        gpu.memory.release(given_back)
        gpu.memory.latest()
        assert events == [(BROKEN_EVENT, "memory")]
