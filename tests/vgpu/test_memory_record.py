"""Bytes that the record of a virtual GPU's memory adds up by itself."""

from __future__ import annotations

import torch

import vgpu


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
